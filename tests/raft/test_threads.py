"""Many threads share syncs, get their own indexes, and each learns what became of its own entry."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.errors import (
    DiskFullError,
    EntryReleasedError,
    NotContiguousError,
    PoisonedError,
    UnknownOutcomeError,
)
from lakebed.host import Fault, FaultyDisk, OsDisk, failpoints
from lakebed.raft import HardState, LogEntry, WalLog
from lakebed.raft.staging import ProposalStaging
from tests.raft.support import SMALL, entry, fill, picture, snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

THREADS = 8


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


def together(work: Callable[[int], None]) -> None:
    """Run `work` in several threads that begin at once; raise what one of them raised."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(run, number) for number in range(THREADS)]:
            future.result()


def test_proposals_of_many_threads_share_syncs(tmp_path: Path) -> None:
    with WalLog.open(tmp_path) as log:
        failpoints.arm("wal.group.written=delay:200")
        mine: dict[int, bytes] = {}

        def propose(number: int) -> None:
            for turn in range(25):
                payload = b"%d/%d" % (number, turn)
                mine[log.propose(payload, 1)] = payload

        together(propose)
        assert sorted(mine) == list(range(1, THREADS * 25 + 1))
        assert {each.index: bytes(each.payload) for each in log.entries(1)} == mine
        assert log.stats().durable_index == len(mine)
        assert log.stats().counters.syncs < len(mine)


def _read_all(log: WalLog) -> None:
    """Read from the first index, which may be released between the two calls."""
    try:
        found = log.entries(log.first_index)
    except EntryReleasedError:
        return
    for before, after in pairwise(found):
        assert after.index == before.index + 1


def test_everything_goes_on_while_snapshots_are_applied(tmp_path: Path) -> None:
    with WalLog.open(tmp_path, SMALL) as log:

        def work(number: int) -> None:
            for turn in range(30):
                index = log.propose(b"%d/%d" % (number, turn), 1)
                if number == 0:
                    log.apply_snapshot(snapshot(index, 1, b"at %d" % index))
                elif number == 1:
                    log.set_hard_state(HardState(turn, number))
                elif number == 2:
                    held = log.snapshot()
                    assert held is None or held.data == b"at %d" % held.index
                else:
                    _read_all(log)

        together(work)
        assert log.last_index == THREADS * 30
        assert log.hard_state == HardState(29, 1)
        before = picture(log)
    with WalLog.open(tmp_path, SMALL) as log:
        assert picture(log) == before


