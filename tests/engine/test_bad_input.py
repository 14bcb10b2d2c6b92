"""Bad input: a typed error that says what to do, and nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import Log
from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    LakebedError,
    LockedError,
    NotALogError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    RecordTooLargeError,
    RejectedError,
    SchemaMismatchError,
    TopicNotFoundError,
)
from lakebed.limits import HEADERS_MAX
from tests.engine.support import PRICE, inner, quiet

CALLS: list[tuple[str, type[LakebedError], Callable[[Log], Any]]] = [
    ("unknown topic", TopicNotFoundError, lambda log: log.append("nowhere", b"x")),
    ("unknown topic, batch", TopicNotFoundError, lambda log: log.append_batch("nowhere", [b"x"])),
    ("unknown topic, read", TopicNotFoundError, lambda log: log.read("nowhere")),
    ("topic not text", InvalidArgumentError, lambda log: log.append(["t"], b"x")),  # type: ignore[arg-type]
    ("topic not text, read", InvalidArgumentError, lambda log: log.read(7)),  # type: ignore[arg-type]
    ("bad name", RejectedError, lambda log: log.append("a b", b"x")),
    ("unknown partition", PartitionNotFoundError, lambda log: log.append("t", b"x", partition=2)),
    ("unknown partition, read", PartitionNotFoundError, lambda log: log.read("t", 2)),
    ("offset above", OffsetOutOfRangeError, lambda log: log.read("t", 0, 99)),
    ("offset below", OffsetOutOfRangeError, lambda log: log.read("t", 0, -1)),
    ("record too large", RecordTooLargeError, lambda log: log.append("t", b"x" * 101)),
    ("value a number", LakebedError, lambda log: log.append("t", 7)),
    ("value null without key", SchemaMismatchError, lambda log: log.append("t", None)),
    ("key a number", LakebedError, lambda log: log.append("t", b"x", 7)),
    ("headers a list", LakebedError, lambda log: log.append("t", b"x", headers=[1])),  # type: ignore[arg-type]
    (
        "too many headers",
        LakebedError,
        lambda log: log.append("u", b"", headers={str(n): b"" for n in range(HEADERS_MAX + 1)}),
    ),
    ("timestamp text", LakebedError, lambda log: log.append("t", b"x", timestamp="noon")),
    ("typed, raw value", SchemaMismatchError, lambda log: log.append("p", b"x")),
    ("typed, wrong type", SchemaMismatchError, lambda log: log.append("p", {"price": "x"})),
    ("rows not a list", InvalidArgumentError, lambda log: log.append_batch("t", {"value": b"x"})),
    ("offsets beyond", OffsetOutOfRangeError, lambda log: log.commit_offsets("g", {("t", 0): 9})),
    ("offsets nowhere", TopicNotFoundError, lambda log: log.commit_offsets("g", {("x", 0): 0})),
]


@pytest.mark.parametrize(("error", "call"), [each[1:] for each in CALLS], ids=[c[0] for c in CALLS])
def test_bad_input_is_a_typed_error_and_changes_nothing(
    error: type[LakebedError], call: Callable[[Log], Any]
) -> None:
    with quiet() as log:
        log.create_topic("t", 2, config={"record_bytes_max": 100})
        log.create_topic("u")
        log.create_topic("p", schema=PRICE)
        log.append("t", b"x", partition=0)
        before = inner(log).parts.core.state.copy()
        with pytest.raises(error) as caught:
            call(log)
        assert caught.value.advice
        before.numbers["applied"] = inner(log).parts.core.state.numbers[
            "applied"
        ]  # it may be in the log
        assert inner(log).parts.core.state == before
        assert log.append("t", b"y", partition=0).offset == 1


METHODS: list[Callable[[Log], Any]] = [
    lambda log: log.append("t", b"x"),
    lambda log: log.append_async("t", b"x"),
    lambda log: log.append_batch("t", [b"x"]),
    lambda log: log.read("t"),
    lambda log: log.offsets("t"),
    lambda log: log.offset_for_time("t", timestamp=0),
    lambda log: log.topics(),
    lambda log: log.create_topic("u"),
    lambda log: log.describe_topic("t"),
    lambda log: log.alter_topic("t"),
    lambda log: log.add_partitions("t", 2),
    lambda log: log.purge_topic("t"),
    lambda log: log.delete_topic("t"),
    lambda log: log.producer(),
    lambda log: log.transaction(),
    lambda log: log.consumer("g", ["t"]),
    lambda log: log.groups(),
    lambda log: log.describe_group("g"),
    lambda log: log.committed("g"),
    lambda log: log.commit_offsets("g", {}),
    lambda log: log.reset_group("g", {}),
    lambda log: log.delete_group("g"),
    lambda log: log.checkpoint(),
    lambda log: log.retain(),
    lambda log: log.verify(),
    lambda log: log.stats(),
    lambda log: log.tick(),
]


def test_a_closed_log_refuses_every_call() -> None:
    log = quiet()
    log.create_topic("t")
    log.close()
    log.close()
    for method in METHODS:
        with pytest.raises(ClosedError):
            method(log)


def test_a_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        with pytest.raises(LockedError):
            lakebed.open(tmp_path)
        log.append("t", b"x")
    with lakebed.open(tmp_path) as log:
        assert log.offsets("t") == {0: (0, 1)}


@pytest.mark.parametrize("target", [None, 7, "a\0b", "http://somewhere"])
def test_a_target_that_is_no_folder_is_refused(target: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"not a path|lakebed://HOST:PORT"):
        lakebed.open(target)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(NotALogError):
        lakebed.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_an_offset_beyond_64_bits_is_refused_as_bad_input() -> None:
    log = quiet()
    log.create_topic("t", 1)
    with pytest.raises(InvalidArgumentError, match=r"integer|no form on the wire"):
        log.commit_offsets("g", {("t", 0): 2**70})
    assert log.groups() == []
