"""The state machine: the same commands give the same bytes, and refusing one changes nothing."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed.errors import RejectedError
from lakebed.state.commands import Command
from lakebed.state.image import State, decode_state, encode_state
from lakebed.state.machine import carry_out, decide
from tests.state.machines import command

SEQUENCES = st.lists(command(), max_size=40)


def apply(state: State, index: int, made: Command, times: int = 1) -> None:
    try:
        decision = decide(state, index, made)
    except RejectedError:
        decision = None
    for _ in range(times):
        if decision is not None:
            carry_out(decision.changes)
    state.numbers["applied"] = index


@given(SEQUENCES)
@settings(max_examples=150, deadline=None)
def test_two_machines_give_equal_bytes_and_carrying_out_twice_is_once(made: list[Command]) -> None:
    first, second = State(), State()
    for index, each in enumerate(made, 1):
        apply(first, index, each)
        apply(second, index, each, times=2)
        assert encode_state(first) == encode_state(second)


@given(SEQUENCES)
@settings(max_examples=100, deadline=None)
def test_deciding_changes_nothing(made: list[Command]) -> None:
    state = State()
    for index, each in enumerate(made, 1):
        before = encode_state(state)
        with contextlib.suppress(RejectedError):
            decide(state, index, each)
        assert encode_state(state) == before
        apply(state, index, each)


@given(SEQUENCES, st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_a_machine_that_begins_with_a_snapshot_comes_to_the_same_bytes(
    made: list[Command], at: int
) -> None:
    whole, begun = State(), State()
    for index, each in enumerate(made, 1):
        apply(whole, index, each)
        apply(begun, index, each)
        if index == at:
            begun = decode_state(encode_state(begun), "it")
    assert encode_state(whole) == encode_state(begun)
    assert whole == begun


@given(SEQUENCES)
@settings(max_examples=100, deadline=None)
def test_the_state_always_fits_together(made: list[Command]) -> None:
    state = State()
    for index, each in enumerate(made, 1):
        copy = state.copy()
        before = encode_state(copy)
        apply(state, index, each)
        assert encode_state(copy) == before
        assert set(state.partitions) == {
            (topic.id, number)
            for topic in state.topics.values()
            for number in range(topic.partitions)
        }
        assert {topic.name: topic.id for topic in state.topics.values()} == state.names
        assert all(key[1] in state.topics for key in state.sequences)
        assert all(key[1] in state.topics for key in state.offsets)
        assert set(state.transactions) <= set(state.producers)
        for partition in state.partitions.values():
            assert 0 <= partition.low <= partition.end