def test_a_full_disk_is_told_to_everyone_whose_entry_is_not_there(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    with WalLog.open(tmp_path, SMALL, disk=disk) as log:
        fill(log, 2)
        taken: dict[int, bytes] = {}
        refused: list[DiskFullError] = []
        nth = disk.calls["preallocate"] + 1
        disk.fault = Fault("preallocate", nth, errno=errno.ENOSPC, lasting=True)

        def propose(number: int) -> None:
            for turn in range(20):
                payload = b"%d/%d" % (number, turn) * 20
                try:
                    index = log.propose(payload, 1)
                except DiskFullError as error:
                    refused.append(error)
                else:
                    assert index not in taken
                    taken[index] = payload

        together(propose)
        disk.fault = None
        assert refused
        assert sorted(taken) == list(range(3, log.last_index + 1))
        assert {each.index: bytes(each.payload) for each in log.entries(3)} == taken
        assert log.propose(b"again", 1) == log.last_index


# The staging of entries, with a WAL that does what the test says


class FakeWal:
    """Takes groups, one at a time, when the test lets it."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.groups: list[list[int]] = []
        self.entered = threading.Semaphore(0)
        self.outcomes: list[Callable[[], BaseException | None]] = []
        self.staging = ProposalStaging(self.write, lambda: len(self.taken))

    def write(self, entries: Sequence[LogEntry]) -> None:
        group = [each.index for each in entries]
        self.groups.append(group)
        self.entered.release()
        error = self.outcomes.pop(0)() if self.outcomes else None
        if error is not None:
            raise error
        self.taken += group

    def propose(self, pool: ThreadPoolExecutor, index: int) -> Future[None]:
        """Stage an entry now, and wait for it in another thread."""
        with self.staging.guard:
            group = self.staging.add([entry(index)])

        def wait() -> None:
            self.staging.wait(group)
            group.check(index)

        return pool.submit(wait)

    def held(self, error: BaseException | None = None) -> threading.Event:
        """Hold the next group until the event is set; then take it, or fail."""
        event = threading.Event()

        def outcome() -> BaseException | None:
            assert event.wait(600)
            return error

        self.outcomes.append(outcome)
        return event


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as made:
        yield made


def test_what_arrives_during_a_write_is_the_next_group(pool: ThreadPoolExecutor) -> None:
    wal = FakeWal()
    go = wal.held()
    waiting = [wal.propose(pool, 1)]
    wal.entered.acquire()
    waiting += [wal.propose(pool, index) for index in range(2, 7)]
    go.set()
    for future in waiting:
        future.result(600)
    assert wal.groups == [[1], [2, 3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("error", "told", "told_behind"),
    [
        (DiskFullError("full"), DiskFullError, DiskFullError),
        (UnknownOutcomeError("failed"), UnknownOutcomeError, PoisonedError),
    ],
)
def test_what_waits_behind_a_failed_group_is_dropped_with_it(
    pool: ThreadPoolExecutor,
    error: Exception,
    told: type[Exception],
    told_behind: type[Exception],
) -> None:
    wal = FakeWal()
    go = wal.held(error)
    first = wal.propose(pool, 1)
    wal.entered.acquire()
    second = wal.propose(pool, 2)
    go.set()
    with pytest.raises(told):
        first.result(600)
    with pytest.raises(told_behind):
        second.result(600)
    assert wal.groups == [[1]]
    wal.propose(pool, 1).result(600)
    assert wal.groups == [[1], [1]]


def test_of_a_group_that_was_taken_in_part_each_learns_its_own(pool: ThreadPoolExecutor) -> None:
    wal = FakeWal()
    with wal.staging.guard:
        group = wal.staging.add([entry(1), entry(2)])
    wal.taken = [1]
    wal.held(DiskFullError("full")).set()
    wal.staging.wait(group)
    group.check(1)
    with pytest.raises(DiskFullError):
        group.check(2)


def test_an_interrupted_write_is_finished_by_whoever_waits(pool: ThreadPoolExecutor) -> None:
    wal = FakeWal()
    go = wal.held(KeyboardInterrupt())
    first = wal.propose(pool, 1)
    wal.entered.acquire()
    second = wal.propose(pool, 2)
    go.set()
    with pytest.raises(KeyboardInterrupt):
        first.result(600)
    second.result(600)
    assert (wal.groups, wal.taken) == ([[1], [1], [2]], [1, 2])


def test_an_interrupted_write_that_nobody_waits_for_is_finished_by_the_next(
    pool: ThreadPoolExecutor,
) -> None:
    wal = FakeWal()
    wal.held(KeyboardInterrupt()).set()
    with pytest.raises(KeyboardInterrupt):
        wal.propose(pool, 1).result(600)
    with wal.staging.guard:
        assert wal.staging.find(0, 9) == [entry(1)]
    with wal.staging.alone():
        wal.staging.drain()
    assert wal.taken == [1]


def test_being_alone_goes_before_the_next_group(pool: ThreadPoolExecutor) -> None:
    wal = FakeWal()
    go = wal.held()
    first = wal.propose(pool, 1)
    wal.entered.acquire()
    inside, leave = threading.Event(), threading.Event()

    def be_alone() -> None:
        with wal.staging.alone():
            inside.set()
            assert leave.wait(600)

    alone = pool.submit(be_alone)
    go.set()
    first.result(600)
    assert inside.wait(600)
    second = wal.propose(pool, 2)
    assert wal.groups == [[1]]
    leave.set()
    alone.result(600)
    second.result(600)
    assert wal.groups == [[1], [2]]


# A thread learns of its own loss


def test_an_append_that_another_threads_sync_lost_is_told_to_its_own_thread(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    disk = FaultyDisk(OsDisk())
    with WalLog.open(tmp_path, SMALL, disk=disk) as log:
        for told_at in ("sync", "append"):
            log.append([entry(1, 1, b"x" * 9000)])
            nth = disk.calls["preallocate"] + 1
            disk.fault = Fault("preallocate", nth, errno=errno.ENOSPC, lasting=True)
            with pytest.raises(DiskFullError):
                pool.submit(log.sync).result(600)
            assert log.last_index == 0
            with pytest.raises(DiskFullError):
                log.sync() if told_at == "sync" else log.append([entry(1)])
            disk.fault = None
            log.sync()


def test_an_entry_staged_while_the_log_is_cut_is_refused(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WalLog.open(tmp_path, SMALL) as log:
        fill(log, 5)
        truncate = log._wal.truncate

        def truncate_with_company(last: int) -> None:
            proposals.append(pool.submit(log.propose, b"too late", 1))
            while log.last_index == 5:
                proposals[0].done()
            truncate(last)

        proposals: list[Future[int]] = []
        monkeypatch.setattr(log._wal, "truncate", truncate_with_company)
        log.truncate_suffix(3)
        with pytest.raises(NotContiguousError):
            proposals[0].result(600)
        assert log.last_index == 2
        assert log.propose(b"in time", 1) == 3
