"""Proof: what a log shows after a kill is still there after the power cut that follows.

A killed process leaves writes and renames that it never synced, and the next one sees them all. If
it serves them, or appends behind them, they must not be lost when the power then fails.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lakebed.host import Survival
from lakebed.wal import EntryKind, SyncMode
from tests.proof.life import Life
from tests.proof.scale import Rounds, kept_on_failure, rng
from tests.proof.simulated import Picture, open_on, picture_of, save, simulation

_STEPS = 25
_CALLS_MAX = 150
_TEST = "tests/proof/test_kill_then_power_cut.py::test_what_is_shown_after_a_kill_survives"


class _KilledError(BaseException):
    """Takes the place of the signal."""


def _killed(chance: random.Random, sync: SyncMode) -> tuple[Life, list[Picture]]:
    """Live until the nth call to the disk; return the pictures that a kill then may leave.

    The disk is left as the dead process left it. A kill loses nothing that was acknowledged, in
    any mode: the operating system has it.
    """
    life = Life(chance, sync)
    left, known = chance.randint(1, _CALLS_MAX), 1

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise _KilledError

    life.disk.on_call = count
    try:
        for _ in range(_STEPS):
            known = len(life.allowed)
            life.step()
    except _KilledError:
        pass
    life.disk.on_call = None
    life.disk.locks.clear()
    return life, life.allowed[min(known, len(life.allowed)) - 1 :]


def _verify(life: Life, allowed: list[Picture], chance: random.Random) -> None:
    """Reopen, append, cut the power: nothing of it is lost."""
    log = open_on(life.disk, life.config)
    found = picture_of(log)
    assert found in allowed, f"a kill left {found.outline()}"
    if chance.random() < 0.5:
        found = found.appended(found.last_term, EntryKind.NORMAL, b"after the kill")
        log.append(b"after the kill", term=found.last_term)
        log.flush()
    in_order = chance.random() < 0.5
    after = life.disk.crash(chance.choice(list(Survival)), chance, names_in_order=in_order)
    again = picture_of(open_on(after, life.config))
    assert again == found, f"{again.outline()} was shown as {found.outline()}"


@pytest.mark.proof
@pytest.mark.parametrize("sync", SyncMode, ids=lambda sync: sync.value)
def test_what_is_shown_after_a_kill_survives(sync: SyncMode, tmp_path: Path) -> None:
    """Killed at any call, reopened, and then the power fails: the log is what it was shown as."""
    rounds = Rounds(f"{_TEST}[{sync.value}]", short=150, long=50_000, seconds=2)
    for number in rounds:
        chance = rng("kill then power cut", sync.value, number)
        with kept_on_failure(tmp_path, f"{_TEST}[{sync.value}]", number), simulation(chance):
            life, allowed = _killed(chance, sync)
            try:
                _verify(life, allowed, chance)
            except BaseException:
                save(life.disk, tmp_path)
                raise
