"""Promises that need a special disk, thread or moment to be seen."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from typing import TypeVar

import pytest

from lakebed.errors import EntryNotFoundError, EntryReleasedError
from lakebed.host import Mode, OsDisk, SimDisk, Survival
from lakebed.host.os_disk import OsFile
from lakebed.wal import SyncMode, Wal, WalConfig
from tests.waiting import PATIENCE_SECONDS, until
from tests.wal.support import entries_waiting, read_behind

T = TypeVar("T")
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


def started(call: Callable[[], T]) -> Future[T]:
    """Run a call in a thread that a test which fails can leave behind."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def test_nothing_is_acknowledged_or_read_while_its_sync_is_under_way(tmp_path: Path) -> None:
    """Neither a caller, nor a future, nor a reader learns of an entry before it is synced."""
    disk = HeldDisk()
    with Wal.open(tmp_path / "log", SMALL, disk=disk) as log:
        log.append(b"before")
        with disk.holding():
            later = log.append_async(b"later")
            assert disk.arrived.wait(PATIENCE_SECONDS)
            caller = started(lambda: log.append(b"caller"))
            assert log.read(2) == []
            assert log.wait(2, timeout=0.05) is False
            assert (log.last_index, log.stats().durable_index) == (1, 1)
            assert not later.done()
            assert not caller.done()
        assert later.result(PATIENCE_SECONDS) == 2
        assert caller.result(PATIENCE_SECONDS) == 3
        assert [bytes(entry.payload) for entry in log.entries()] == [b"before", b"later", b"caller"]


def test_every_caller_of_a_shared_group_returns(tmp_path: Path) -> None:
    """Callers with several entries each, committed together, are all woken."""
    disk = HeldDisk()
    with Wal.open(tmp_path / "log", SMALL, disk=disk) as log:
        callers: list[Future[range]] = []
        with disk.holding():
            first = started(lambda: log.append(b"first"))
            assert disk.arrived.wait(PATIENCE_SECONDS)
            for count in (3, 1, 4, 2, 5):
                callers.append(started(partial(log.append_many, [b"x"] * count)))
            until(lambda: len(entries_waiting(log)) == 15)
        assert first.result(PATIENCE_SECONDS) == 1
        ranges = [caller.result(PATIENCE_SECONDS) for caller in callers]
    assert [len(each) for each in ranges] == [3, 1, 4, 2, 5]
    assert sorted(index for each in ranges for index in each) == list(range(2, 17))


def test_an_append_without_waiting_works_without_threads(tmp_path: Path) -> None:
    """In the mode that tests use, a future is settled when the call returns."""
    with Wal.open(tmp_path / "log", SMALL, threaded=False) as log:
        future = started(lambda: log.append_async(b"x")).result(PATIENCE_SECONDS)
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
        read_behind(log, lambda: change(log))
        with pytest.raises(error):
            log.read(index)


def test_a_released_file_that_is_gone_before_it_is_opened_was_released(tmp_path: Path) -> None:
    """A reader that comes between the freeing of a file and its leaving the map is told why."""
    with Wal.open(tmp_path / "log", SMALL, threaded=False) as log:
        for _ in range(30):
            log.append(bytes(500))
        log._entries.drop_files_below = lambda file_number: None  # type: ignore[method-assign]
        read_behind(log, lambda: log.release(25))
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


def test_a_file_is_not_used_again_before_its_old_name_is_surely_gone() -> None:
    """A power cut while a file just recycled gets its new header: the old name is not its name.

    Another thread takes the file while this one is still freeing the next.
    """
    disk, cuts, freed = SimDisk(), Queue[SimDisk](), threading.Event()
    log = Wal.open("/log", SMALL, disk=disk, threaded=False)
    for number in range(20):
        log.append(bytes([number]) * 1_000)
    calls: Counter[str] = Counter()
    this_thread = threading.current_thread()

    def on_call(kind: str) -> None:
        if threading.current_thread() is not this_thread:
            calls["other " + kind] += 1
            if calls["other sync"] == 2:  # the file in use, then the header of the next
                cuts.put(disk.crash(Survival.LOST, random.Random(1)))
                freed.wait(PATIENCE_SECONDS)
            return
        calls[kind] += 1
        if kind == "rename" and calls[kind] == 2:
            started(lambda: log.append(bytes(3_000)))
            cuts.put(cuts.get(timeout=PATIENCE_SECONDS))

    disk.on_call = on_call
    try:
        log.release(15)
    finally:
        freed.set()
    with Wal.open("/log", SMALL, disk=cuts.get(timeout=0), threaded=False) as after:
        assert [entry.payload[0] for entry in after.entries(16)] == [15, 16, 17, 18, 19]


