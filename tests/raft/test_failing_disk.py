"""A disk that fails at any call gives a typed error, and nothing that was durable is lost."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from lakebed import limits
from lakebed.config import SyncMode, WalConfig
from lakebed.errors import (
    DiskFullError,
    LakebedError,
    PoisonedError,
    RejectedError,
    StopError,
    UnknownOutcomeError,
)
from lakebed.host import Fault, FaultyDisk, SimDisk, Survival, failpoints
from lakebed.raft import HardState, WalLog
from tests.raft.support import configuration, entry, fill, open_sim, picture, snapshot
from tests.raft.test_power_cut import CHANGES

NEW = snapshot(12, 3, b"new" * 2000, (4, 5))


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


def prepared() -> tuple[SimDisk, FaultyDisk, WalLog]:
    sim = SimDisk()
    faulty = FaultyDisk(sim)
    log = open_sim(faulty)
    fill(log, 4)
    log.apply_snapshot(snapshot(3, data=b"the first"))
    log.set_hard_state(HardState(5, 2))
    fill(log, 20, term=3, payload_bytes=700)
    return sim, faulty, log


def reopened(sim: SimDisk, log: WalLog) -> WalLog:
    """Open again as after the process's end: its lock is gone, its log was not closed."""
    sim.locks.clear()
    return open_sim(sim)


def _calls(change: str) -> list[tuple[str, int]]:
    """List every call that a change makes, as kind and number within the kind."""
    _, faulty, log = prepared()
    picture(log)  # it maps files, as it does before the call that fails
    faulty.calls.clear()
    CHANGES[change](log)
    return [(kind, nth) for kind, count in faulty.calls.items() for nth in range(1, count + 1)]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_failing_call_gives_a_typed_error_and_loses_nothing(
    change: str, lasting: bool, number: int
) -> None:
    calls = _calls(change)
    assert calls
    for kind, nth in calls:
        sim, faulty, log = prepared()
        before = picture(log)
        faulty.calls.clear()
        faulty.fault = Fault(kind, nth, errno=number, lasting=lasting)
        outcome: LakebedError | None = None
        try:
            CHANGES[change](log)
        except LakebedError as error:
            outcome = error
        assert faulty.hit, (kind, nth)
        faulty.fault = None
        shown = picture(log)
        found = picture(reopened(sim, log))
        if outcome is None:
            assert found == shown != before, (kind, nth)
        elif isinstance(outcome, UnknownOutcomeError):
            assert shown == before, (kind, nth)
        else:
            assert found == shown == before, (kind, nth, outcome)


@pytest.mark.parametrize("change", [change for change in CHANGES if "snapshot" in change])
def test_a_refused_snapshot_can_be_applied_later(change: str) -> None:
    for kind, nth in _calls(change):
        sim, faulty, log = prepared()
        faulty.calls.clear()
        faulty.fault = Fault(kind, nth, errno=errno.ENOSPC)
        try:
            CHANGES[change](log)
        except RejectedError:
            faulty.fault = None
            CHANGES[change](log)
        except LakebedError:
            continue
        assert log.snapshot_index > 3
        fill(log, log.last_index + 3, term=9)
        assert picture(reopened(sim, log)) == picture(log)
        assert _snapshots(sim) == 1


def _snapshots(sim: SimDisk) -> int:
    return sum(path.parent.name == "snapshots" for path in sim.contents())


def test_a_short_write_is_finished() -> None:
    sim, faulty, log = prepared()
    faulty.calls.clear()
    faulty.fault = Fault("write", 1, short_bytes=100)
    log.apply_snapshot(NEW)
    assert faulty.hit == 1
    assert log.snapshot() == NEW
    assert reopened(sim, log).snapshot() == NEW


@pytest.mark.parametrize("step", ["written", "synced", "renamed", "folder_synced"])
def test_a_failure_between_the_steps_leaves_the_old_snapshot(step: str) -> None:
    sim, _, log = prepared()
    before = picture(log)
    failpoints.arm(f"raft.snapshot.{step}=error")
    with pytest.raises(StopError, match="failpoint"):
        log.apply_snapshot(NEW)
    assert picture(log) == before
    assert _snapshots(sim) == 1
    log.apply_snapshot(NEW)
    assert log.snapshot() == NEW
    assert picture(reopened(sim, log)) == picture(log)


@pytest.mark.parametrize("step", ["before_remove", "removed"])
def test_freeing_that_fails_does_not_fail_the_snapshot(
    step: str, caplog: pytest.LogCaptureFixture
) -> None:
    sim, _, log = prepared()
    failpoints.arm(f"raft.snapshot.{step}=error")
    log.apply_snapshot(NEW)
    assert "could not be removed yet" in caplog.text
    assert log.snapshot() == NEW
    assert reopened(sim, log).snapshot() == NEW
    assert _snapshots(sim) == 1


def test_an_old_snapshot_that_stayed_is_removed_with_the_next() -> None:
    sim, faulty, log = prepared()
    faulty.fault = Fault("remove", 1, errno=errno.EIO, lasting=True)
    log.apply_snapshot(NEW)
    assert _snapshots(sim) == 2
    faulty.fault = None
    log.apply_snapshot(snapshot(15, 3))
    assert _snapshots(sim) == 1


# Entries that the WAL refuses


