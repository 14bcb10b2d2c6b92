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


def resolve_ranges(
    log: Log,
    topic: str,
    *,
    start: Points | None,
    until: Points | None,
    from_time: Time | None,
    to_time: Time | None,
) -> Ranges:
    """Return the ranges of offsets between the bounds that exist; ends are exclusive.

    A time stands for the first record of that time or later. Removed offsets are an
    `OffsetOutOfRangeError` if `start` asks for them.
    """
    _check_one("start", start, "from_time", from_time)
    _check_one("until", until, "to_time", to_time)
    bounds = log.offsets(topic)
    starts = _resolve(log, topic, bounds, start, from_time, 0)
    ends = _resolve(log, topic, bounds, until, to_time, 1)
    ranges = {}
    for partition, (low, end) in bounds.items():
        if start is not None and starts[partition] < low:
            raise OffsetOutOfRangeError(
                "records of the range were removed",
                topic=topic,
                partition=partition,
                start=starts[partition],
                low=low,
            )
        first, last = max(low, starts[partition]), min(end, ends[partition])
        if first < last:
            ranges[partition] = (first, last)
    return ranges


def cut(ranges: Ranges, chunk_records: int) -> list[Ranges]:
    """Cut ranges into chunks of about `chunk_records`, each with a share of every partition."""
    total = sum(until - start for start, until in ranges.values())
    count = -(-total // chunk_records)
    chunks = []
    for index in range(count):
        chunk = {}
        for partition, (start, until) in ranges.items():
            first = start + (until - start) * index // count
            last = start + (until - start) * (index + 1) // count
            if first < last:
                chunk[partition] = (first, last)
        chunks.append(chunk)
    return chunks


def as_arguments(
    start: Points | None, until: Points | None, from_time: Time | None, to_time: Time | None
) -> dict[str, Any]:
    """Return the bounds of a range as plain data, equal for equal ranges."""
    return {
        "start": _plain(start),
        "until": _plain(until),
        "from_time": _plain(from_time),
        "to_time": _plain(to_time),
    }


def _plain(bound: Points | Time | None) -> Any:
    from lakebed.api.reads import microseconds

    if isinstance(bound, Mapping):
        return {str(partition): offset for partition, offset in bound.items()}
    return microseconds(bound) if isinstance(bound, datetime) else bound


def _check_one(one: str, first: object, other: str, second: object) -> None:
    if first is not None and second is not None:
        raise InvalidArgumentError(f"{one} and {other} are mutually exclusive")


def _resolve(
    log: Log,
    topic: str,
    bounds: Mapping[int, tuple[int, int]],
    points: Points | None,
    time: Time | None,
    otherwise: int,
) -> dict[int, int]:
    if time is not None:
        return {
            partition: log.offset_for_time(topic, partition, timestamp=time) for partition in bounds
        }
    offsets: Mapping[int, int] = {}
    if isinstance(points, Mapping):
        offsets = points
    elif points is not None:
        offsets = dict.fromkeys(bounds, points)
    for partition, offset in offsets.items():
        if partition not in bounds:
            raise PartitionNotFoundError(
                "offsets are given for a partition that does not exist",
                topic=topic,
                partition=partition,
                partitions=len(bounds),
            )
        if type(offset) is not int or offset < 0:
            raise InvalidArgumentError(
                "an offset must be an integer of 0 or more", got=repr(offset)
            )
    return {
        partition: offsets.get(partition, bound[otherwise]) for partition, bound in bounds.items()
    }
