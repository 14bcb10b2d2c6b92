"""Proof: whichever call to the disk fails, a log tells the truth and loses nothing it told."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from lakebed.errors import LakebedError
from lakebed.host import Disk, Fault, FaultyDisk, SimDisk
from tests.engine.support import inner
from tests.proof.engine_life import Life, Worker, open_log, small_transactions
from tests.proof.engine_writer import (
    SCRIPT,
    begin,
    compactable,
    end_pending,
    write_pending,
)
from tests.proof.scale import LONG, kept_on_failure, rng, trials
from tests.proof.simulated import save, simulation

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_engine_failing_disk.py"
KINDS = (
    "open",
    "read",
    "write",
    "map",
    "sync_data",
    "sync",
    "preallocate",
    "rename",
    "remove",
    "make_folder",
    "sync_folder",
    "names",
    "lock",
)


def _reopen(worker: Worker) -> None:
    """Close the log; it is opened again before the next step."""
    worker.quietly(worker.log.close)


STEPS = (
    Worker.prepare,
    Worker.append_batch,
    Worker.transaction,
    begin,
    write_pending,
    Worker.checkpoint,
    compactable,
    Worker.append_async,
    Worker.produce,
    Worker.checkpoint,
    Worker.retain,
    _reopen,
    end_pending,
    compactable,
    Worker.purge,
    Worker.checkpoint,
    Worker.retain,
    Worker.recreate,
    Worker.commit_offsets,
)
"""A short life that makes every kind of call."""


class FaultyLife(Life):
    """The life on a disk where one call fails; it opens the log again when the log has stopped."""

    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__(rng("engine-faults"), SCRIPT, disk)
        self.faulty = disk

    def live(self) -> None:
        """Live it to the end, whatever fails; every error is typed, or it comes out here."""
        for action in STEPS:
            worker = self._ready()
            if worker is None:
                return
            struck = self.faulty.hit
            worker.failure = None
            worker.do(action)
            if worker.failure is not None:
                known = self.faulty.hit or not isinstance(worker.failure, LakebedError)
                assert known, f"{worker.failure!r} on a healthy disk"
            if action is Worker.checkpoint and self.faulty.hit > struck:
                self._again(worker)
            if self.faulty.hit > struck and not self._stopped(worker):
                self._look(worker)

    def _ready(self) -> Worker | None:
        """Open the log if it is not open, or has stopped; None if it cannot be opened."""
        worker = self.worker
        if worker is not None and not self._stopped(worker):
            return worker
        if worker is not None:
            worker.quietly(worker.log.close)
        for _ in range(2):
            try:
                opened = self.open()
            except LakebedError:
                assert self.faulty.hit, "the log could not be opened on a healthy disk"
                continue
            if worker is not None:
                self._adopt(opened)
                opened.prepare()
            return opened
        fault = self.faulty.fault
        assert fault is not None and fault.lasting, "the log could not be opened again"
        return None

    def _adopt(self, worker: Worker) -> None:
        struck = self.faulty.hit
        try:
            self.ledger.adopt(worker.log)
        except LakebedError:
            assert self.faulty.hit > struck, "a healthy log could not be read"
            fault = self.faulty.fault
            if fault is not None and not fault.lasting:
                self.ledger.adopt(worker.log)

    def _stopped(self, worker: Worker) -> bool:
        log = worker.log
        return (
            inner(log).parts.lifecycle.closed
            or inner(log).parts.wal.stats().poisoned is not None
            or inner(log).parts.core.broken is not None
        )

    def _again(self, worker: Worker) -> None:
        """A checkpoint that failed is tried again, and writers go on meanwhile."""
        fault = self.faulty.fault
        if self._stopped(worker) or fault is None or fault.lasting:
            return
        worker.failure = None
        worker.append_batch()
        worker.checkpoint()
        assert worker.failure is None, f"the next checkpoint failed: {worker.failure!r}"

    def _look(self, worker: Worker) -> None:
        """Read everything; only a call that fails for reading excuses an error."""
        struck = self.faulty.hit
        try:
            self.ledger.check(worker.log)
        except LakebedError:
            assert self.faulty.hit > struck or self._stopped(worker)


class SiteDisk(FaultyDisk):
    """A disk that remembers the first call of each kind from each place of the code."""

    def __init__(self) -> None:
        super().__init__(SimDisk())
        self.sites: dict[tuple[object, ...], int] = {}

    def check(self, kind: str) -> int | None:
        """Count a call, and note where it comes from."""
        frame: FrameType | None = sys._getframe(1)
        site: list[object] = [kind]
        while frame is not None:
            name = frame.f_code.co_filename
            if "lakebed" in name and "host" not in name:
                site.append((name, frame.f_lineno))
            frame = frame.f_back
        self.sites.setdefault(tuple(site), self.calls[kind] + 1)
        return super().check(kind)


def _faults(kind: str, disk: SiteDisk) -> Iterator[Fault]:
    """Return a fault for each call site; in the long form for each call, also from there on."""
    first = sorted(nth for site, nth in disk.sites.items() if site[0] == kind)
    calls = list(range(1, disk.calls[kind] + 1)) if LONG else first
    for lasting in (False, True) if LONG else (False,):
        for number, nth in enumerate(calls):
            both = (errno.EIO, errno.ENOSPC)
            for each in both if LONG else (both[number % 2],):
                yield Fault(kind, nth, errno=each, lasting=lasting)
            if kind == "write" and (LONG or number % 3 == 0):
                yield Fault(kind, nth, short_bytes=nth * 37 % 200, lasting=lasting)


def _healthy() -> SiteDisk:
    disk = SiteDisk()
    FaultyLife(disk).live()
    return disk


@pytest.mark.parametrize("kind", KINDS)
@simulation("engine-faults")
@small_transactions()
def test_no_failing_call_breaks_a_promise_of_a_log(kind: str, tmp_path: Path) -> None:
    """Each call fails once: typed errors, nothing acknowledged is lost, checkpoints come again."""
    test = f"{FILE}::test_no_failing_call_breaks_a_promise_of_a_log[{kind}]"
    healthy = _healthy()
    assert healthy.calls[kind], f"the life never calls {kind}"
    assert set(healthy.calls) <= {*KINDS, "truncate"}, "a kind of call is not tested"
    for fault in _faults(kind, healthy):
        disk = SimDisk()
        faulty = FaultyDisk(disk, fault)
        with kept_on_failure(tmp_path, test, fault):
            try:
                life = FaultyLife(faulty)
                life.live()
                disk.locks.clear()
                life.ledger.adopt(open_log(disk, SCRIPT, life.clock))
            except BaseException:
                save(disk, tmp_path)
                raise
            assert faulty.hit, "the fault never struck"


def checkpoint_to(disk: Disk, worker: Worker) -> None:
    """Have the files of checkpoints, and those alone, written to another disk."""
    parts = inner(worker.log).parts
    parts.segment_folder.disk = parts.staging._disk = disk
    parts.checkpointer._snapshots._disk = disk


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "sync_folder"])
@simulation("engine-full")
@small_transactions()
def test_writers_go_on_while_checkpoints_fail(kind: str) -> None:
    """A checkpoint that cannot write its files says so; the next one that can catches up."""
    for nth in range(1, trials(4, 12)):
        disk = SimDisk()
        faulty = FaultyDisk(disk)
        life = FaultyLife(faulty)
        worker = life.open()
        for action in STEPS[:5]:
            worker.do(action)
        inner(worker.log).parts.wal.flush()
        lake = FaultyDisk(disk, Fault(kind, nth, errno=errno.ENOSPC, lasting=True))
        healthy = inner(worker.log).parts.segment_folder.disk
        checkpoint_to(lake, worker)
        for _ in range(2):
            worker.failure = None
            worker.checkpoint()
            assert (worker.failure is None) == (lake.hit == 0)
            worker.failure = None
            worker.append_batch()
            worker.transaction()
            assert worker.failure is None, f"writers are held up: {worker.failure!r}"
            life.ledger.check(worker.log)
        checkpoint_to(healthy, worker)
        worker.checkpoint()
        assert worker.failure is None, f"the next checkpoint failed: {worker.failure!r}"
        assert worker.log.stats().memtable_records == 0
        life.ledger.check(worker.log)
        worker.log.close()
        life.ledger.adopt(open_log(disk, SCRIPT, life.clock))
