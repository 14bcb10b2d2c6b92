"""Plans of what tasks read: every offset in exactly one piece, files with the piece they are of."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.reports.topics import HotRange, ScanPlan, SealedFile
from lakebed.spark import planning
from lakebed.spark.admission_limits import share_out
from lakebed.spark.planning import PIECE_BYTES, ScanPiece, pieces, shares


@st.composite
def plans(draw: st.DrawFn) -> tuple[ScanPlan, dict[int, tuple[int, int]]]:
    """Draw partitions as a log may have them: files one after another, holes, a hot tail."""
    files: list[SealedFile] = []
    hot: list[HotRange] = []
    ranges: dict[int, tuple[int, int]] = {}
    for number in range(draw(st.integers(0, 3))):
        begin = at = draw(st.integers(0, 1000))
        for _ in range(draw(st.integers(0, 5))):
            at += draw(st.sampled_from([0, 0, 0, 7]))  # a hole: compaction left nothing there
            count = draw(st.integers(1, 3_000_000))
            kept = draw(st.integers(1, count))
            size = draw(st.integers(1, 2 * PIECE_BYTES))
            where = f"file:///{number}-{at}"
            files.append(SealedFile(number, where, at, at + count, kept, size, whole=True))
            at += count
        tail = draw(st.sampled_from([0, 1, 400_000, 5_000_000]))
        if tail:
            hot.append(HotRange(number, at, at + tail))
        if begin < at + tail:
            ranges[number] = (begin, at + tail)
    return ScanPlan("t", tuple(files), tuple(hot)), ranges


@given(plans(), st.integers(1, 40), st.integers(1, 8))
def test_every_offset_is_in_exactly_one_piece_of_one_task(
    drawn: tuple[ScanPlan, dict[int, tuple[int, int]]], at_least: int, cores: int
) -> None:
    plan, ranges = drawn
    tasks = shares(pieces(plan, 7, ranges), at_least=at_least, cores=cores)
    assert len(tasks) >= min(at_least, sum(until - start for start, until in ranges.values()))
    assert all(tasks)
    found = [piece for task in tasks for piece in task]
    for number, (start, until) in ranges.items():
        mine = sorted((piece for piece in found if piece.partition == number), key=_start)
        edges = [(piece.start, piece.until) for piece in mine]
        assert edges[0][0] == start
        assert edges[-1][1] == until
        assert all(before[1] == after[0] for before, after in itertools.pairwise(edges))
        assert all(begin < end for begin, end in edges)
        for piece in mine:
            _check_files(piece, [each for each in plan.files if each.partition == number])
    assert {piece.partition for piece in found} == set(ranges)


def _start(piece: ScanPiece) -> int:
    return piece.start


def _check_files(piece: ScanPiece, known: list[SealedFile]) -> None:
    """A piece has every file that holds some of its offsets, bounded to them."""
    expected = [
        (each.location, max(each.start, piece.start), min(each.until, piece.until))
        for each in known
        if each.start < piece.until and each.until > piece.start
    ]
    assert [(each.location, each.start, each.until) for each in piece.files] == expected
    whole = {each.location: (each.start, each.until) for each in known}
    assert all(each.whole == ((each.start, each.until) == whole[each.location])
               for each in piece.files)  # fmt: skip


def test_a_large_hot_tail_is_read_by_tasks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PIECE_RECORDS", 100)
    file = SealedFile(0, "file:///x", 0, 50, 50, 1000, whole=True)
    small = pieces(ScanPlan("t", (file,), (HotRange(0, 50, 70),)), 7, {0: (0, 70)})
    assert [(each.start, each.until, len(each.files)) for each in small] == [(0, 70, 1)]
    large = pieces(ScanPlan("t", (file,), (HotRange(0, 50, 300),)), 7, {0: (0, 300)})
    assert [(each.start, each.until, len(each.files)) for each in large] == [
        (0, 50, 1),
        (50, 133, 0),
        (133, 216, 0),
        (216, 300, 0),
    ]


def spans(records: int, count: int) -> list[ScanPiece]:
    """Return as many pieces as there are partitions, each of so many records in memory."""
    return [
        ScanPiece(topic="t", topic_id=7, partition=number, start=0, until=records, files=())
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("records", "partitions", "cores", "tasks"),
    [
        (10, 16, 4, 1),  # one task costs as much as all these records
        (100_000, 16, 4, 4),
        (100_000, 2, 4, 2),  # a partition is not cut without need
        (1_000_000, 16, 4, 8),
        (1_900_000, 16, 4, 16),
    ],
)
def test_small_pieces_share_tasks(records: int, partitions: int, cores: int, tasks: int) -> None:
    found = shares(spans(records, partitions), at_least=1, cores=cores)
    assert len(found) == tasks
    sizes = [sum(piece.records for piece in task) for task in found]
    assert max(sizes) - min(sizes) <= records
    assert [piece.partition for task in found for piece in task if task is found[0]] == sorted(
        piece.partition for piece in found[0]
    )


def test_tasks_are_as_many_as_were_asked_for() -> None:
    assert len(shares(spans(1000, 4), at_least=3, cores=1)) == 3
    assert len(shares(spans(1000, 4), at_least=9, cores=1)) >= 9
    assert shares([], at_least=3, cores=2) == []


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5)),
        st.integers(1, 10**12),
        min_size=1,
    ),
    st.integers(0, 10**12),
)
def test_shares_of_a_limit_add_up_and_are_in_proportion(
    waiting: dict[tuple[str, int], int], allowed: int
) -> None:
    total = sum(waiting.values())
    allowed = min(allowed, total)
    shares = share_out(waiting, allowed)
    assert sum(shares.values()) == allowed
    for key, share in shares.items():
        assert min(1, allowed // len(waiting)) <= share <= waiting[key]
        assert abs(share - allowed * waiting[key] / total) <= 1 + len(waiting) + allowed / 1e12


def test_nobody_is_starved_by_a_limit_that_is_smaller_than_the_partitions_are_many() -> None:
    """Whose turn it is follows from what was read, so everybody has one after a while."""
    waiting = {("a", 0): 1, ("a", 1): 10**6, ("a", 2): 10**6}
    assert [share_out(waiting, 1, turn)[("a", 0)] for turn in range(3)] == [1, 0, 0]
    assert share_out(waiting, 1000)[("a", 0)] == 1
