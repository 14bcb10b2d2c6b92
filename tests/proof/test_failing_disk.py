"""Proof: whichever call to the disk fails, what was told stays true and nothing is told wrongly."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakebed.errors import DiskFullError, LakebedError, UnknownOutcomeError
from lakebed.host import Fault, FaultyDisk, OsDisk
from lakebed.wal import Wal
from tests.proof.mounts import needs_mounts, quick_folder, run_privately
from tests.proof.scale import LONG, kept_on_failure, trials
from tests.proof.script import CONFIG, LifeOverError, Script

_KINDS = (
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
_TEST = "tests/proof/test_failing_disk.py::test_no_failing_call_breaks_a_promise"
_ROUNDS = trials(1, 3)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a quick folder: these are thousands of lives, and none needs a real disk."""
    with tempfile.TemporaryDirectory(dir=quick_folder()) as name:
        yield Path(name)


class FaultyLife(Script):
    """The scripted life on a disk where one call fails, and what each call may say then."""

    def __init__(self, folder: Path, disk: FaultyDisk) -> None:
        super().__init__(folder, lambda line: None, disk=disk, threaded=False)
        self.faulty = disk

    def _entries(self, words: list[str], call: Callable[[], list[int]]) -> str:
        return self._watched(lambda: super(FaultyLife, self)._entries(words, call))

    def _mark(self, what: str, value: str, call: Callable[..., None], *arguments: object) -> str:
        return self._watched(lambda: super(FaultyLife, self)._mark(what, value, call, *arguments))

    def _watched(self, call: Callable[[], str]) -> str:
        """Compare what a call says with what the disk did in it."""
        was_poisoned, hits = self._poisoned(), self.faulty.hit
        outcome = call()
        fault = self.faulty.fault
        if was_poisoned:
            assert self._poisoned(), "a poisoned log is usable again without being reopened"
            assert outcome == "refused", f"a poisoned log said {outcome}"
        elif fault is not None and self.faulty.hit > hits:
            self._struck(fault, outcome)
        else:
            assert outcome == "ack", "a healthy disk was not used"
        return outcome

    def _struck(self, fault: Fault, outcome: str) -> None:
        if not fault.errno:
            assert outcome == "ack", "a short write must be completed"
        elif fault.kind in ("write", "sync_data", "sync"):
            assert outcome == "unknown", f"a failed {fault.kind} was told as {outcome}"
            assert self._poisoned(), f"a failed {fault.kind} did not poison the log"
            self.look()
        elif fault.kind == "preallocate":
            assert outcome != "ack", "acknowledged without a file to write it to"
            assert outcome == "refused" or fault.errno != errno.ENOSPC, "full is not unknown"
            assert not self._poisoned(), "the log is whole, yet it is poisoned"

    def _poisoned(self) -> bool:
        return self.log.stats().poisoned is not None

    def look(self) -> None:
        """Read everything; only a call that fails for reading excuses an error."""
        hits = self.faulty.hit
        try:
            super().look()
        except LakebedError:
            if self.faulty.hit == hits:
                raise


def _healthy_calls(folder: Path) -> Counter[str]:
    """Count the calls of each kind in a life where nothing fails."""
    disk = FaultyDisk(OsDisk())
    FaultyLife(folder, disk).live(_ROUNDS)
    return disk.calls


def _faults(kind: str, count: int) -> Iterator[Fault]:
    """Return each fault of a kind: at every call; in the long form also from that call on."""
    for lasting in (False, True) if LONG else (False,):
        for nth in range(1, count + 1):
            for number in (errno.EIO, errno.ENOSPC):
                yield Fault(kind, nth, errno=number, lasting=lasting)
            if kind == "write":
                yield Fault(kind, nth, short_bytes=nth * 37 % 200, lasting=lasting)


def _run(folder: Path, fault: Fault) -> int:
    """Live with a fault, then reopen on a healthy disk and go on; return how often it struck."""
    disk = FaultyDisk(OsDisk(), fault)
    life = FaultyLife(folder, disk)
    try:
        life.live(_ROUNDS)
    except LifeOverError:
        assert fault.lasting, "the log could not be opened though the disk was healthy again"
    with Wal.open(folder, CONFIG, threaded=False) as log:
        life.ledger.adopt(log)
        log.release(log.append(b"the log goes on"))
    return disk.hit


@pytest.mark.proof
@pytest.mark.parametrize("kind", _KINDS)
def test_no_failing_call_breaks_a_promise(kind: str, folder: Path) -> None:
    """Each call fails once (EIO, ENOSPC, short): typed errors, no lie, and nothing acked is lost.

    A failed write or sync poisons; a file that cannot be made does not; reading goes on.
    """
    calls = _healthy_calls(folder / "healthy")
    assert calls[kind], f"the script never calls {kind}"
    assert set(calls) <= set(_KINDS), "the script makes a kind of call that is not tested"
    for fault in _faults(kind, calls[kind]):
        life = folder / "life"
        with kept_on_failure(life, f"{_TEST}[{kind}]", fault):
            assert _run(life, fault), "the fault never struck"
        shutil.rmtree(life)


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["preallocate", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_rejects_and_the_log_goes_on(kind: str, number: int, tmp_path: Path) -> None:
    """Without space for the next file appends are rejected; with space back they are accepted."""
    disk = FaultyDisk(OsDisk())
    with Wal.open(tmp_path / "log", CONFIG, disk=disk, threaded=False) as log:
        log.append(bytes(7_000))
        disk.fault = Fault(kind, disk.calls[kind] + 1, errno=number, lasting=True)
        for _ in range(3):
            with pytest.raises(DiskFullError):
                log.append(bytes(2_000))
        assert log.append(b"fits the file in use") == 2
        disk.fault = None
        assert log.append(bytes(2_000)) == 3
        assert log.stats().poisoned is None
    with Wal.open(tmp_path / "log", CONFIG, threaded=False) as log:
        assert [len(entry.payload) for entry in log.entries()] == [7_000, 20, 2_000]


@pytest.mark.proof
def test_a_failed_sync_is_never_made_good_by_a_later_one(tmp_path: Path) -> None:
    """After one failed fdatasync nothing is acknowledged, though the disk would sync again."""
    disk = FaultyDisk(OsDisk())
    log = Wal.open(tmp_path / "log", CONFIG, disk=disk, threaded=False)
    log.append(b"durable")
    disk.fault = Fault("sync_data", disk.calls["sync_data"] + 1, errno=errno.EIO)
    with pytest.raises(UnknownOutcomeError):
        log.append(b"unknown")
    disk.fault = None
    for attempt in (lambda: log.append(b"refused"), log.flush, lambda: log.release(1)):
        with pytest.raises(LakebedError, match="earlier write or sync failed"):
            attempt()
    assert [bytes(entry.payload) for entry in log.entries()] == [b"durable"]
    log.close()
    with Wal.open(tmp_path / "log", CONFIG, threaded=False) as log:
        assert bytes(log.entry(1).payload) == b"durable"
        assert log.append(b"reopened") <= 3


@pytest.mark.proof
@needs_mounts
def test_a_really_full_or_read_only_file_system_is_named_as_such() -> None:
    """On tmpfs and ext4: disk full is rejected and passes; read-only is refused."""
    run_privately("tests.proof.full_disk")
