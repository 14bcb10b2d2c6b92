"""Group commit: who shares a sync, who is told what, and what Ctrl-C may not break."""

from __future__ import annotations

import _thread
import errno
import itertools
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import chain
from pathlib import Path

import pytest

from lakebed import limits
from lakebed.errors import (
    ClosedError,
    DiskFullError,
    InvalidArgumentError,
    UnknownOutcomeError,
)
from lakebed.host import Fault, FaultyDisk, Mode, OsDisk, failpoints
from lakebed.host.os_disk import OsFile
from lakebed.wal import Wal, WalConfig


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


@pytest.mark.parametrize("writers", [2, 16, 64])
def test_many_writers_share_syncs_and_each_gets_its_own_index(tmp_path: Path, writers: int) -> None:
    each = 400 // writers
    got: dict[int, bytes] = {}
    with Wal.open(tmp_path / "log") as log:
        barrier = threading.Barrier(writers)

        def write(name: int) -> None:
            barrier.wait()
            for number in range(each):
                payload = b"%d/%d" % (name, number)
                got[log.append(payload)] = payload

        run_all([threading.Thread(target=write, args=(name,)) for name in range(writers)])
        counters = log.stats().counters
        assert counters.appends == writers * each
        assert counters.syncs < counters.appends
        assert {entry.index: bytes(entry.payload) for entry in log.entries()} == got
        assert sum(counters.entries_per_sync) == counters.groups


def test_a_writer_sees_its_own_entries_in_the_order_it_wrote_them(tmp_path: Path) -> None:
    with Wal.open(tmp_path / "log", WalConfig(file_bytes=8192)) as log:
        orders: dict[int, list[int]] = {name: [] for name in range(8)}

        def write(name: int) -> None:
            for _ in range(40):
                orders[name].append(log.append(b"%d" % name * 50))

        run_all([threading.Thread(target=write, args=(name,)) for name in orders])
        assert all(indexes == sorted(indexes) for indexes in orders.values())
        assert sorted(chain.from_iterable(orders.values())) == list(range(1, 321))


def test_an_append_is_not_acknowledged_before_its_sync(tmp_path: Path) -> None:
    events: list[str] = []

    class WatchedFile(OsFile):
        def sync_data(self) -> None:
            events.append("sync")
            super().sync_data()

    class WatchedDisk(OsDisk):
        def open(self, path: Path, mode: Mode) -> OsFile:
            file = super().open(path, mode)
            file.__class__ = WatchedFile
            return file

    with Wal.open(tmp_path / "log", disk=WatchedDisk()) as log:
        for number in range(5):
            events.clear()
            log.append(b"%d" % number)
            assert events == ["sync"]


def test_a_callback_of_a_future_may_append_but_not_wait(tmp_path: Path) -> None:
    refused: Future[str] = Future()
    second: Future[int] = Future()
    with Wal.open(tmp_path / "log") as log:

        def callback(done: Future[int]) -> None:
            try:
                log.append(b"would wait for itself")
            except InvalidArgumentError as error:
                refused.set_result(str(error))
            log.append_async(b"second").add_done_callback(lambda f: second.set_result(f.result()))

        log.append_async(b"first").add_done_callback(callback)
        assert "append_async" in refused.result(600)
        assert second.result(600) == 2


def test_closing_finishes_what_was_appended_and_refuses_the_rest(tmp_path: Path) -> None:
    log = Wal.open(tmp_path / "log")
    futures = [log.append_async(b"%d" % number) for number in range(200)]
    log.close()
    log.close()
    assert [future.result(0) for future in futures] == list(range(1, 201))
    for call in (lambda: log.append(b"x"), lambda: log.append_async(b"x"), log.flush):
        with pytest.raises(ClosedError, match="path="):
            call()
    with pytest.raises(ClosedError):
        log.read(1)
    with Wal.open(tmp_path / "log") as log:
        assert log.last_index == 200


