"""Segments by name: what the log knows of each, for whoever checks their files elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from lakebed.engine.core import Core, Key
from lakebed.reports.topics import SegmentInfo
from lakebed.state.values import Partition, Segment, Topic


def segment_of(info: SegmentInfo) -> Segment:
    """Return a described segment as the log's state holds it."""
    return Segment(*(getattr(info, name) for name in Segment._fields))


def describe_segments(
    core: Core, topic: Topic, key: Key, locate: Callable[[int, int, Segment], str]
) -> list[SegmentInfo]:
    """Describe the segments of a partition, in the order of offsets."""
    return [
        SegmentInfo(
            topic=topic.name,
            topic_id=topic.id,
            partition=key[1],
            location=locate(*key, segment),
            **segment._asdict(),
        )
        for segment in (core.partition(key) or Partition()).segments
    ]
