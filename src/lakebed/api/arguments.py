"""What callers give to a log, checked: numbers within bounds, and what a consumer is to read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lakebed.api.reads import EARLIEST, LATEST
from lakebed.errors import InvalidArgumentError


def check_range(name: str, value: Any, low: int, high: int) -> None:
    """Refuse what is not a number from `low` to `high`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgumentError(f"{name} must be from {low} to {high}", got=repr(value))


def wait_seconds(wait_ms: Any) -> float | None:
    """Return how many seconds a read may wait; None forever."""
    if wait_ms is None:
        return None
    check_range("wait_ms", wait_ms, 0, 86_400_000)
    return float(wait_ms) / 1000


def check_wait(wait_ms: Any) -> None:
    """Raise unless `wait_ms` is a non-negative number or None."""
    if wait_ms is not None and (
        not isinstance(wait_ms, int | float) or isinstance(wait_ms, bool) or wait_ms < 0
    ):
        raise InvalidArgumentError("wait_ms must be 0 or more, or None", got=repr(wait_ms))


def check_start(start: Any) -> str:
    """Check where a group begins that has committed nothing."""
    if start not in (EARLIEST, LATEST):
        raise InvalidArgumentError("start must be 'earliest' or 'latest'", got=repr(start))
    return str(start)


def check_consumer(
    group: str | None,
    topics: Collection[str] | None,
    partitions: Collection[tuple[str, int]] | None,
    session_timeout_ms: int,
) -> Collection[str] | None:
    """Check what a consumer is to read; return its topics."""
    if (topics is None) == (partitions is None):
        raise InvalidArgumentError("a consumer needs either topics or partitions")
    if isinstance(topics, str):
        topics = [topics]
    if topics is not None and (group is None or not topics):
        raise InvalidArgumentError("a consumer of topics needs a group and at least one topic")
    if partitions is not None and not partitions:
        raise InvalidArgumentError("a consumer of partitions needs at least one")
    check_range("session_timeout_ms", session_timeout_ms, 1, 86_400_000)
    return topics


def check_segments(segments: Sequence[int]) -> tuple[int, ...]:
    """Return ids of segments as they are compared with the log's, or refuse what are none."""
    listed = isinstance(segments, list | tuple) and bool(segments)
    if not listed or any(type(segment_id) is not int for segment_id in segments):
        raise InvalidArgumentError(
            "segments must be a list of ids, as `plan_compaction` returns them",
            got=repr(segments)[:200],
        )
    return tuple(segments)