def test_waiting_entries_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_BYTES_MAX", 100_000)
    with Wal.open(tmp_path / "log") as log:
        deepest = 0
        futures = []
        for _ in range(200):
            futures.append(log.append_async(b"x" * 10_000))
            deepest = max(deepest, log.commits._queued_bytes)
        assert [future.result(600) for future in futures] == list(range(1, 201))
        assert 50_000 < deepest < 125_000


def test_append_many_says_so_when_only_some_found_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GROUP_BYTES_MAX", 2_000)
    disk = FaultyDisk(OsDisk(), Fault("preallocate", 2, errno.ENOSPC, lasting=True))
    config = WalConfig(file_bytes=4096, spare_files=0)
    with Wal.open(tmp_path / "log", config, disk=disk, threaded=False) as log:
        with pytest.raises(UnknownOutcomeError, match="first=1 last=3"):
            log.append_many([b"x" * 1000] * 6)
        assert log.last_index == 3
        with pytest.raises(DiskFullError):
            log.append_many([b"x" * 1000] * 2)
        disk.fault = None
        assert log.append_many([b"x" * 1000] * 2) == range(4, 6)


def test_a_group_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_BYTES_MAX", 20_000)
    with Wal.open(tmp_path / "log") as log:
        log.append_many([b"x" * 5_000] * 20)
        assert log.stats().counters.groups == 7
        assert log.last_index == 20


@pytest.mark.parametrize("point", ["before_write", "written", "synced"])
def test_ctrl_c_in_the_middle_of_a_commit_neither_loses_nor_doubles(
    tmp_path: Path, point: str
) -> None:
    """The commit that Ctrl-C cut short is finished by another thread, once."""
    with Wal.open(tmp_path / "log", WalConfig(file_bytes=8192)) as log:
        log.append(b"before")
        original = getattr(failpoints._points[f"wal.group.{point}"], "_act", None)
        assert original is not None
        failpoints.arm(f"wal.group.{point}=delay:100")
        timer = threading.Timer(0.03, _thread.interrupt_main)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            log.append(b"interrupted")
            timer.join()
            signal.getsignal(signal.SIGINT)
        timer.join()
        assert log.append(b"after") == 3
        assert [bytes(entry.payload) for entry in log.entries()] == [
            b"before",
            b"interrupted",
            b"after",
        ]
    with Wal.open(tmp_path / "log") as log:
        assert log.last_index == 3


def test_ctrl_c_at_any_bytecode_leaves_a_log_that_works(tmp_path: Path) -> None:
    """Interrupts at many moments, while others write too.

    Nothing hangs, nothing is lost or doubled.
    """
    with Wal.open(tmp_path / "log", WalConfig(file_bytes=8192, spare_files=1)) as log:
        stop = threading.Event()
        acked: list[bytes] = []

        def background() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                payload = b"background %d" % number
                log.append(payload)
                acked.append(payload)

        def interrupt() -> None:
            while not stop.wait(0.003):
                _thread.interrupt_main()

        def strike(*_: object) -> None:
            if not stop.is_set():  # a late one would end the whole run
                raise KeyboardInterrupt

        threads = [threading.Thread(target=background), threading.Thread(target=interrupt)]
        before = signal.signal(signal.SIGINT, strike)
        try:
            mine = _write_through_interrupts(log, threads, stop)
        finally:
            signal.signal(signal.SIGINT, before)
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive()
        found = [bytes(entry.payload) for entry in log.entries()]
        assert len(found) == len(set(found))
        assert set(acked) | set(mine) <= set(found)


def _write_through_interrupts(
    log: Wal, threads: list[threading.Thread], stop: threading.Event
) -> list[bytes]:
    acked: list[bytes] = []
    numbers = itertools.count(1)
    threads[0].start()
    while not stop.is_set():
        try:
            if threads[1].ident is None:
                threads[1].start()
            # Twice: an interrupt may also strike between the inner handler and its loop.
            while not stop.is_set():
                try:
                    while (number := next(numbers)) <= 300:
                        payload = b"mine %d" % number
                        log.append(payload)
                        acked.append(payload)
                    stop.set()
                except KeyboardInterrupt:
                    continue
        except KeyboardInterrupt:
            continue
    threads[1].join()
    return acked
