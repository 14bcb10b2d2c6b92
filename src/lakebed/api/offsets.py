"""Consumer offsets as callers pass them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakebed import limits
from lakebed.api.lookup import check_partition
from lakebed.errors import InvalidArgumentError
from lakebed.state.values import Topic

Offsets = Mapping[Any, Any]
"""Offsets by (topic, partition), or by topic and then partition."""


def flat_offsets(offsets: Offsets) -> list[tuple[str, int, Any]]:
    """Return offsets as (topic, partition, offset), whichever way they are given."""
    if not isinstance(offsets, Mapping):
        raise InvalidArgumentError(
            "offsets must be {(topic, partition): offset} or {topic: {partition: offset}}",
            got=repr(offsets)[:200],
        )
    items: list[tuple[str, int, Any]] = []
    for key, value in offsets.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            items += [(key, partition, offset) for partition, offset in value.items()]
        elif isinstance(key, tuple) and len(key) == 2:
            items.append((*key, value))
        else:
            raise InvalidArgumentError(
                "offsets must be {(topic, partition): offset} or {topic: {partition: offset}}",
                got=repr({key: value})[:200],
            )
    return items


def place_offsets(
    offsets: Offsets, topic_named: Callable[[str], Topic]
) -> tuple[tuple[int, int, int], ...]:
    """Check offsets and return them as (topic id, partition, offset)."""
    return tuple(
        _place(topic_named(topic), partition, offset)
        for topic, partition, offset in flat_offsets(offsets)
    )


def _place(topic: Topic, partition: int, offset: Any) -> tuple[int, int, int]:
    check_partition(topic, partition)
    if type(offset) is not int or not 0 <= offset <= limits.OFFSET_MAX:
        raise InvalidArgumentError(
            "a committed offset must be an integer", topic=topic.name, got=repr(offset)
        )
    return topic.id, partition, offset
