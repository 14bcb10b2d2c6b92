"""What only a log on disk can show: bytes, files, restarts, leftovers, damage."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebed import limits
from lakebed.config import SyncMode, WalConfig
from lakebed.errors import (
    ClosedError,
    CorruptionError,
    EntryLostError,
    EntryNotFoundError,
    EntryTooLargeError,
    LockedError,
    NotContiguousError,
)
from lakebed.host import SimDisk
from lakebed.raft import HardState, Membership, Snapshot, WalLog
from lakebed.wal import Wal
from lakebed.wal.appender import mark_request
from lakebed.wal.frame import FrameKind, encode_gap
from tests.raft.support import (
    ROOT,
    SMALL,
    configuration,
    entry,
    fill,
    open_sim,
    picture,
    snapshot,
)

SNAPSHOTS = ROOT / "snapshots"


def test_everything_comes_back_from_a_real_disk(tmp_path: Path) -> None:
    new = Membership((1, 2, 3), (4,))
    with WalLog.open(tmp_path / "log", SMALL) as log:
        fill(log, 10, payload_bytes=900)
        log.apply_snapshot(snapshot(6, data=b"z" * 3_000_000))
        log.set_hard_state(HardState(3, 2))
        log.truncate_suffix(9)
        log.append([configuration(9, 3, new), entry(10, 3)])
        before = picture(log)
    with WalLog.open(tmp_path / "log", SMALL) as log:
        assert picture(log) == before
        assert (log.hard_state, log.membership()) == (HardState(3, 2), new)
        assert log.snapshot() == snapshot(6, data=b"z" * 3_000_000)
        assert sorted(path.name for path in (tmp_path / "log" / "snapshots").iterdir()) == [
            f"{6:020d}.snapshot"
        ]


@pytest.mark.parametrize("mode", SyncMode)
def test_sync_makes_durable_in_every_sync_mode(tmp_path: Path, mode: SyncMode) -> None:
    with WalLog.open(tmp_path, WalConfig(file_bytes=4096, sync=mode)) as log:
        log.append([entry(1), entry(2)])
        assert log.stats().durable_index == 0
        log.sync()
        assert log.stats().durable_index == 2


def test_a_refused_append_writes_not_one_byte() -> None:
    disk = SimDisk()
    log = open_sim(disk)
    fill(log, 3, term=2)
    before, calls = disk.contents(), disk.calls
    for wrong in ([entry(5, 2)], [entry(4, 1)], [entry(4, 2), entry(6, 2)]):
        with pytest.raises(NotContiguousError):
            log.append(wrong)
    with pytest.raises(EntryTooLargeError):
        log.append([entry(4, 2, bytes(SMALL.entry_bytes_max + 1))])
    log.sync()
    assert (disk.contents(), disk.calls) == (before, calls)


def test_several_appends_and_a_sync_are_one_sync() -> None:
    log = open_sim(SimDisk())
    before = log.stats().counters.syncs
    for index in range(1, 21):
        log.append([entry(index)])
    log.sync()
    log.sync()
    assert log.stats().counters.syncs == before + 1


def test_entries_of_several_terms_get_their_indexes() -> None:
    disk = SimDisk()
    log = open_sim(disk)
    wanted = [entry(index, index // 3) for index in range(1, 20)]
    wanted[7] = configuration(8, 2, Membership((1,)))
    log.append(wanted)
    log.sync()
    log.close()
    assert open_sim(disk).entries(1) == wanted


def test_a_long_append_is_split_into_groups_and_keeps_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GROUP_BYTES_MAX", 2000)
    monkeypatch.setattr(limits, "GROUP_FRAMES_MAX", 7)
    disk = SimDisk()
    log = open_sim(disk)
    wanted = [entry(index, 1, b"%d" % index * (index % 50)) for index in range(1, 120)]
    log.append(wanted)
    log.sync()
    log.close()
    assert open_sim(disk).entries(1) == wanted


def test_what_is_staged_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_BYTES_MAX", 1000)
    log = open_sim(SimDisk())
    for index in range(1, 8):
        log.append([entry(index, 1, b"x" * 400)])
    assert log.stats().last_index == 6
    assert log.last_index == 7


def test_a_snapshot_really_frees_the_disk() -> None:
    disk = SimDisk()
    log = open_sim(disk)
    fill(log, 200, payload_bytes=1000)

    def used() -> tuple[int, int]:
        files = [data for path, data in disk.contents().items() if path.parent.name == "wal"]
        return len(files), sum(map(len, files))

    files, size_bytes = used()
    assert files > 60
    log.apply_snapshot(snapshot(198, data=b"small"))
    assert used()[0] <= 2
    assert used()[1] < size_bytes / 30
    assert len([path for path in disk.contents() if path.parent == SNAPSHOTS]) == 1
    log.close()
    assert [each.index for each in open_sim(disk).entries(199)] == [199, 200]


def test_a_snapshot_beyond_the_end_frees_every_full_file() -> None:
    disk = SimDisk()
    log = open_sim(disk)
    fill(log, 100, payload_bytes=1000)
    log.apply_snapshot(snapshot(5000, 7))
    assert log.stats().files == 1


def test_a_file_is_not_mapped_once_it_is_to_be_recycled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that comes between the two steps must not get views that change later."""
    with open_sim(SimDisk(), WalConfig(file_bytes=4096, spare_files=2)) as log:
        fill(log, 12, payload_bytes=900)
        maps, forget = log._wal._maps, log._wal._maps.forget
        refused: list[int] = []

        def forget_then_read(number: int) -> bool:
            unmapped = forget(number)
            with pytest.raises(FileNotFoundError):
                maps.get(number)
            refused.append(number)
            return unmapped

        monkeypatch.setattr(maps, "forget", forget_then_read)
        log.apply_snapshot(snapshot(10))
        assert refused
        assert log.stats().counters.recycled_files > 0


