"""What a signal, a late look or a quick second call must not break in the committer."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from lakebed.errors import DiskFullError, PoisonedError, UnknownOutcomeError
from lakebed.host import Fault, FaultyDisk, SimDisk
from lakebed.wal import SyncMode, Wal, WalConfig
from lakebed.wal.frame import ENTRY
from lakebed.wal.request import Request
from tests.waiting import until
from tests.wal.support import commit_at


@pytest.mark.parametrize("appends", range(1, 8))
def test_the_interval_syncs_however_quickly_the_next_append_comes(
    tmp_path: Path, appends: int
) -> None:
    config = WalConfig(sync=SyncMode.INTERVAL, sync_interval_ms=20, idle_mark_ms=40)
    with Wal.open(tmp_path / "log", config) as log:
        for _ in range(appends):
            log.append(b"x")
        until(lambda: log.stats().durable_index == appends and log.commits.tail.idle)


class Sly(Request):
    """Looks unfinished at first, and is finished when one looks again."""

    looks = 0

    @property
    def done(self) -> bool:  # type: ignore[override]
        self.looks += 1
        return self.looks > 1


def test_a_gate_that_is_made_too_late_stays_open(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        request = Sly(1, (b"x",), 1, flags=0, term=0)
        log.commits._join(request)
        assert request.gate is not None
        assert not request.gate.locked()


def test_iterating_ends_where_the_log_was_truncated_meanwhile(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:
        log.append_many([b"x"] * 1500)
        entries = log.entries()
        for _ in range(1000):
            next(entries)
        log.truncate(1000)
        assert list(entries) == []


def test_a_rotation_cut_short_before_the_disk_is_full_leaves_a_log_that_opens() -> None:
    sim = SimDisk()
    disk = FaultyDisk(sim)
    log = Wal.open("/log", WalConfig(file_bytes=4096, spare_files=0), disk=disk)
    log.append(b"a" * 2000)

    def strike(kind: str) -> None:
        if kind == "rename" and threading.current_thread() is threading.main_thread():
            disk.fault = Fault("preallocate", 1, errno.ENOSPC, lasting=True)
            raise KeyboardInterrupt

    sim.on_call = strike
    with pytest.raises(KeyboardInterrupt):
        log.append(b"b" * 3000)
    with pytest.raises(DiskFullError):
        log.append(b"c" * 3000)
    assert log.append(b"small") == 2
    log.close()
    sim.on_call = None
    with Wal.open("/log", WalConfig(file_bytes=4096), disk=sim) as log:
        assert [len(entry.payload) for entry in log.entries()] == [2000, 5]


def test_closing_says_so_when_what_was_acknowledged_was_never_synced(tmp_path: Path) -> None:
    disk = FaultyDisk(SimDisk())
    config = WalConfig(sync=SyncMode.INTERVAL, sync_interval_ms=5)
    log = Wal.open(tmp_path / "log", config, disk=disk)
    disk.fault = Fault("sync_data", disk.calls["sync_data"] + 1, errno.EIO, lasting=True)
    log.append(b"x")
    until(lambda: log.stats().poisoned)
    with pytest.raises(PoisonedError):
        log.close()


def test_a_callback_that_ends_the_thread_does_not_end_the_log(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log") as log:

        def leave(_: object) -> None:
            raise SystemExit

        log.append_async(b"first").add_done_callback(leave)
        assert log.append_async(b"second").result(600) == 2
        assert log.append(b"third") == 3


def test_a_failed_group_that_is_committed_again_keeps_its_unknown_outcome() -> None:
    """An exception can strike between the failure and the new tail; the group comes again then."""
    disk = FaultyDisk(SimDisk())
    log = Wal.open("/log", disk=disk, threaded=False)
    disk.fault = Fault("sync_data", disk.calls["sync_data"] + 1, errno.EIO, lasting=True)
    group = [Request(ENTRY, (b"x",), 1, flags=0, term=0)]
    tail = log.commits.tail
    commit_at(log, tail, group)
    commit_at(log, tail, group)
    assert isinstance(group[0].error, UnknownOutcomeError)
    later = [Request(ENTRY, (b"y",), 1, flags=0, term=0)]
    commit_at(log, tail, later)
    assert isinstance(later[0].error, PoisonedError)
