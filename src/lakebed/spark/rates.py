"""How far a micro-batch may go: so many records, or about so many bytes, shared out fairly.

Every partition that has records waiting gets one of them, and a share of the rest in proportion to
what it has waiting: none is starved, and all of them come to their ends at about the same time.
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


def limited(
    log: RemoteLog,
    topics: list[TopicHandle],
    starts: Offsets,
    ends: Ends,
    records_max: int | None,
    bytes_max: int | None,
) -> Ends:
    """Return ends within a limit; at least one record is read if there is one."""
    waiting = {
        (topic.name, number): count
        for topic in topics
        for number, (low, _) in topic.bounds.items()
        if (count := ends[topic.name][number] - _begin(starts, topic.name, number, low)) > 0
    }
    lows = {
        (topic.name, number): low for topic in topics for number, (low, _) in topic.bounds.items()
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
    for (name, number), count in shared(waiting, allowed, turn).items():
        begin = _begin(starts, name, number, lows[(name, number)])
        chosen[name][number] = begin + count
    return chosen


def _begin(starts: Offsets, topic: str, partition: int, low: int) -> int:
    return max(low, starts.get(topic, {}).get(partition, 0))


def shared(
    waiting: Mapping[tuple[str, int], int], allowed: int, turn: int = 0
) -> dict[tuple[str, int], int]:
    """Share a number of records out; the parts add up to it exactly.

    Everyone who waits gets one, as far as they go, and the rest is shared in proportion. If there
    are more who wait than that, `turn` says whose turn it is; it grows with what was read.
    """
    keys = sorted(waiting)
    first = turn % len(keys)
    served = [*keys[first:], *keys[:first]][:allowed]
    parts = dict.fromkeys(keys, 0) | dict.fromkeys(served, 1)
    rest, total = allowed - len(served), sum(waiting.values()) - len(keys)
    seen = given = 0
    for key in keys if rest else ():
        seen += waiting[key] - 1
        upto = rest * seen // total
        parts[key] += upto - given
        given = upto
    return parts


def _bytes(log: RemoteLog, topic: TopicHandle, starts: Offsets, ends: Ends) -> int:
    """Return about how many bytes a range has: of files as they lie, of the rest as in memory."""
    plan: ScanPlan = log.table(topic.name).plan(
        start={number: starts.get(topic.name, {}).get(number, 0) for number in topic.bounds},
        until={number: ends[topic.name][number] for number in topic.bounds},
    )
    sealed = sum(
        each.bytes * (each.until - each.start) // max(1, each.records) for each in plan.files
    )
    return sealed + sum(each.bytes for each in plan.hot)
