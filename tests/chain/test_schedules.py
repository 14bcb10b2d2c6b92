"""Proof: in no order of calls, faults and crashes is an acknowledged entry lost, or a log forked.

One round is one schedule; the seed and the round repeat it.
"""

from __future__ import annotations

import pytest

from lakebed.host.conditional_sim import Faults
from tests.chain.world import World
from tests.proof.scale import Rounds, repeat_with, rng

_CALLS = 400
_TEST = "tests/chain/test_schedules.py::test_no_schedule_loses_or_forks_the_log"


@pytest.mark.proof
@pytest.mark.parametrize("processes", [2, 3, 5])
def test_no_schedule_loses_or_forks_the_log(processes: int) -> None:
    test = f"{_TEST}[{processes}]"
    _run(test, Rounds(test, short=20_000, long=2_000_000, seconds=8, shares=3), processes)


@pytest.mark.proof
def test_a_replica_has_a_prefix_in_every_schedule() -> None:
    test = "tests/chain/test_schedules.py::test_a_replica_has_a_prefix_in_every_schedule"
    _run(test, Rounds(test, short=4_000, long=400_000, seconds=3), processes=2, readers=2)


def _run(test: str, rounds: Rounds, processes: int, readers: int = 0) -> None:
    takeovers = acknowledged = 0
    for number in rounds:
        generator = rng(test, number)
        lossy = generator.random() < 0.3
        faults = Faults(lose=0.3, delay=0.2) if lossy else Faults()
        world = World(generator, faults, processes, readers)
        try:
            world.run(_CALLS)
        except Exception as error:
            error.add_note(f"repeat with: {repeat_with(test)}")
            raise
        takeovers += world.takeovers
        acknowledged += len(world.acknowledged)
    assert takeovers
    assert acknowledged