def test_a_torn_tail_is_surely_gone_before_anything_is_written_in_its_place() -> None:
    """A power cut while a repaired log gets its first frame: the rest of the tail is not there.

    The torn write had two frames. The first, at the end of a sector, is bad; the second is whole,
    and stands where the next frame will end.
    """
    disk = SimDisk()
    log = Wal.open("/log", SMALL, disk=disk, threaded=False)
    log.append(bytes((448 - log.commits.tail.position - 64) % 512))
    torn = log.commits.tail.position
    assert torn % 512 == 448
    log.append_many([b"", b"whole"])
    contents = disk.contents()
    path = next(path for path in contents if path.suffix == ".wal")
    data = bytearray(contents[path])
    data[torn + 5] ^= 1
    for seed in range(30):
        left = SimDisk()
        for name, content in contents.items():
            left.put(name, bytes(data) if name == path else content)
        _open_under_power_cuts(left, random.Random(seed))


def _open_under_power_cuts(disk: SimDisk, chance: random.Random) -> None:
    def cut(_: str) -> None:
        after = disk.crash(Survival.TORN_512, chance)
        with Wal.open("/log", SMALL, disk=after, threaded=False) as log:
            assert log.last_index == 1

    disk.on_call = cut
    Wal.open("/log", SMALL, disk=disk, threaded=False)


def test_a_release_outlives_the_file_it_was_written_to(tmp_path: Path) -> None:
    """The file that holds the last release may itself be freed when the log is opened."""
    log = Wal.open(tmp_path / "log", SMALL, threaded=False)
    log.append(bytes(3_000))
    log.release(1, b"held elsewhere")
    log.append(bytes(3_000))
    log.close()
    for _ in range(3):
        with Wal.open(tmp_path / "log", SMALL, threaded=False) as log:
            assert (log.mark.index, log.mark.note, log.last_index) == (1, b"held elsewhere", 2)
            assert log.stats().files == 1


def test_a_recycled_file_ends_where_it_was_last_written(tmp_path: Path) -> None:
    """Old frames behind the end are neither taken for a torn write nor for damage."""
    sizes = random.Random(1)
    for round_number in range(1, 11):
        with Wal.open(tmp_path / "log", SMALL, threaded=False) as log:
            recovery = log.stats().recovery
            assert (recovery.torn_bytes, recovery.torn_kept_in) == (0, None)
            for _ in range(20):
                log.append(b"x" * sizes.randrange(900))
            log.release(log.last_index - 10)
            assert round_number == 1 or log.stats().counters.recycled_files


class PausedMutex:
    """A lock that holds a thread after releasing it, once `when` holds, until the gate opens."""

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock
        self.when: Callable[[], bool] = lambda: False
        self.arrived = threading.Event()
        self.gate = threading.Event()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        if self.when() and not self.arrived.is_set():
            self.arrived.set()
            assert self.gate.wait(PATIENCE_SECONDS)


def test_a_flush_that_comes_late_lets_nobody_wait(tmp_path: Path) -> None:
    """Waking goes on behind an entry that a flush chose to wait for, and that was done before."""
    disk = HeldDisk()
    with Wal.open(tmp_path / "log", SMALL, disk=disk) as log:
        mutex = PausedMutex(log.commits._mutex)
        log.commits._mutex = mutex  # type: ignore[assignment]
        with disk.holding():
            calls = [started(lambda: log.append(b"first"))]
            assert disk.arrived.wait(PATIENCE_SECONDS)
            log.append_async(b"nobody waits")
            chosen = entries_waiting(log)[0]
            mutex.when = lambda: chosen.gate is not None
            flushed = started(log.flush)
            assert mutex.arrived.wait(PATIENCE_SECONDS)
            calls += [started(lambda: log.append(b"behind")) for _ in range(4)]
            until(lambda: len(entries_waiting(log)) == 5)
        until(lambda: log.last_index == 6)
        mutex.gate.set()
        flushed.result(PATIENCE_SECONDS)
        assert sorted(call.result(PATIENCE_SECONDS) for call in calls) == [1, 3, 4, 5, 6]
