"""Scan plans: which files hold a range of a topic, and what of it only the log itself has yet.

A reader that can get at the files (Spark, on the lake's object store) reads them itself, and
asks the log for the rest alone. A file may hold more than the range: offsets outside of `start` and
`until` are not part of the plan. Files stay for the lake's grace time after the log has dropped
them, so a plan can be used for that long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakebed.reports.topics import HotRange, ScanPlan, SealedFile
from lakebed.state.values import Partition, Segment


def plan(
    topic: str,
    partitions: Mapping[int, Partition],
    lowest: Mapping[int, int],
    highest: Mapping[int, int],
    locate: Callable[[int, Segment], str],
    weigh: Callable[[int, int, int], int],
) -> ScanPlan:
    """Return the plan of a range of offsets, bounded by what each partition has.

    `locate` gives the place of a segment's file, `weigh` the size of records in memory.
    """
    files: list[SealedFile] = []
    hot: list[HotRange] = []
    for partition_id, partition in sorted(partitions.items()):
        start = max(partition.low, lowest.get(partition_id, 0))
        until = min(partition.end, highest.get(partition_id, partition.end))
        for segment in partition.segments:
            first, last = max(start, segment.base), min(until, segment.end)
            if first < last:
                location = locate(partition_id, segment)
                whole = first == segment.base and last == segment.end
                size = segment.file_bytes
                files.append(
                    SealedFile(partition_id, location, first, last, segment.records, size, whole)
                )
        first = max(start, partition.flushed)
        if first < until:
            hot.append(HotRange(partition_id, first, until, weigh(partition_id, first, until)))
    return ScanPlan(topic, tuple(files), tuple(hot))
