"""Proof: a process that is killed at any moment loses no acknowledged record and splits nothing."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from lakebed import Log
from tests.proof.engine_child import ForkedChild
from tests.proof.engine_ledger import Ledger
from tests.proof.engine_writer import random_config
from tests.proof.scale import SEED, Rounds, kept_on_failure, rng

_CYCLES_PER_FOLDER = 5
_TEST = "tests/proof/test_engine_kill.py::test_a_killed_log_keeps_every_acknowledged_record"


def _cycle(folder: Path, ledger: Ledger, run: int, mode: str, chance: random.Random) -> str:
    """Let a writer live and be killed; say in which phase of its life it was."""
    errors = folder.with_suffix(".stderr")
    ledger.phase = "absent"
    with ForkedChild(folder, run, SEED, mode, take=ledger.take, errors=errors) as child:
        child.listen(lambda: ledger.phase != "absent")
        if mode == "write":
            child.listen(lambda: ledger.phase == "opened")
            lines = child.lines + chance.randint(1, 250)
            child.listen(lambda: child.lines >= lines)
        # Recovery takes a few milliseconds.
        child.listen_for(chance.uniform(0, 0.004 if mode == "write" else 0.02))
        child.kill()
        assert not child.errors(), child.errors()
    return ledger.phase


def _live(folder: Path, chance: random.Random, phases: Counter[str]) -> int:
    """Run the cycles of one folder; return how many acknowledgements they had."""
    ledger = Ledger()
    later = chance.choices(("write", "recover"), (3, 1), k=_CYCLES_PER_FOLDER - 1)
    modes = ["write", *later]
    for run, mode in enumerate(modes):
        phases[_cycle(folder, ledger, run, mode, chance)] += 1
        if run + 1 < len(modes) and modes[run + 1] == "recover":
            continue  # what the kill left is recovered, and that killed, by the next process
        with Log.open(folder, random_config(chance)) as log:
            ledger.adopt(log)
            log.verify()
            if chance.random() < 0.3:
                log.checkpoint()
                ledger.check(log)
    return ledger.acks


@pytest.mark.proof
@pytest.mark.parametrize("part", range(2))
def test_a_killed_log_keeps_every_acknowledged_record(part: int, tmp_path: Path) -> None:
    """SIGKILL while writing, checkpointing or recovering: both properties hold, over and over."""
    phases: Counter[str] = Counter()
    acks = 0
    lives = 0
    test = f"{_TEST}[{part}]"
    for life in (rounds := Rounds(test, short=30, long=10_000, shares=2, seconds=4)):
        rounds.count(_CYCLES_PER_FOLDER)
        lives += 1
        folder = tmp_path / f"life-{life}"
        with kept_on_failure(folder, test, f"life {life}"):
            acks += _live(folder, rng("engine-kill", part, life), phases)
        shutil.rmtree(folder)
    assert acks > 20 * lives, f"the writers hardly wrote: {acks} acknowledgements"
    assert "opened" in phases, f"a phase of life was never struck: {phases}"