def test_a_full_disk_takes_back_what_was_staged() -> None:
    sim, faulty, log = prepared()
    before = picture(log)
    log.append([entry(index, 3, b"y" * 900) for index in range(21, 30)])
    faulty.fault = Fault("preallocate", faulty.calls["preallocate"] + 1, errno.ENOSPC, lasting=True)
    with pytest.raises(DiskFullError):
        log.sync()
    assert picture(log) == before
    faulty.fault = None
    log.sync()
    fill(log, 25, term=3, payload_bytes=900)
    assert picture(reopened(sim, log)) == picture(log)


def test_what_the_wal_took_before_it_was_full_stays() -> None:
    sim, faulty, log = prepared()
    log.append([entry(21, 3, b"first"), entry(22, 4, b"y" * 9000), entry(23, 5, b"small")])
    faulty.fault = Fault("preallocate", faulty.calls["preallocate"] + 1, errno.ENOSPC, lasting=True)
    with pytest.raises(DiskFullError):
        log.sync()
    assert (log.last_index, bytes(log.entry(21).payload)) == (21, b"first")
    assert picture(reopened(sim, log)) == picture(log)


def test_what_stands_behind_a_refused_entry_does_not_take_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GROUP_BYTES_MAX", 1000)
    sim, faulty, log = prepared()
    before = picture(log)
    log.append([entry(21, 3, b"y" * 9000), entry(22, 3, b"small"), entry(23, 3, b"too")])
    faulty.fault = Fault("preallocate", faulty.calls["preallocate"] + 1, errno.ENOSPC, lasting=True)
    with pytest.raises(DiskFullError):
        log.sync()
    assert picture(log) == before
    assert picture(reopened(sim, log)) == before


def test_a_configuration_that_was_not_written_is_not_in_force() -> None:
    _, faulty, log = prepared()
    before = log.membership()
    log.append([configuration(21, 3, NEW.membership), entry(22, 3, b"y" * 9000)])
    assert log.membership() == NEW.membership
    faulty.fault = Fault("preallocate", faulty.calls["preallocate"] + 1, errno.ENOSPC, lasting=True)
    log.append([configuration(23, 3, before)])
    with pytest.raises(DiskFullError):
        log.sync()
    assert log.membership() == (before if log.last_index == 20 else NEW.membership)


def test_a_full_disk_does_not_keep_a_snapshot_from_freeing_it() -> None:
    sim, faulty, log = prepared()
    log.append([entry(21, 3, b"y" * 9000)])
    faulty.calls.clear()
    faulty.fault = Fault("preallocate", 1, errno.ENOSPC)
    log.apply_snapshot(NEW)
    assert (log.snapshot_index, log.last_index) == (12, 20)
    with pytest.raises(DiskFullError):
        log.sync()
    assert picture(reopened(sim, log)) == picture(log)


@pytest.mark.parametrize("kind", ["write", "sync_data"])
def test_a_poisoned_log_says_so_and_shows_what_is_durable(kind: str) -> None:
    sim, faulty, log = prepared()
    before = picture(log)
    faulty.fault = Fault(kind, faulty.calls[kind] + 1, errno=errno.EIO)
    log.append([entry(21, 3)])
    with pytest.raises(UnknownOutcomeError):
        log.sync()
    faulty.fault = None
    assert picture(log) == before
    for change in CHANGES.values():
        with pytest.raises(PoisonedError):
            change(log)
    with pytest.raises(PoisonedError):
        log.propose(b"", 3)
    assert picture(log) == before
    assert _snapshots(sim) == 1
    found = reopened(sim, log)
    assert found.last_index in (20, 21)
    assert picture(found).entries[: len(before.entries)] == before.entries


@pytest.mark.parametrize("mode", SyncMode)
def test_a_proposal_is_durable_or_fails_in_every_sync_mode(mode: SyncMode) -> None:
    sim = SimDisk()
    faulty = FaultyDisk(sim)
    log = open_sim(faulty, WalConfig(file_bytes=4096, sync=mode, spare_files=0))
    log.propose(b"durable", 1)
    faulty.fault = Fault("sync_data", faulty.calls["sync_data"] + 1, errno=errno.EIO)
    with pytest.raises(UnknownOutcomeError):
        log.propose(b"written, and not known to be synced", 1)
    assert log.stats().durable_index == 1


@pytest.mark.parametrize("mode", SyncMode)
def test_what_was_taken_before_a_refusal_is_durable_in_every_sync_mode(mode: SyncMode) -> None:
    sim = SimDisk()
    faulty = FaultyDisk(sim)
    log = open_sim(faulty, WalConfig(file_bytes=4096, sync=mode, spare_files=0))
    log.append([entry(1, 1, b"taken"), entry(2, 2, b"y" * 9000)])
    nth = faulty.calls["preallocate"] + 1
    faulty.fault = Fault("preallocate", nth, errno=errno.ENOSPC, lasting=True)
    with pytest.raises(DiskFullError):
        log.sync()
    assert log.last_index == 1
    found = open_sim(sim.crash(Survival.LOST, random.Random(1)))
    assert found.entries(1) == [entry(1, 1, b"taken")]


def test_after_a_mark_of_unknown_outcome_both_snapshots_are_kept() -> None:
    sim, faulty, log = prepared()
    faulty.fault = Fault("sync_data", faulty.calls["sync_data"] + 1, errno=errno.EIO)
    with pytest.raises(UnknownOutcomeError):
        log.apply_snapshot(NEW)
    faulty.fault = None
    assert _snapshots(sim) == 2
    with pytest.raises(PoisonedError):
        log.apply_snapshot(snapshot(12, 3, b"another with the same index"))
    found = reopened(sim, log)
    assert found.snapshot() in (snapshot(3, data=b"the first"), NEW)
    assert _snapshots(sim) == 1
