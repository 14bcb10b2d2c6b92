"""Segments by name: what the log knows of each, for whoever checks their files elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakebed.engine.core import Core, Key
from lakebed.state.values import Partition, Segment, Topic


@dataclass(frozen=True)
class SegmentInfo:
    """A sealed Parquet file of one partition, and everything that is known of it."""

    topic: str
    topic_id: int
    partition: int
    id: int
    base: int
    end: int
    records: int
    file_bytes: int
    tail_bytes: int
    tail_checksum: int
    time_min_us: int
    time_max_us: int
    place: int
    location: str
    """Its URL: `file://…`, or that of the object store."""

    def segment(self) -> Segment:
        """Return it as the log's state holds it."""
        return Segment(*(getattr(self, name) for name in Segment._fields))


def described(
    core: Core, topic: Topic, key: Key, locate: Callable[[int, int, Segment], str]
) -> list[SegmentInfo]:
    """Describe the segments of a partition, in the order of offsets."""
    return [
        SegmentInfo(
            topic=topic.name,
            topic_id=topic.id,
            partition=key[1],
            location=locate(*key, each),
            **each._asdict(),
        )
        for each in (core.partition(key) or Partition()).segments
    ]
