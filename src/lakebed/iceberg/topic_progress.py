"""How far the Iceberg table of each topic is behind its topic.

A topic whose segments are the same as when its table was last synced needs no look at the catalog.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from lakebed.iceberg.parts import LakeParts
from lakebed.state.values import LOCAL, Partition, Segment, Topic

Shape = tuple[int, tuple[tuple[Segment, ...], ...]]
"""What a table depends on: the number of schemas, and the segments of every partition."""


class Lag(NamedTuple):
    """How far a table is behind its topic."""

    records: int
    """Acknowledged records that the table does not show yet."""
    seconds: float
    """How long the oldest of them has been waiting; 0 if there is none."""


class TopicProgress:
    """What the tables of a log's topics show, as far as is known. Any thread."""

    def __init__(self, parts: LakeParts) -> None:
        self._log = parts.log
        self._stored = parts.store is not None
        self._guard = threading.Lock()
        self._synced: dict[int, Shape] = {}
        """The shape of each topic when its table was last synced completely."""
        self._shown: dict[int, Mapping[int, int]] = {}
        """Offsets of a topic's partitions below which its table shows every record."""
        self._waiting: dict[int, float] = {}
        """Since when a topic has sealed records that its table does not show."""

    def behind(self) -> list[Topic]:
        """Return the topics whose tables do not show what they should, as far as is known."""
        now = self._log.clock.monotonic()
        topics = []
        for topic in list(self._log.state.topics.values()):
            shape = self.shape(topic)
            if self._has_sealed(topic) and not _same(shape, self._synced.get(topic.id)):
                topics.append(topic)
                with self._guard:
                    self._waiting.setdefault(topic.id, now)
        return topics

    def shape(self, topic: Topic) -> Shape:
        """Return what the table of a topic depends on now."""
        partitions = [
            self._log.partition((topic.id, partition_id))
            for partition_id in range(topic.partitions)
        ]
        segments = tuple(
            partition.segments if partition is not None else () for partition in partitions
        )
        return len(topic.schemas), segments

    def record(self, topic: Topic, shape: Shape, offsets: Mapping[int, int]) -> None:
        """Record that the table of a topic was synced when it had this shape."""
        with self._guard:
            self._shown[topic.id] = offsets
            if self._is_complete(shape):
                self._synced[topic.id] = shape
                self._waiting.pop(topic.id, None)
            else:
                self._synced.pop(topic.id, None)

    def _is_complete(self, shape: Shape) -> bool:
        """Return whether no segment was sealed after the others had been uploaded."""
        segments = (segment for partition in shape[1] for segment in partition)
        return not self._stored or all(segment.place != LOCAL for segment in segments)

    def learn(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Take from a table how far it is, if it was not synced since the log was opened."""
        with self._guard:
            self._shown.setdefault(topic.id, offsets)

    def forget_deleted(self) -> None:
        """Forget the topics that were deleted."""
        living = self._log.state.topics
        with self._guard:
            for by_topic in (self._synced, self._shown, self._waiting):
                for topic_id in [topic_id for topic_id in by_topic if topic_id not in living]:
                    del by_topic[topic_id]

    def lag(self, topic: Topic) -> Lag:
        """Return how far a topic's table is behind."""
        now = self._log.clock.monotonic()
        synced = self._synced.get(topic.id)
        shown_ids = (
            {segment.id for segments in synced[1] for segment in segments} if synced else set()
        )
        shown = self._shown.get(topic.id, {})
        records, oldest = 0, now
        for partition_id in range(topic.partitions):
            partition = self._log.partition((topic.id, partition_id)) or Partition()
            records += sum(
                segment.records
                for segment in partition.segments
                if segment.id not in shown_ids and segment.end > shown.get(partition_id, 0)
            )
            memtable = self._log.memtables.get((topic.id, partition_id))
            if memtable is not None and len(memtable):
                records += partition.end - max(partition.flushed, partition.low)
                oldest = min(oldest, memtable.since)
        with self._guard:
            oldest = min(oldest, self._waiting.get(topic.id, now))
        return Lag(records, now - oldest if records else 0.0)

    def _has_sealed(self, topic: Topic) -> bool:
        """Return whether a topic has, or had, records in segments; if not, it needs no table."""
        partitions = (
            self._log.partition((topic.id, partition_id))
            for partition_id in range(topic.partitions)
        )
        return any(partition is not None and partition.flushed > 0 for partition in partitions)


def _same(one: Shape, other: Shape | None) -> bool:
    """Compare by identity: a partition's segments are a value that is replaced, never changed."""
    return (
        other is not None
        and one[0] == other[0]
        and len(one[1]) == len(other[1])
        and all(here is there for here, there in zip(one[1], other[1], strict=True))
    )
