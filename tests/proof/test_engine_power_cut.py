"""Power cuts over a log's life on a simulated disk, after every call that changes the disk.

A log lives a life drawn from the seed (`engine_life.py`): writes, transactions, checkpoints,
retention, compaction. After a call to the disk the power is cut: unsynced writes are kept, lost,
torn or garbage, unsynced names survive in their order or in any. What is left must open and agree
with the ledger. While it opens the power is cut again, and what an opened log has shown stays.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from lakebed import SyncMode
from lakebed.host import SimDisk, Survival
from tests.proof.engine_ledger import Ledger
from tests.proof.engine_life import Life, Worker, config_of, open_log, small_transactions
from tests.proof.scale import Rounds, kept_on_failure, rng
from tests.proof.simulated import disk_with, save, simulation

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_engine_power_cut.py"
CUTS = [
    (Survival.KEPT, True),
    (Survival.LOST, True),
    *((survival, True) for survival in (Survival.TORN_512, Survival.TORN_4096, Survival.GARBAGE)),
    *((survival, False) for survival in (Survival.TORN_512, Survival.GARBAGE)),
]
STEPS_PER_LIFE = 45
FIXED_STEPS = {
    3: Worker.leave_open,
    4: Worker.checkpoint,
    7: Worker.checkpoint,
    9: Worker.leave_open,
    10: Worker.checkpoint,
}
"""Steps that every life has; the others are drawn, and a short life may draw none of these. A log
keeps two snapshots and frees the WAL up to the older one: nothing depends on a snapshot before the
second checkpoint. Staged files are those of a transaction that is open at a checkpoint."""
PARTS = 4
_AGAIN = 0.02
"""How often a call of a recovery is followed by another cut."""


class PowerCuts:
    """Lives one life under power cuts, and counts the states it verified."""

    def __init__(self, seed: random.Random, sync: SyncMode, folder: Path) -> None:
        self.states = 0
        self._rng = seed
        self._weak = sync is not SyncMode.ALWAYS
        self._folder = folder
        self._life = Life(seed, config_of(seed, sync=sync), SimDisk())
        self._left: tuple[SimDisk, Ledger] | None = None
        self._failure: BaseException | None = None
        self._turn = 0

    def run(self, wanted: int) -> None:
        """Live the life; now and then go on from a disk that a cut left."""
        life = self._life
        for number in range(STEPS_PER_LIFE):
            disk = life.disk
            assert isinstance(disk, SimDisk)
            disk.on_call = self._cut
            if number in FIXED_STEPS and life.worker is not None:
                life.worker.do(FIXED_STEPS[number])
            else:
                life.step()
            disk.on_call = None
            if self._failure is not None:
                raise self._failure
            assert life.worker is not None
            life.ledger.check(life.worker.log, weak=self._weak)
            self._move()
            if self.states >= wanted:
                return

    def _move(self) -> None:
        """Go on from what a cut in the middle of a call left, or one between two calls."""
        life = self._life
        if self._left is not None:
            disk, life.ledger = self._left
            life.forget()
            life.move_to(disk, weak=self._weak)
        elif self._rng.random() < 0.04:
            assert isinstance(life.disk, SimDisk)
            life.move_to(life.disk.crash(self._rng.choice(CUTS)[0], self._rng), weak=self._weak)
        self._left = None

    def _cut(self, call: str) -> None:
        """Cut the power in the next way; a failure is kept, because the log may swallow it."""
        self._turn += 1
        if self._failure is not None:
            return
        survival, in_order = CUTS[self._turn % len(CUTS)]
        disk = self._life.disk
        assert isinstance(disk, SimDisk)
        left = disk.crash(survival, self._rng, names_in_order=in_order)
        before = left.contents()
        try:
            self._verify(left)
        except BaseException as error:
            save(disk_with(before), self._folder)
            worker = self._life.worker
            error.add_note(
                f"cut after {call} while doing {worker.doing if worker else 'open'}, {survival}, "
                f"names in order: {in_order}"
            )
            self._failure = error

    def _verify(self, left: SimDisk) -> None:
        left.on_call = lambda _: self._cut_again(left)
        self._open(left)
        left.on_call = None
        drawn = self._rng.random()
        if drawn < 0.05:  # what was shown survives the next cut
            self._open(left.crash(Survival.LOST, self._rng))
        elif drawn < 0.06:
            ledger = copy.deepcopy(self._life.ledger)
            self._left = left.crash(Survival.LOST, self._rng), ledger

    def _cut_again(self, disk: SimDisk) -> None:
        if self._rng.random() < _AGAIN:
            survival, in_order = self._rng.choice(CUTS)
            self._open(disk.crash(survival, self._rng, names_in_order=in_order))

    def _open(self, disk: SimDisk) -> None:
        self.states += 1
        log = open_log(disk, self._life.config, self._life.clock)
        self._life.ledger.check(log, weak=self._weak)


def _prove(sync: SyncMode, part: int, folder: Path, rounds: Rounds) -> None:
    test = rounds.test
    for number in rounds:
        what = ("engine-power", sync.value, part, number)
        with simulation(*what), small_transactions(), kept_on_failure(folder, test, number):
            cuts = PowerCuts(rng(*what), sync, folder)
            cuts.run(rounds.wanted)
        rounds.count(cuts.states)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_power_cut_leaves_every_acknowledged_record(part: int, tmp_path: Path) -> None:
    """After a cut at any call: acknowledged records once, at their offsets; transactions whole."""
    test = f"{FILE}::test_a_power_cut_leaves_every_acknowledged_record[{part}]"
    rounds = Rounds(test, short=1_800, long=1_900_000, shares=PARTS, seconds=1.5)
    _prove(SyncMode.ALWAYS, part, tmp_path, rounds)


@pytest.mark.parametrize("sync", [SyncMode.INTERVAL, SyncMode.OS], ids=lambda sync: sync.value)
def test_a_log_that_syncs_later_opens_after_any_cut(sync: SyncMode, tmp_path: Path) -> None:
    """With `interval` and `os` the last records may be lost; the log opens, and invents nothing."""
    test = f"{FILE}::test_a_log_that_syncs_later_opens_after_any_cut[{sync.value}]"
    _prove(sync, 0, tmp_path, Rounds(test, short=200, long=100_000, shares=2, seconds=1.5))
