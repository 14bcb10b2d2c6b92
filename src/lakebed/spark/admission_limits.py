"""How much a micro-batch reads: a number of records or about a number of bytes, divided fairly.

Every partition with waiting records gets one of them, and a share of the rest in proportion to its
backlog: none starves, and all of them catch up at about the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakebed.spark.offsets import Offsets

if TYPE_CHECKING:
    from lakebed.client.log import RemoteLog
    from lakebed.reports.topics import ScanPlan
    from lakebed.spark.topics import TopicHandle

Ends = dict[str, dict[int, int]]


def limit_ends(
    log: RemoteLog,
    topics: list[TopicHandle],
    starts: Offsets,
    ends: Ends,
    records_max: int | None,
    bytes_max: int | None,
) -> Ends:
    """Return ends within the limits; at least one record is admitted if one is waiting."""
    waiting = {
        (topic.name, partition): count
        for topic in topics
        for partition, (low, _) in topic.bounds.items()
        if (count := ends[topic.name][partition] - _begin(starts, topic.name, partition, low)) > 0
    }
    lows = {
        (topic.name, partition): low
        for topic in topics
        for partition, (low, _) in topic.bounds.items()
    }
    total = sum(waiting.values())
    if not total:
        return ends
    allowed = total if records_max is None else records_max
    if bytes_max is not None:
        size = sum(_bytes(log, topic, starts, ends) for topic in topics)
        allowed = min(allowed, max(1, total * bytes_max // max(1, size)))
    if allowed >= total:
        return ends
    chosen = {name: dict(parts) for name, parts in ends.items()}
    turn = sum(offset for parts in starts.values() for offset in parts.values())
    for (name, partition), count in share_out(waiting, allowed, turn).items():
        begin = _begin(starts, name, partition, lows[(name, partition)])
        chosen[name][partition] = begin + count
    return chosen


def _begin(starts: Offsets, topic: str, partition: int, low: int) -> int:
    return max(low, starts.get(topic, {}).get(partition, 0))


def share_out(
    waiting: Mapping[tuple[str, int], int], allowed: int, turn: int = 0
) -> dict[tuple[str, int], int]:
    """Divide `allowed` records among partitions by what is `waiting`; the parts add up exactly.

    Every partition gets one record as far as they last, and the rest is divided in proportion. If
    more partitions wait than records are allowed, `turn`, which grows with every batch, says which
    of them are first.
    """
    keys = sorted(waiting)
    first = turn % len(keys)
    served = [*keys[first:], *keys[:first]][:allowed]
    parts = dict.fromkeys(keys, 0) | dict.fromkeys(served, 1)
    rest, total = allowed - len(served), sum(waiting.values()) - len(keys)
    seen = handed_out = 0
    for key in keys if rest else ():
        seen += waiting[key] - 1
        upto = rest * seen // total
        parts[key] += upto - handed_out
        handed_out = upto
    return parts


def _bytes(log: RemoteLog, topic: TopicHandle, starts: Offsets, ends: Ends) -> int:
    """Return about how many bytes a range has: file bytes, and bytes in memory for the rest."""
    plan: ScanPlan = log.table(topic.name).plan(
        start={
            partition: starts.get(topic.name, {}).get(partition, 0) for partition in topic.bounds
        },
        until={partition: ends[topic.name][partition] for partition in topic.bounds},
    )
    sealed = sum(
        file.bytes * (file.until - file.start) // max(1, file.records) for file in plan.files
    )
    return sealed + sum(hot_range.bytes for hot_range in plan.hot)