def test_leftovers_of_a_crash_are_removed_and_other_files_left_alone() -> None:
    disk = SimDisk()
    log = open_sim(disk)
    fill(log, 5)
    log.apply_snapshot(snapshot(3))
    log.close()
    disk.put(SNAPSHOTS / f"{2:020d}.snapshot", b"older")
    disk.put(SNAPSHOTS / f"{5:020d}.snapshot", b"newer, without a mark")
    disk.put(SNAPSHOTS / f"{6:020d}.snapshot.tmp", b"half")
    disk.put(SNAPSHOTS / "notes.txt", b"somebody's")
    open_sim(disk)
    assert sorted(path.name for path in disk.contents() if path.parent == SNAPSHOTS) == [
        f"{3:020d}.snapshot",
        "notes.txt",
    ]


@pytest.mark.parametrize("damage", ["missing", "flipped", "short", "long", "empty"])
def test_a_damaged_snapshot_is_refused_by_name_and_nothing_removed(damage: str) -> None:
    disk = SimDisk()
    log = open_sim(disk)
    fill(log, 5)
    log.apply_snapshot(snapshot(3, data=b"0123456789"))
    log.close()
    path = SNAPSHOTS / f"{3:020d}.snapshot"
    disk.put(SNAPSHOTS / f"{4:020d}.snapshot", b"a leftover that may be of use now")
    if damage == "missing":
        disk.remove(path)
    else:
        changed = {"flipped": b"0123456780", "short": b"012345678", "long": b"01234567890"}
        disk.put(path, changed.get(damage, b""))
    before = disk.contents().keys()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"file={path}"):
            open_sim(disk)
    assert disk.contents().keys() == before


@pytest.mark.parametrize("damaged", [b"0123456780", b"012345678", b"01234567890"])
def test_damage_to_a_snapshot_is_seen_when_it_is_read(damaged: bytes) -> None:
    disk = SimDisk()
    log = open_sim(disk)
    log.apply_snapshot(snapshot(3, data=b"0123456789"))
    disk.put(SNAPSHOTS / f"{3:020d}.snapshot", damaged)
    with pytest.raises(CorruptionError):
        log.snapshot()


# What happens between two steps of one call


