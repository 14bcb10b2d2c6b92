"""What a read may ask for: columns, positions, times, and how much one answer holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from lakebed.errors import InvalidArgumentError, OffsetOutOfRangeError
from lakebed.state.values import Topic

COLUMNS: Final = ("partition", "offset", "timestamp", "key", "headers", "value")
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class Bounds(NamedTuple):
    """How much one read may give."""

    records: int
    bytes: int


def check_bounds(max_records: Any, max_bytes: Any) -> Bounds:
    """Check how much a read may give."""
    for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidArgumentError(f"{name} must be an integer from 1", got=repr(value))
    return Bounds(max_records, max_bytes)


def resolve_offset(topic: Topic, partition: int, offset: int | str, low: int, end: int) -> int:
    """Return the offset that `earliest`, `latest` or a number means in a partition.

    Raises `OffsetOutOfRangeError` for a number below `low` or above `end`.
    """
    if offset == EARLIEST:
        return low
    if offset == LATEST:
        return end
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise InvalidArgumentError(
            "offset must be an integer, 'earliest' or 'latest'", got=repr(offset)
        )
    if not low <= offset <= end:
        raise out_of_range(topic, partition, offset, low, end)
    return offset


def microseconds(timestamp: Any) -> int:
    """Return a time as microseconds since 1970: a number is that already; naive means UTC."""
    if isinstance(timestamp, datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
        since = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if isinstance(timestamp, int) and not isinstance(timestamp, bool):
        return timestamp
    raise InvalidArgumentError(
        "timestamp must be a datetime or microseconds since 1970", got=repr(timestamp)
    )


def out_of_range(
    topic: Topic, partition: int, offset: int, low: int, end: int
) -> OffsetOutOfRangeError:
    """Build the error for an offset that a partition does not have."""
    message = (
        "the offset is below the low watermark" if offset < low else "the offset is above the end"
    )
    return OffsetOutOfRangeError(
        message, topic=topic.name, partition=partition, offset=offset, low=low, end=end
    )
