"""A conditional write ends in one of two ways, whatever the store answered on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakebed.chain.calls import Call, Get, Pause, Procedure, PutIf, PutNew
from lakebed.chain.settle import create, replace
from lakebed.host.conditional import Outcome, Versioned

DONE, REFUSED, UNKNOWN = Outcome.DONE, Outcome.REFUSED, Outcome.UNKNOWN


def run(procedure: Procedure[Any], replies: Sequence[Any]) -> tuple[Any, list[Call]]:
    """Send replies to a procedure; return its result and the calls that it made."""
    calls: list[Call] = []
    waiting = iter(replies)
    reply = None
    while True:
        try:
            call = procedure.send(reply)
        except StopIteration as ended:
            assert next(waiting, None) is None
            return ended.value, calls
        calls.append(call)
        reply = None if isinstance(call, Pause) else next(waiting)


def test_a_creation_that_was_done_is_done() -> None:
    result, calls = run(create("a", b"mine"), [DONE])
    assert result is None
    assert calls == [PutNew("a", b"mine")]


def test_a_cut_answer_is_looked_at_and_found_to_be_mine() -> None:
    result, calls = run(create("a", b"mine"), [UNKNOWN, Versioned(b"mine", "1")])
    assert result is None
    assert calls == [PutNew("a", b"mine"), Get("a")]


def test_a_lost_creation_is_repeated() -> None:
    result, calls = run(create("a", b"mine"), [UNKNOWN, None, UNKNOWN, None, DONE])
    assert result is None
    assert calls.count(PutNew("a", b"mine")) == 3


def test_a_conflict_that_wrote_nothing_is_repeated() -> None:
    """S3 answers 409 to two creations in flight, and the library reports that the object exists."""
    result, _ = run(create("a", b"mine"), [REFUSED, None, DONE])
    assert result is None


def test_my_own_repeated_creation_is_not_taken_for_anothers() -> None:
    result, _ = run(create("a", b"mine"), [UNKNOWN, None, REFUSED, Versioned(b"mine", "1")])
    assert result is None


def test_anothers_object_is_returned() -> None:
    result, _ = run(create("a", b"mine"), [UNKNOWN, Versioned(b"other", "1")])
    assert result == b"other"


def test_a_replacement_is_settled_by_reading() -> None:
    assert run(replace("a", b"new", "1"), [DONE])[0] is None
    assert run(replace("a", b"new", "1"), [UNKNOWN, Versioned(b"new", "2")])[0] is None
    result, calls = run(replace("a", b"new", "1"), [UNKNOWN, Versioned(b"old", "1"), DONE])
    assert result is None
    assert calls.count(PutIf("a", b"new", "1")) == 2
    other = Versioned(b"other", "3")
    assert run(replace("a", b"new", "1"), [REFUSED, other])[0] == other
    assert run(replace("a", b"new", "1"), [REFUSED, None])[0] == Versioned(b"", "1")
