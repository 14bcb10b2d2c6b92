"""Power cuts on a simulated disk: after every call that changes it, in every way it may survive.

A log lives a life drawn from the seed (`life.py`). After each call to the disk the power is cut:
unsynced writes are kept, lost, torn at 512 or 4096 bytes, or garbage; unsynced names survive in
their order or in any. The disk that is left must open and hold one of the pictures allowed at that
moment. While it opens the power is cut again. What an opened log has shown stays, whatever comes.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from pathlib import Path

import pytest

from lakebed.host import ManualClock, SimDisk, Survival
from lakebed.wal import EntryKind, SyncMode, Wal, WalConfig
from tests.proof.damage import kept
from tests.proof.life import Life
from tests.proof.scale import Rounds, kept_on_failure, rng
from tests.proof.simulated import FOLDER, Picture, disk_with, open_on, picture_of, save, simulation

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_power_cut_model.py"
CUTS = [
    (Survival.KEPT, True),
    (Survival.LOST, True),
    *((survival, True) for survival in (Survival.TORN_512, Survival.TORN_4096, Survival.GARBAGE)),
    *((survival, False) for survival in (Survival.TORN_512, Survival.TORN_4096, Survival.GARBAGE)),
]
STEPS_PER_LIFE = 40
CHUNKS = [
    *((SyncMode.ALWAYS, part) for part in range(6)),
    *((mode, part) for mode in (SyncMode.INTERVAL, SyncMode.OS) for part in range(2)),
]


class PowerCuts:
    """Lives one life under power cuts, and counts the states it verified."""

    def __init__(self, seed: random.Random, sync: SyncMode, folder: Path) -> None:
        self.states = 0
        self._rng = seed
        self._folder = folder
        self._life = Life(seed, sync)
        self._left: tuple[SimDisk, Picture] | None = None
        self._identity: object = None

    def run(self) -> None:
        """Live the life; now and then go on from a disk that a cut left."""
        life = self._life
        for _ in range(STEPS_PER_LIFE):
            life.disk.on_call = self._cut
            life.step()
            assert life.log is not None
            assert picture_of(life.log) == life.now
            self._identity = life.log.log_id
            life.disk.on_call = None
            if self._left is not None:
                life.move_to(*self._left)
                self._left = self._identity = None

    def _cut(self, call: str) -> None:
        for survival, in_order in CUTS:
            left = self._life.disk.crash(survival, self._rng, names_in_order=in_order)
            before = left.contents()
            try:
                self._verify(left, self._life.allowed)
            except BaseException as error:
                save(disk_with(before), self._folder)
                error.add_note(
                    f"cut after {call} while doing {self._life.doing}, {survival}, "
                    f"names in order: {in_order}"
                )
                raise

    def _verify(self, left: SimDisk, allowed: list[Picture]) -> None:
        """Open what is left, cutting the power again meanwhile; it must be an allowed picture."""
        left.on_call = lambda _: self._cut_again(left, allowed)
        found, repaired = self._open(left, allowed)
        left.on_call = None
        self._stays(left, found)
        if self._rng.random() < (0.03 if repaired else 0.002):
            self._left = (left.crash(Survival.LOST, self._rng), found)

    def _cut_again(self, disk: SimDisk, allowed: list[Picture]) -> None:
        if self._rng.random() < 0.04:
            survival, in_order = self._rng.choice(CUTS)
            self._open(disk.crash(survival, self._rng, names_in_order=in_order), allowed)

    def _open(self, disk: SimDisk, allowed: list[Picture]) -> tuple[Picture, bool]:
        """Open a disk and verify it; return what it holds, and whether a torn tail was cut."""
        self.states += 1
        log = open_on(disk, self._life.config)
        found = picture_of(log)
        if found not in allowed:
            raise AssertionError(_difference(found, allowed))
        assert self._identity in (None, log.log_id), "the log has another identity"
        return found, log.stats().recovery.torn_bytes > 0

    def _stays(self, disk: SimDisk, found: Picture) -> None:
        """What was shown survives the next power cut, and the log goes on behind it."""
        drawn = self._rng.random()
        if drawn < 0.1:
            self._open(disk.crash(Survival.LOST, self._rng), [found])
        elif drawn < 0.15:
            after = Life(self._rng, self._life.config.sync)
            after.move_to(disk.crash(Survival.LOST, self._rng), found)
            for _ in range(5):
                after.step()
            self._open(after.disk.crash(Survival.LOST, self._rng), after.allowed)


def _difference(found: Picture, allowed: list[Picture]) -> str:
    return f"found {found.outline()}; allowed: {'; '.join(each.outline() for each in allowed)}"


@pytest.mark.parametrize(("sync", "part"), CHUNKS, ids=lambda each: getattr(each, "value", each))
def test_a_power_cut_leaves_what_was_acknowledged(
    sync: SyncMode, part: int, tmp_path: Path
) -> None:
    """After a cut at any call the log opens with what was acknowledged; at most what was under
    way is there too, in order. With `interval` and `os` only a suffix since the last sync is lost.
    """
    test = f"{FILE}::test_a_power_cut_leaves_what_was_acknowledged[{sync.value}-{part}]"
    rounds = Rounds(test, short=5_000, long=2_000_000, shares=len(CHUNKS), seconds=1.2)
    for life in rounds:
        what = ("power cut", sync.value, part, life)
        with kept_on_failure(tmp_path, test, f"life {life}"), simulation(*what):
            cuts = PowerCuts(rng(*what), sync, tmp_path)
            cuts.run()
        rounds.count(cuts.states)
    assert rounds.trials


class Interruption:
    """A commit that Ctrl-C cuts short in the caller's thread, at the nth call to the disk.

    The committer's thread writes it again; the power is cut after each of its calls.
    """

    def __init__(self, seed: random.Random, nth: int) -> None:
        self.left: list[SimDisk] = []
        self.happened = False
        self._rng = seed
        self._nth = nth
        self._disk = SimDisk()
        self._clock = ManualClock()

    def run(self) -> list[Picture]:
        """Make the commit, in a log that needs a new file for it; return what may exist later."""
        config = WalConfig(file_bytes=4096, spare_files=0)
        log = Wal.open(FOLDER, config, disk=self._disk, clock=self._clock)
        log.append(self._rng.randbytes(self._rng.randint(1000, 3000)))
        pictures = [picture_of(log)]
        payloads = [self._rng.randbytes(self._rng.randint(0, 600)) for _ in range(6)]
        for payload in payloads:
            pictures.append(pictures[-1].appended(0, EntryKind.NORMAL, payload))
        self._disk.on_call = self._called
        with contextlib.suppress(KeyboardInterrupt):
            log.append_many(payloads)
        assert log.wait(pictures[-1].last_index, timeout=600)
        self._disk.on_call = None
        log.close()
        return pictures

    def _called(self, _call: str) -> None:
        self._clock.advance(1)
        if threading.current_thread() is not threading.main_thread():
            for survival, in_order in CUTS:
                self.left.append(self._disk.crash(survival, self._rng, names_in_order=in_order))
            return
        self._nth -= 1
        if self._nth == 0:
            self.happened = True
            raise KeyboardInterrupt


def test_a_power_cut_after_an_interrupted_commit_leaves_no_damage(tmp_path: Path) -> None:
    """A commit that is written again after Ctrl-C is torn at most, whatever a power cut mixes."""
    test = f"{FILE}::test_a_power_cut_after_an_interrupted_commit_leaves_no_damage"
    config = WalConfig(file_bytes=4096, spare_files=0)
    for number in Rounds(test, short=10, long=1_000, seconds=2):
        what = ("interrupt", number)
        for nth in itertools.count(1):
            with simulation(*what):
                interruption = Interruption(rng(*what, nth), nth)
                allowed = interruption.run()
                for left in interruption.left:
                    with kept(left.contents(), tmp_path, test, f"{number}, call {nth}"):
                        assert picture_of(open_on(left, config)) in allowed
            if not interruption.happened:
                break
        assert nth > 2, "the commit was never interrupted"
