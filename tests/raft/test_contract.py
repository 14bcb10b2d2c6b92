"""The replicated-log contract: in memory, on disk, and on disk with a restart after every call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from lakebed.errors import (
    ClosedError,
    EntryNotFoundError,
    EntryReleasedError,
    InvalidArgumentError,
    NotContiguousError,
)
from lakebed.host import SimDisk
from lakebed.raft import (
    EntryKind,
    HardState,
    LogEntry,
    Membership,
    MemoryLog,
    RaftLog,
    Snapshot,
    encode_membership,
)
from tests.raft.support import configuration, entry, fill, open_sim, picture, reopening, snapshot

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAKERS: dict[str, Callable[[], RaftLog]] = {
    "memory": MemoryLog,
    "wal": lambda: open_sim(SimDisk()),
    "wal-reopened": lambda: reopening(SimDisk()),
}


@pytest.fixture(params=MAKERS)
def log(request: pytest.FixtureRequest) -> Iterator[RaftLog]:
    made = MAKERS[request.param]()
    yield made
    made.close()


def test_a_new_log_is_empty(log: RaftLog) -> None:
    assert (log.first_index, log.last_index, log.last_term, log.snapshot_index) == (1, 0, 0, 0)
    assert (log.term_at(0), log.term_at(1)) == (0, None)
    assert log.hard_state == HardState()
    assert log.snapshot() is None
    assert log.membership() == Membership()
    assert log.entries(1) == []


@pytest.mark.parametrize("maker", ["memory", "wal"])
def test_an_implementation_is_recognised_as_one(maker: str) -> None:
    assert isinstance(MAKERS[maker](), RaftLog)


def test_appended_entries_are_visible_before_sync(log: RaftLog) -> None:
    log.append([entry(1), entry(2, term=3)])
    assert (log.last_index, log.last_term) == (2, 3)
    assert [log.term_at(index) for index in range(4)] == [0, 1, 3, None]
    assert log.entry(2) == entry(2, term=3)
    assert log.entries(1) == [entry(1), entry(2, term=3)]


def test_appending_nothing_changes_nothing(log: RaftLog) -> None:
    log.append([])
    log.sync()
    assert log.last_index == 0


@pytest.mark.parametrize(
    ("payload", "content"),
    [(b"", b""), (bytearray(b"abc"), b"abc"), (memoryview(b"abcdef")[::1][2:4], b"cd")],
)
def test_a_payload_is_any_buffer(log: RaftLog, payload: Buffer, content: bytes) -> None:
    log.append([LogEntry(1, 1, payload)])
    log.sync()
    assert bytes(log.entry(1).payload) == content


@pytest.mark.parametrize(
    "wrong",
    [
        [entry(4)],
        [entry(2)],
        [entry(0)],
        [entry(3), entry(5)],
        [entry(3), entry(3)],
        [entry(3, term=1)],
        [entry(3, term=4), entry(4, term=3)],
    ],
)
def test_what_does_not_follow_is_refused_whole(log: RaftLog, wrong: list[LogEntry]) -> None:
    fill(log, 2, term=2)
    before = picture(log)
    with pytest.raises(NotContiguousError):
        log.append(wrong)
    assert picture(log) == before


@pytest.mark.parametrize(
    "wrong",
    [
        LogEntry(1, -1, b""),
        LogEntry(1, 2**64, b""),
        LogEntry(1, 1, "text"),  # type: ignore[arg-type]
        LogEntry(1, 1, memoryview(b"abcdef")[::2]),
        LogEntry(1, 1, b"", 7),  # type: ignore[arg-type]
        LogEntry(1, 1, b"no membership", EntryKind.CONFIGURATION),
    ],
)
def test_an_entry_that_is_none_is_refused(log: RaftLog, wrong: LogEntry) -> None:
    with pytest.raises(InvalidArgumentError):
        log.append([wrong])
    assert log.last_index == 0


def test_reading_outside_the_log_says_on_which_side(log: RaftLog) -> None:
    fill(log, 5)
    log.apply_snapshot(snapshot(2))
    for index in (-1, 0, 2):
        with pytest.raises(EntryReleasedError):
            log.entry(index)
        with pytest.raises(EntryReleasedError):
            log.entries(index)
    with pytest.raises(EntryNotFoundError):
        log.entry(6)
    with pytest.raises(EntryNotFoundError):
        log.entries(7)
    assert log.entries(6) == []
    assert [log.term_at(index) for index in (-1, 0, 1, 2, 3, 6)] == [None, 0, None, 1, 1, None]


def test_a_read_has_bounds(log: RaftLog) -> None:
    log.append([entry(index, 1, b"x" * 10) for index in range(1, 8)])
    log.sync()
    log.append([entry(8, 1, b"y" * 10)])

    def indexes(first: int, last: int | None = None, bytes_max: int = 1000) -> list[int]:
        return [each.index for each in log.entries(first, last, bytes_max)]

    assert indexes(2, 4) == [2, 3, 4]
    assert indexes(6, 99) == [6, 7, 8]
    assert indexes(3, 2) == []
    assert indexes(1, bytes_max=1) == [1]
    assert indexes(1, bytes_max=29) == [1, 2]
    assert indexes(1, bytes_max=30) == [1, 2, 3]
    assert indexes(6, bytes_max=25) == [6, 7]
    with pytest.raises(InvalidArgumentError):
        log.entries(3, 1)
    with pytest.raises(InvalidArgumentError):
        log.entries(1, 1, 0)


def test_a_read_skips_nothing_and_takes_empty_entries_along(log: RaftLog) -> None:
    log.append([entry(1, 1, b"x" * 10), entry(2, 1, b""), entry(3, 1, b"x")])
    log.sync()
    log.append([entry(4, 1, b""), entry(5, 1, b"")])
    assert [each.index for each in log.entries(1, bytes_max=10)] == [1, 2]
    assert [each.index for each in log.entries(1, bytes_max=11)] == [1, 2, 3, 4, 5]


def test_truncation_voids_the_end_and_the_log_goes_on(log: RaftLog) -> None:
    log.append([entry(1, 1), entry(2, 1), entry(3, 2), entry(4, 3)])
    log.truncate_suffix(3)
    assert (log.last_index, log.last_term, log.term_at(3)) == (2, 1, None)
    log.append([entry(3, 5, b"new")])
    log.sync()
    assert [bytes(each.payload) for each in log.entries(2)] == [b"entry 2/1", b"new"]
    log.truncate_suffix(1)
    assert picture(log).entries == []
    assert (log.first_index, log.last_index, log.last_term) == (1, 0, 0)


def test_truncating_behind_the_end_changes_nothing(log: RaftLog) -> None:
    fill(log, 3)
    before = picture(log)
    log.truncate_suffix(4)
    log.truncate_suffix(100)
    assert picture(log) == before


def test_truncating_what_the_snapshot_holds_is_refused(log: RaftLog) -> None:
    fill(log, 3)
    with pytest.raises(InvalidArgumentError):
        log.truncate_suffix(0)
    log.apply_snapshot(snapshot(2))
    before = picture(log)
    with pytest.raises(InvalidArgumentError):
        log.truncate_suffix(2)
    assert picture(log) == before


def test_the_latest_hard_state_wins(log: RaftLog) -> None:
    for state in (HardState(1, 7), HardState(1, None), HardState(4, 0), HardState(4, 0)):
        log.set_hard_state(state)
        assert log.hard_state == state


@pytest.mark.parametrize("wrong", [HardState(2, 1), HardState(-1), HardState(3, -1)])
def test_a_hard_state_never_goes_back(log: RaftLog, wrong: HardState) -> None:
    log.set_hard_state(HardState(3, 1))
    with pytest.raises(InvalidArgumentError):
        log.set_hard_state(wrong)
    assert log.hard_state == HardState(3, 1)


def test_a_snapshot_keeps_the_tail_it_fits(log: RaftLog) -> None:
    log.append([entry(1, 1), entry(2, 2), entry(3, 2), entry(4, 3)])
    log.sync()
    log.apply_snapshot(snapshot(2, 2, b"two"))
    assert (log.first_index, log.last_index, log.snapshot_index) == (3, 4, 2)
    assert [log.term_at(index) for index in range(6)] == [0, None, 2, 2, 3, None]
    assert log.entries(3) == [entry(3, 2), entry(4, 3)]
    assert log.snapshot() == snapshot(2, 2, b"two")


def test_a_snapshot_of_the_whole_log_leaves_none_of_it(log: RaftLog) -> None:
    fill(log, 3, term=2)
    log.apply_snapshot(snapshot(3, 2))
    assert (log.first_index, log.last_index, log.last_term) == (4, 3, 2)
    with pytest.raises(NotContiguousError):
        log.append([entry(4, 1)])
    fill(log, 4, term=2)
    assert log.entries(4) == [entry(4, 2)]


@pytest.mark.parametrize(("index", "term"), [(3, 5), (9, 5), (9, 1)])
def test_a_snapshot_that_does_not_fit_resets_the_log(log: RaftLog, index: int, term: int) -> None:
    fill(log, 5, term=1)
    log.set_hard_state(HardState(6, 2))
    log.apply_snapshot(snapshot(index, term))
    assert (log.first_index, log.last_index, log.last_term) == (index + 1, index, term)
    assert log.hard_state == HardState(6, 2)
    fill(log, index + 2, term=6)
    assert log.entries(index + 1) == [entry(index + 1, 6), entry(index + 2, 6)]


def test_a_stale_snapshot_changes_nothing(log: RaftLog) -> None:
    fill(log, 5)
    log.apply_snapshot(snapshot(3, data=b"first"))
    before = picture(log)
    log.apply_snapshot(snapshot(3, data=b"second"))
    log.apply_snapshot(snapshot(2, 9))
    assert picture(log) == before


def test_a_newer_snapshot_of_an_earlier_term_is_refused(log: RaftLog) -> None:
    log.apply_snapshot(snapshot(3, 4))
    with pytest.raises(InvalidArgumentError):
        log.apply_snapshot(snapshot(5, 3))
    assert log.snapshot() == snapshot(3, 4)


def test_a_snapshot_may_hold_nothing(log: RaftLog) -> None:
    empty = Snapshot(4, 2, Membership(), b"")
    log.apply_snapshot(empty)
    assert log.snapshot() == empty


def test_the_membership_is_the_last_configuration(log: RaftLog) -> None:
    first, second, third = Membership((1,)), Membership((1, 2), (3,)), Membership((4, 5, 2**64 - 1))
    log.append([configuration(1, 1, first), entry(2), configuration(3, 1, second)])
    log.sync()
    assert log.membership() == second
    log.truncate_suffix(3)
    assert log.membership() == first
    log.apply_snapshot(snapshot(2, voters=(8, 9)))
    assert log.membership() == Membership((8, 9))
    log.append([configuration(3, 2, third)])
    assert log.membership() == third
    log.truncate_suffix(3)
    assert log.membership() == Membership((8, 9))


def test_a_configuration_behind_the_snapshot_stays_in_force(log: RaftLog) -> None:
    new = Membership((1, 2), (3,))
    log.append([configuration(1, 1, Membership((1,))), entry(2), configuration(3, 1, new)])
    log.apply_snapshot(snapshot(2, voters=(1,)))
    assert log.membership() == new
    log.apply_snapshot(snapshot(3, voters=(1, 2)))
    assert log.membership() == Membership((1, 2))


def test_a_proposal_gets_the_next_index(log: RaftLog) -> None:
    fill(log, 2)
    assert log.propose(b"three", 1) == 3
    assert log.propose(encode_membership(Membership((1,))), 2, EntryKind.CONFIGURATION) == 4
    assert (bytes(log.entry(3).payload), log.last_term) == (b"three", 2)
    assert log.membership() == Membership((1,))
    with pytest.raises(NotContiguousError):
        log.propose(b"of an old term", 1)
    assert log.last_index == 4


@pytest.mark.parametrize("maker", ["memory", "wal"])
def test_a_closed_log_refuses(maker: str) -> None:
    log = MAKERS[maker]()
    fill(log, 2)
    log.close()
    log.close()
    calls: list[Callable[[], object]] = [
        lambda: log.append([entry(3)]),
        lambda: log.propose(b"", 1),
        lambda: log.entry(1),
        lambda: log.truncate_suffix(1),
        lambda: log.set_hard_state(HardState(1)),
        lambda: log.apply_snapshot(snapshot(1)),
        log.snapshot,
        log.sync,
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Membership((1, 1)),
        lambda: Membership((1,), (1,)),
        lambda: Membership((-1,)),
        lambda: Membership((2**64,)),
        lambda: Membership((True,)),
        lambda: Membership([1]),  # type: ignore[arg-type]
        lambda: Membership(tuple(range(1025))),
        lambda: snapshot(0),
        lambda: snapshot(2**63),
        lambda: snapshot(1, -1),
        lambda: Snapshot(1, 1, Membership(), bytearray()),  # type: ignore[arg-type]
    ],
)
def test_values_are_refused_at_birth(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError):
        make()


def test_many_threads_propose_into_memory_without_losing_one() -> None:
    log = MemoryLog()
    indexes: list[int] = []
    threads = [
        threading.Thread(target=lambda: indexes.extend(log.propose(b"x", 1) for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(indexes) == list(range(1, 201))
    assert log.last_index == 200
