"""Transactions that are committed together: all of them or none, and once for each number."""

from __future__ import annotations

from typing import Any

import pytest

from lakebed import limits
from lakebed.errors import (
    FencedError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    TransactionClosedError,
    TransactionTimedOutError,
)
from lakebed.state import commands
from lakebed.state.commands import CommitTogether
from lakebed.state.decision import TIMED_OUT, Written
from lakebed.state.image import State, encode_state
from lakebed.state.machine import carry_out, decide
from lakebed.state.values import CommittedOffset, Marker
from tests.state.machines import part_with

Identity = tuple[int, int]


class Machine:
    """A state, and what has been done to it."""

    def __init__(self) -> None:
        self.state = State()
        self.index = 0
        self.do(commands.CreateTopic("t", 2, b"", (), 0))

    def do(self, command: commands.Command) -> Any:
        self.index += 1
        decision = decide(self.state, self.index, command)
        carry_out(decision.changes)
        return decision.result

    def written(self, *runs: tuple[int, int], name: str = "", timeout_us: int = 100) -> Identity:
        """Begin a transaction and write a batch into it."""
        identity: Identity = self.do(commands.BeginTransaction(name, timeout_us, 0))
        self.do(commands.TransactionWrite(*identity, 0, (part_with(1, runs),)))
        return identity

    def together(self, number: int, *named: Any, **given: Any) -> Any:
        values = {"name": "job", "time_us": 10, "keep_us": 1000, "offsets": (), **given}
        return self.do(CommitTogether(number=number, transactions=named, **values))

    def ends(self) -> list[int]:
        return [self.state.partitions[(1, number)].end for number in range(2)]


def refused(machine: Machine, kind: type[Exception], number: int, *named: Any, **given: Any) -> str:
    """Have a commit refused, and see that it changes nothing."""
    before = encode_state(machine.state)
    with pytest.raises(kind) as caught:
        machine.together(number, *named, **given)
    assert encode_state(machine.state) == before
    return str(caught.value)


def test_all_of_them_are_placed_in_the_order_given() -> None:
    machine = Machine()
    first, second = machine.written((0, 2), (1, 1)), machine.written((0, 3))
    done = machine.together(7, second, first)
    assert [(run.partition, run.base, run.records) for part in done.parts for run in part] == [
        (0, 0, 3),
        (0, 3, 2),
        (1, 0, 1),
    ]
    assert (done.duplicate, machine.ends()) == (False, [5, 1])
    assert machine.state.markers == {"job": Marker(7, 10, 1000)}
    assert machine.state.transactions == {}
    assert machine.state.producers == {}  # those without a name are forgotten


def test_a_repeat_and_an_older_number_add_nothing_and_drop_what_they_name() -> None:
    machine = Machine()
    machine.together(7, machine.written((0, 2)))
    for number in (7, 6, 0):
        zombie, named = machine.written((0, 5)), machine.written((1, 5), name="x")
        done = machine.together(number, zombie, named, (99, 1))
        assert done == Written((), duplicate=True)
        assert machine.state.transactions == {}
        assert [each.outcome for each in machine.state.producers.values()] == ["aborted"]
    assert machine.ends() == [2, 0]
    assert machine.state.markers["job"] == Marker(7, 10, 1000)
    assert machine.together(8, machine.written((1, 1))).duplicate is False


def test_a_repeat_drops_nothing_of_another_epoch() -> None:
    machine = Machine()
    machine.together(7)
    before = machine.written((0, 1), name="x")
    after = machine.written((0, 1), name="x")
    assert machine.together(7, before).duplicate
    assert set(machine.state.transactions) == {after[0]}


def test_names_do_not_meet() -> None:
    machine = Machine()
    machine.together(7, machine.written((0, 1)))
    assert not machine.together(3, machine.written((0, 1)), name="other").duplicate
    assert machine.ends() == [2, 0]


def test_no_transactions_set_the_marker_too() -> None:
    machine = Machine()
    assert machine.together(0) == Written(())
    assert machine.together(0).duplicate


