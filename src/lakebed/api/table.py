"""Arguments of table scans and lookups, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import pyarrow.compute as pc

from lakebed.api.reads import microseconds
from lakebed.errors import InvalidArgumentError

Points = int | Mapping[int, int]
"""An offset for every partition, or one for each that is named."""


def checked_where(where: object) -> None:
    """Refuse what is not a predicate, and what Arrow cannot show or cannot evaluate safely."""
    if not isinstance(where, pc.Expression):
        raise InvalidArgumentError(
            "where is an expression, such as pyarrow.compute.field('offset') > 5", got=repr(where)
        )
    try:
        text = _without_texts(where)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            "a pattern of the predicate must be UTF-8", reason=str(error)
        ) from error
    if "null[large_" in text:
        raise InvalidArgumentError(
            "the predicate holds a null of type large_string or large_binary, which Arrow cannot"
            " cast: use is_null(), or a null without a type",
            where=where,
        )


def by_position(where: pc.Expression) -> Exception | None:
    """Refuse a field that is named by its number: a scan does not read all columns."""
    if "FieldPath(" in _without_texts(where):
        return ValueError("name fields by their names, not by their positions")
    return None


def _without_texts(where: pc.Expression) -> str:
    """Return a predicate as Arrow shows it, with its texts left out."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', "", str(where))


def checked_time(time: datetime | int | None) -> int:
    """Return a time as microseconds since 1970, if that many there are."""
    time_us = microseconds(time)
    if not -(1 << 63) <= time_us < 1 << 63:
        raise InvalidArgumentError("a time is 64 bits of microseconds", time_us=time_us)
    return time_us


def checked_key(key: object) -> bytes:
    """Return a key as it is stored: text as UTF-8."""
    try:
        if isinstance(key, str):
            return key.encode()
        if isinstance(key, bytes | bytearray | memoryview):
            return bytes(key)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError("a key is bytes or text", reason=error) from error
    raise InvalidArgumentError("a key is bytes or text", got=type(key).__name__)