def once(act: Callable[[], object], then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does something else before its first call."""
    pending = [act]

    def call(*arguments: Any, **named: Any) -> Any:
        if pending:
            pending.pop()()
        return then(*arguments, **named)

    return call


def test_a_snapshot_replaced_while_it_is_read_gives_the_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_sim(SimDisk())
    log.apply_snapshot(snapshot(3))
    newer = snapshot(5, data=b"newer")
    files = log._snapshots
    monkeypatch.setattr(files, "read", once(lambda: log.apply_snapshot(newer), files.read))
    assert log.snapshot() == newer


@pytest.mark.parametrize("synced", [False, True])
def test_a_read_during_a_truncation_does_not_mix_two_histories(
    monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    log = open_sim(SimDisk())
    fill(log, 3)
    log.append([entry(4)])
    rewritten = [entry(2, 2, b"new"), entry(3, 2, b"new")]

    def rewrite() -> None:
        log.truncate_suffix(2)
        log.append(rewritten)
        if synced:
            log.sync()

    monkeypatch.setattr(log._wal, "read", once(rewrite, log._wal.read))
    assert log.entries(2) == rewritten


def test_a_read_of_what_is_truncated_meanwhile_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_sim(SimDisk())
    fill(log, 4)
    read = log._wal.read
    monkeypatch.setattr(log._wal, "read", once(lambda: log.truncate_suffix(2), read))
    with pytest.raises(EntryNotFoundError):
        log.entries(3)


@pytest.mark.parametrize("taken", [False, True])
def test_an_interrupted_sync_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    disk = SimDisk()
    log = open_sim(disk)
    append_many = log._wal.append_many

    def interrupted(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(log._wal, "append_many", append_many)
        if taken:
            append_many(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(log._wal, "append_many", interrupted)
    log.append([entry(1), entry(2)])
    with pytest.raises(KeyboardInterrupt):
        log.sync()
    log.append([entry(3)])
    assert log.entries(1) == [entry(1), entry(2), entry(3)]
    log.sync()
    log.close()
    assert open_sim(disk).entries(1) == [entry(1), entry(2), entry(3)]


def test_an_interrupted_snapshot_is_followed_as_far_as_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    log = open_sim(disk)
    fill(log, 4)
    release = log._wal.release

    def interrupted(*arguments: Any, **named: Any) -> None:
        release(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(log._wal, "release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.apply_snapshot(snapshot(3))
    assert (log.snapshot_index, log.snapshot()) == (3, snapshot(3))
    before = picture(log)
    log.close()
    assert picture(open_sim(disk)) == before


@pytest.mark.parametrize("note", [b"", b"\xc1", b"\x95\x01\x02"])
def test_a_wal_released_by_somebody_else_is_not_a_replicated_log(note: bytes) -> None:
    disk = SimDisk()
    with Wal.open(ROOT, SMALL, disk=disk, threaded=False) as wal:
        wal.append(b"x", term=1)
        wal.release(1, note)
    with pytest.raises(CorruptionError, match="index=1"):
        open_sim(disk)
    assert disk.locks == {}


def test_a_configuration_entry_that_is_none_is_damage() -> None:
    disk = SimDisk()
    with Wal.open(ROOT, SMALL, disk=disk, threaded=False) as wal:
        wal.append(b"x", term=1)
        wal.append(b"not a membership", term=1, kind=configuration(1, 1, Membership()).kind)
    with pytest.raises(CorruptionError, match="index=2"):
        open_sim(disk)


def test_a_salvaged_log_opens_and_says_what_is_lost() -> None:
    disk = SimDisk()
    with Wal.open(ROOT, SMALL, disk=disk, threaded=False) as wal:
        wal.append_many([b"1", b"2"], term=1)
        lost = mark_request(FrameKind.GAP, encode_gap(3), index=5, term=1)
        wal.commits.call(lost)
        wal.append_many([b"6", b"7"], term=2)
    log = open_sim(disk)
    assert [log.term_at(index) for index in range(9)] == [0, 1, 1, None, None, None, 2, 2, None]
    assert [each.index for each in log.entries(1)] == [1, 2]
    assert [each.index for each in log.entries(6)] == [6, 7]
    with pytest.raises(EntryLostError, match="next_index=6"):
        log.entries(3)
    log.apply_snapshot(snapshot(6, 2))
    assert log.propose(b"8", 2) == 8
    log.close()
    assert [each.index for each in open_sim(disk).entries(7)] == [7, 8]


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    with WalLog.open(tmp_path, SMALL), pytest.raises(LockedError):
        WalLog.open(tmp_path, SMALL)
    WalLog.open(tmp_path, SMALL).close()


def test_closing_makes_staged_entries_durable() -> None:
    disk = SimDisk()
    with open_sim(disk) as log:
        log.append([entry(1), entry(2)])
    assert open_sim(disk).last_index == 2


def _use_in_child(log: WalLog, answers: multiprocessing.Queue[str]) -> None:
    try:
        log.propose(b"from the child", 1)
    except ClosedError as error:
        answers.put(error.code)
    log.close()


def test_a_forked_child_cannot_use_its_parents_log(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with WalLog.open(tmp_path, SMALL, threaded=False) as log:
        fill(log, 2)
        answers: multiprocessing.Queue[str] = context.Queue()
        child = context.Process(target=_use_in_child, args=(log, answers))
        child.start()
        assert answers.get(timeout=600) == "closed"
        child.join()
        assert log.propose(b"from the parent", 1) == 3


def test_a_snapshot_larger_than_a_piece_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READ_CHUNK_BYTES", 1000)
    disk = SimDisk()
    large = Snapshot(9, 1, Membership((1,)), bytes(range(256)) * 20)
    log = open_sim(disk)
    log.apply_snapshot(large)
    log.close()
    assert open_sim(disk).snapshot() == large