def test_one_that_is_not_open_refuses_all_of_them() -> None:
    machine = Machine()
    good = machine.written((0, 1))
    refused(machine, FencedError, 1, good, (99, 1))
    old = machine.written((0, 1), name="x")
    machine.written((0, 1), name="x")
    refused(machine, FencedError, 1, good, old)
    ended = machine.written((0, 1), name="y")
    machine.do(commands.CommitTransaction(*ended, 0, (), ()))
    refused(machine, TransactionClosedError, 1, good, ended)
    late = machine.written((0, 1), timeout_us=5)
    refused(machine, TransactionTimedOutError, 1, good, late)
    machine.do(commands.AbortTransaction(*late, TIMED_OUT))
    refused(machine, TransactionTimedOutError, 1, good, late)
    producer = machine.do(commands.RegisterProducer("p", 0))
    refused(machine, InvalidArgumentError, 1, good, producer)
    assert machine.together(1, good).duplicate is False


def test_one_that_is_named_twice_is_refused() -> None:
    machine = Machine()
    good = machine.written((0, 1))
    assert "twice" in refused(machine, InvalidArgumentError, 1, good, good)
    machine.together(1)
    refused(machine, InvalidArgumentError, 1, good, good)


def test_a_topic_that_is_gone_refuses_all_of_them() -> None:
    machine = Machine()
    good = machine.written((0, 1))
    machine.do(commands.DeleteTopic(1))
    refused(machine, TopicNotFoundError, 1, good)


def test_somebody_elses_transaction_is_neither_committed_nor_dropped() -> None:
    machine = Machine()
    anns, bobs = machine.written((0, 1), name="ann/"), machine.written((0, 1), name="bob/")
    assert "another client" in refused(machine, FencedError, 1, anns, bobs, name="ann/job")
    refused(machine, FencedError, 1, anns)
    machine.together(1, anns, name="ann/job")
    assert machine.together(1, bobs, name="ann/job").duplicate
    assert set(machine.state.transactions) == {bobs[0]}


def test_offsets_are_committed_with_them_and_checked_against_the_new_end() -> None:
    machine = Machine()
    good = machine.written((0, 4))
    refused(machine, OffsetOutOfRangeError, 1, good, offsets=(("g", "", 1, 0, 5),))
    refused(machine, FencedError, 1, good, offsets=(("g", "m", 1, 0, 1),))
    machine.together(1, good, offsets=(("g", "", 1, 0, 4),))
    assert machine.state.offsets == {("g", 1, 0): CommittedOffset(4, 10)}
    assert machine.together(1, offsets=(("g", "", 1, 0, 0),)).duplicate
    assert machine.state.offsets == {("g", 1, 0): CommittedOffset(4, 10)}


def test_markers_are_forgotten_after_their_time_when_another_is_set() -> None:
    machine = Machine()
    machine.together(7, name="a", time_us=0, keep_us=10)
    machine.together(7, name="b", time_us=0, keep_us=11)
    machine.together(1, name="c", time_us=10)
    assert sorted(machine.state.markers) == ["a", "b", "c"]
    machine.together(1, name="c", time_us=99)  # a repeat sets nothing
    assert sorted(machine.state.markers) == ["a", "b", "c"]
    machine.together(2, name="c", time_us=11)
    assert sorted(machine.state.markers) == ["b", "c"]
    assert machine.together(7, name="b", time_us=99).duplicate  # it is there still
    machine.together(8, name="b", time_us=99, keep_us=0)
    assert machine.state.markers["b"] == Marker(8, 99, 0)


def test_there_is_a_most_of_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MARKERS_MAX", 2)
    machine = Machine()
    machine.together(1, name="a", time_us=0, keep_us=10)
    machine.together(1, name="b", time_us=0, keep_us=100)
    assert "too many" in refused(machine, InvalidArgumentError, 1, name="c")
    machine.together(2, name="a", time_us=5, keep_us=6)
    machine.together(1, name="c", time_us=12)  # one of them has gone
    assert sorted(machine.state.markers) == ["b", "c"]
