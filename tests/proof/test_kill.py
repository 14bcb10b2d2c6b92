"""Proof: a process killed at any moment loses nothing that was acknowledged."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from lakebed.wal import Wal
from tests.proof.child import Child
from tests.proof.ledger import Ledger
from tests.proof.scale import LONG, SEED, Rounds, kept_on_failure, rng
from tests.proof.writer import random_config

_CYCLES_PER_FOLDER = 10
_TEST = "tests/proof/test_kill.py::test_a_killed_writer_loses_nothing_that_was_acknowledged"


def _cycle(folder: Path, ledger: Ledger, run: int, mode: str, chance: random.Random) -> str:
    """Let a writer live and be killed; say in which phase of its life it was."""
    sync = chance.choice(("always", "always", "interval", "os"))
    errors = folder.with_suffix(".stderr")
    with Child(
        "tests.proof.writer", folder, run, SEED, mode, sync, take=ledger.take, errors=errors
    ) as child:
        if mode == "recover":
            child.listen(lambda: ledger.phase == "opening")
        elif mode == "close":
            child.listen(lambda: ledger.phase == "closing")
        else:
            lines = chance.randint(1, 500)
            child.listen(lambda: child.lines >= lines)
        # Closing takes well under a millisecond, the rest some.
        child.listen_for(chance.uniform(0, 0.0004 if mode == "close" else 0.004))
        child.kill()
        assert not child.errors()
    return ledger.phase


def _modes(chance: random.Random) -> list[str]:
    """Choose what each cycle of a folder's life is killed at."""
    later = chance.choices(("write", "recover", "close"), (6, 3, 2), k=_CYCLES_PER_FOLDER - 1)
    return ["recover" if chance.random() < 0.1 else "write", *later]


def _live(folder: Path, chance: random.Random, phases: Counter[str]) -> int:
    """Run the cycles of one folder; return how many acknowledgements they had."""
    ledger = Ledger()
    modes = _modes(chance)
    for run, mode in enumerate(modes):
        ledger.phase = "absent"
        phases[_cycle(folder, ledger, run, mode, chance)] += 1
        if run + 1 < len(modes) and modes[run + 1] == "recover":
            continue  # what the kill left is recovered, and that killed, by the next process
        with Wal.open(folder, random_config(chance, "always")) as log:
            ledger.adopt(log)
            assert not list(folder.rglob("*.spare.tmp")), "a half-made file was left behind"
    return ledger.acks


@pytest.mark.proof
def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """SIGKILL while writing, recovering or closing, over and over: every promise is kept."""
    phases: Counter[str] = Counter()
    acks = 0
    lives = 0
    for life in (rounds := Rounds(_TEST, short=50, long=10_000, seconds=5)):
        rounds.count(_CYCLES_PER_FOLDER)
        lives += 1
        folder = tmp_path / f"life-{life}"
        with kept_on_failure(folder, _TEST, f"life {life}"):
            acks += _live(folder, rng("kill", life), phases)
        shutil.rmtree(folder)
    assert acks > 50 * lives, f"the writers hardly wrote: {acks} acknowledgements"
    struck = {"opened", "opening", "closing"} if LONG else {"opened"}
    assert lives < 10 or struck <= phases.keys(), f"a phase of life was never struck: {phases}"
