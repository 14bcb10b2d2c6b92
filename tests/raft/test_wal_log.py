"""What only a log on disk can show: bytes, files, restarts, leftovers, damage."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from lakebed import limits
from lakebed.config import SyncMode, WalConfig
from lakebed.errors import (
    ClosedError,
    CorruptionError,
    EntryTooLargeError,
    LockedError,
    NotContiguousError,
)
from lakebed.host import SimDisk
from lakebed.raft import HardState, Membership, Snapshot, WalLog
from lakebed.wal import Wal
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


def test_damage_to_a_snapshot_is_seen_when_it_is_read() -> None:
    disk = SimDisk()
    log = open_sim(disk)
    log.apply_snapshot(snapshot(3, data=b"0123456789"))
    disk.put(SNAPSHOTS / f"{3:020d}.snapshot", b"0123456780")
    with pytest.raises(CorruptionError):
        log.snapshot()


@pytest.mark.parametrize("note", [b"", b"\xc1", b"\x95\x01\x02"])
def test_a_wal_released_by_somebody_else_is_not_a_replicated_log(note: bytes) -> None:
    disk = SimDisk()
    with Wal.open(ROOT, SMALL, disk=disk, threaded=False) as wal:
        wal.append(b"x")
        wal.release(1, note)
    with pytest.raises(CorruptionError, match="index=1"):
        open_sim(disk)
    assert disk.locks == {}


def test_a_configuration_entry_that_is_none_is_damage() -> None:
    disk = SimDisk()
    with Wal.open(ROOT, SMALL, disk=disk, threaded=False) as wal:
        wal.append(b"x")
        wal.append(b"not a membership", kind=configuration(1, 1, Membership()).kind)
    with pytest.raises(CorruptionError, match="index=2"):
        open_sim(disk)


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
    with WalLog.open(tmp_path, SMALL) as log:
        fill(log, 2)
        answers: multiprocessing.Queue[str] = context.Queue()
        child = context.Process(target=_use_in_child, args=(log, answers))
        child.start()
        assert answers.get(timeout=30) == "closed"
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
