"""Runs a hypothesis state machine in rounds, so that it keeps to a budget and can be continued."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.proof.scale import SEED, Rounds, repeat_with

_EXAMPLES_PER_ROUND = 10


def run_machine(machine: type[RuleBasedStateMachine], rounds: Rounds, *, steps: int) -> None:
    """Run ten examples of up to `steps` steps a round, each round from a seed that it names."""
    for number in rounds:
        examples = min(_EXAMPLES_PER_ROUND, rounds.wanted)
        rounds.count(examples)
        try:
            run_state_machine_as_test(
                seed(f"{SEED}/{number}")(machine),
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate, Phase.shrink],
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
                ),
            )
        except BaseException as error:
            error.add_note(f"repeat with: {repeat_with(rounds.test)}")
            raise
