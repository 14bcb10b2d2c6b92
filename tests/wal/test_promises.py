"""Promises that need a special disk, thread or moment to be seen."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakebed.errors import EntryNotFoundError, EntryReleasedError
from lakebed.host import Mode, OsDisk
from lakebed.host.os_disk import OsFile
from lakebed.wal import SyncMode, Wal, WalConfig

PATIENCE_SECONDS = 20.0
SMALL = WalConfig(file_bytes=4096, spare_files=2, idle_mark_ms=1_000)


class HeldFile(OsFile):
    """A file whose syncs wait at the gate of its disk."""

    disk: HeldDisk

    def sync_data(self) -> None:
        self.disk.syncs += 1
        self.disk.arrived.set()
        assert self.disk.gate.wait(PATIENCE_SECONDS)
        super().sync_data()


class HeldDisk(OsDisk):
    """A disk that counts fdatasync, can hold it, and knows which of its files are in use."""

    def __init__(self) -> None:
        self.syncs = 0
        self.arrived = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.files: weakref.WeakSet[OsFile] = weakref.WeakSet()

    def open(self, path: Path, mode: Mode) -> OsFile:
        file = super().open(path, mode)
        file.__class__ = HeldFile
        assert isinstance(file, HeldFile)
        file.disk = self
        self.files.add(file)
        return file

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold every sync while the body runs."""
        self.arrived.clear()
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has no event."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def test_nothing_is_acknowledged_or_read_while_its_sync_is_under_way(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """Neither a caller, nor a future, nor a reader learns of an entry before it is synced."""
    disk = HeldDisk()
    with Wal.open(tmp_path / "log", SMALL, disk=disk) as log:
        log.append(b"before")
        with disk.holding():
            later = log.append_async(b"later")
            assert disk.arrived.wait(PATIENCE_SECONDS)
            caller = threads.submit(log.append, b"caller")
            assert log.read(2) == []
            assert log.wait(2, timeout=0.05) is False
            assert (log.last_index, log.stats().durable_index) == (1, 1)
            assert not later.done()
            assert not caller.done()
        assert later.result(PATIENCE_SECONDS) == 2
        assert caller.result(PATIENCE_SECONDS) == 3
        assert [bytes(entry.payload) for entry in log.entries()] == [b"before", b"later", b"caller"]


def test_every_caller_of_a_shared_group_returns(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """Callers with several entries each, committed together, are all woken."""
    disk = HeldDisk()
    with Wal.open(tmp_path / "log", SMALL, disk=disk) as log:
        callers: list[Future[range]] = []
        with disk.holding():
            first = threads.submit(log.append, b"first")
            assert disk.arrived.wait(PATIENCE_SECONDS)
            for count in (3, 1, 4, 2, 5):
                callers.append(threads.submit(log.append_many, [b"x"] * count))
            until(lambda: len(log._committer._queue) == 15)
        assert first.result(PATIENCE_SECONDS) == 1
        ranges = [caller.result(PATIENCE_SECONDS) for caller in callers]
    assert [len(each) for each in ranges] == [3, 1, 4, 2, 5]
    assert sorted(index for each in ranges for index in each) == list(range(2, 17))


def test_an_append_without_waiting_works_without_threads(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """In the mode that tests use, a future is settled when the call returns."""
    with Wal.open(tmp_path / "log", SMALL, threaded=False) as log:
        future = threads.submit(log.append_async, b"x").result(PATIENCE_SECONDS)
        assert future.result(0) == 1


def test_a_weaker_mode_calls_durable_only_what_it_has_synced(tmp_path: Path) -> None:
    """With `interval`, an entry becomes durable in the statistics by a sync, not by time."""
    config = WalConfig(sync=SyncMode.INTERVAL, sync_interval_ms=5, idle_mark_ms=1_000)
    disk = HeldDisk()
    with Wal.open(tmp_path / "log", config, disk=disk) as log:
        syncs = disk.syncs
        with disk.holding():
            assert log.append(b"x") == 1
            assert disk.arrived.wait(PATIENCE_SECONDS), "it was never synced"
            assert log.stats().durable_index == 0
        until(lambda: log.stats().durable_index == 1)
        assert disk.syncs > syncs


@pytest.mark.parametrize(
    ("change", "index", "error"),
    [
        (lambda log: log.release(40), 10, EntryReleasedError),
        (lambda log: log.truncate(30), 40, EntryNotFoundError),
    ],
    ids=["release", "truncate"],
)
def test_a_read_that_meets_a_change_says_so_and_not_that_the_log_is_damaged(
    tmp_path: Path, change: Callable[[Wal], None], index: int, error: type[Exception]
) -> None:
    """An entry that goes away between looking it up and reading it is gone, not lost."""
    with Wal.open(tmp_path / "log", SMALL, threaded=False) as log:
        log.append_many([bytes(500)] * 20)
        log.append_many([bytes(500)] * 30)
        stale = [log._committer.tail]
        change(log)
        now = log._reader._tail
        log._reader._tail = lambda: stale.pop() if stale else now()
        with pytest.raises(error):
            log.read(index)


def test_a_released_file_that_is_gone_before_it_is_opened_was_released(tmp_path: Path) -> None:
    """A reader that comes between the freeing of a file and its leaving the map is told why."""
    with Wal.open(tmp_path / "log", SMALL, threaded=False) as log:
        for _ in range(30):
            log.append(bytes(500))
        stale = [log._committer.tail]
        log._entries.drop_files_below = lambda number: None  # type: ignore[method-assign]
        log.release(25)
        now = log._reader._tail
        log._reader._tail = lambda: stale.pop() if stale else now()
        with pytest.raises(EntryReleasedError):
            log.read(1)


def test_files_are_closed_when_the_log_has_left_them(tmp_path: Path) -> None:
    """A rotated file is not held open: its space is free when it is released."""
    disk = HeldDisk()
    gc.disable()
    try:
        with Wal.open(tmp_path / "log", SMALL, disk=disk, threaded=False) as log:
            for _ in range(30):
                log.append(bytes(500))
            assert [file.path.suffix for file in disk.files] == [".wal"]
        assert [file.path for file in disk.files if file._descriptor >= 0] == []
    finally:
        gc.enable()
