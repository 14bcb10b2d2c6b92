"""The range of a topic that a job reads: by offsets or by times, fixed when the job begins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lakebed.errors import InvalidArgumentError, OffsetOutOfRangeError, PartitionNotFoundError

if TYPE_CHECKING:
    from lakebed.api.log import Log

Points = int | Mapping[int, int]
"""An offset for every partition, or one for each that is named."""
Time = datetime | int
"""A time (UTC if it does not say), or microseconds since 1970."""
Ranges = dict[int, tuple[int, int]]
"""First offset and end of each partition that has something to read."""


def chosen_ranges(
    log: Log,
    topic: str,
    *,
    start: Points | None,
    until: Points | None,
    from_time: Time | None,
    to_time: Time | None,
) -> Ranges:
    """Return the offsets that are meant, as far as they are there; the end is exclusive.

    A time means the first record of that time or later. Offsets that are gone are an error, unless
    nobody asked for them.
    """
    _check_one("start", start, "from_time", from_time)
    _check_one("until", until, "to_time", to_time)
    bounds = log.offsets(topic)
    starts = _resolved(log, topic, bounds, start, from_time, 0)
    ends = _resolved(log, topic, bounds, until, to_time, 1)
    ranges = {}
    for number, (low, end) in bounds.items():
        if start is not None and starts[number] < low:
            raise OffsetOutOfRangeError(
                "records of the range were removed",
                topic=topic,
                partition=number,
                start=starts[number],
                low=low,
            )
        first, last = max(low, starts[number]), min(end, ends[number])
        if first < last:
            ranges[number] = (first, last)
    return ranges


def cut(ranges: Ranges, chunk_records: int) -> list[Ranges]:
    """Cut ranges into chunks of about so many offsets, each with its share of every partition."""
    total = sum(until - start for start, until in ranges.values())
    count = -(-total // chunk_records)
    chunks = []
    for number in range(count):
        chunk = {}
        for partition, (start, until) in ranges.items():
            first = start + (until - start) * number // count
            last = start + (until - start) * (number + 1) // count
            if first < last:
                chunk[partition] = (first, last)
        chunks.append(chunk)
    return chunks


def as_arguments(
    start: Points | None, until: Points | None, from_time: Time | None, to_time: Time | None
) -> dict[str, Any]:
    """Return what bounds a range as plain data, that is the same for the same range."""
    return {
        "start": _plain(start),
        "until": _plain(until),
        "from_time": _plain(from_time),
        "to_time": _plain(to_time),
    }


def _plain(given: Points | Time | None) -> Any:
    from lakebed.api.reads import microseconds

    if isinstance(given, Mapping):
        return {str(number): offset for number, offset in given.items()}
    return microseconds(given) if isinstance(given, datetime) else given


def _check_one(one: str, first: object, other: str, second: object) -> None:
    if first is not None and second is not None:
        raise InvalidArgumentError(f"{one} and {other} are mutually exclusive")


def _resolved(
    log: Log,
    topic: str,
    bounds: Mapping[int, tuple[int, int]],
    points: Points | None,
    time: Time | None,
    otherwise: int,
) -> dict[int, int]:
    if time is not None:
        return {number: log.offset_for_time(topic, number, timestamp=time) for number in bounds}
    given: Mapping[int, int] = {}
    if isinstance(points, Mapping):
        given = points
    elif points is not None:
        given = dict.fromkeys(bounds, points)
    for number, offset in given.items():
        if number not in bounds:
            raise PartitionNotFoundError(
                "offsets are given for a partition that does not exist",
                topic=topic,
                partition=number,
                partitions=len(bounds),
            )
        if type(offset) is not int or offset < 0:
            raise InvalidArgumentError(
                "an offset must be an integer of 0 or more", got=repr(offset)
            )
    return {number: given.get(number, bound[otherwise]) for number, bound in bounds.items()}
