"""Consumer offsets as callers pass them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakebed.errors import InvalidArgumentError

Offsets = Mapping[Any, Any]
"""Offsets by (topic, partition), or by topic and then partition."""


def flat_offsets(offsets: Offsets) -> list[tuple[str, int, Any]]:
    """Return offsets as (topic, partition, offset), whichever way they are given."""
    if not isinstance(offsets, Mapping):
        raise InvalidArgumentError(
            "offsets are {(topic, partition): offset} or {topic: {partition: offset}}",
            got=repr(offsets)[:200],
        )
    found: list[tuple[str, int, Any]] = []
    for key, value in offsets.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            found += [(key, partition, offset) for partition, offset in value.items()]
        elif isinstance(key, tuple) and len(key) == 2:
            found.append((*key, value))
        else:
            raise InvalidArgumentError(
                "offsets are {(topic, partition): offset} or {topic: {partition: offset}}",
                got=repr({key: value})[:200],
            )
    return found
