"""What the Iceberg table of each topic is to show, and how far it is behind.

The state says which segments there are. With a store, a table shows those that are there; without
one, all of them. A topic whose segments are the same as when its table was last synced needs no
look at the catalog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakebed.iceberg.parts import LogView
from lakebed.iceberg.table_metadata import Registered
from lakebed.iceberg.topic_table import Synced, Tables, Wanted
from lakebed.lake.places import Places
from lakebed.lake.reader import SegmentReader
from lakebed.lake.schema import numbered_schema
from lakebed.state.values import LOCAL, Partition, Segment, Topic

Shape = tuple[int, tuple[tuple[Segment, ...], ...]]
"""What a table depends on: the number of schemas, and every partition's segments."""


class Lag(NamedTuple):
    """How far a table is behind its topic."""

    records: int
    """Acknowledged records that the table does not show yet."""
    seconds: float
    """How long the oldest of them has been waiting; 0 if there is none."""


class TopicTables:
    """The tables of a log's topics. `sync` by one thread at a time, the rest by anyone."""

    def __init__(
        self,
        core: LogView,
        tables: Tables,
        places: Places,
        reader: SegmentReader,
        flush: Callable[[], None],
        *,
        stored: bool,
    ) -> None:
        self.tables = tables
        self._core = core
        self._places = places
        self._reader = reader
        self._flush = flush
        self._stored = stored
        self._guard = threading.Lock()
        self._synced: dict[int, Shape] = {}
        self._shown: dict[int, Mapping[int, int]] = {}
        """Offsets of a topic's partitions below which its table shows every record."""
        self._waiting: dict[int, float] = {}
        """Since when a topic has sealed records that its table does not show."""

    def behind(self) -> list[Topic]:
        """Return the topics whose tables do not show what they should, as far as is known."""
        now = self._core.clock.monotonic()
        topics = []
        for topic in list(self._core.state.topics.values()):
            shape = self._shape(topic)
            if self._has_sealed(topic) and not _same(shape, self._synced.get(topic.id)):
                topics.append(topic)
                with self._guard:
                    self._waiting.setdefault(topic.id, now)
        return topics

    def sync(self, topic: Topic, *, take_over: bool = False) -> Synced:
        """Make the table of a topic show its segments."""
        self._places.check()
        shape = self._shape(topic)
        wanted = self._wanted(topic)
        self._flush()  # what a table shows must survive, whatever the log's sync mode
        synced = self.tables.sync(wanted, take_over=take_over)
        with self._guard:
            self._shown[topic.id] = wanted.offsets
            if self._is_complete(shape):
                self._synced[topic.id] = shape
                self._waiting.pop(topic.id, None)
            else:
                self._synced.pop(topic.id, None)
        return synced

    def _is_complete(self, shape: Shape) -> bool:
        """Return whether no segment was sealed after the others had been uploaded."""
        segments = (segment for each in shape[1] for segment in each)
        return not self._stored or all(segment.place != LOCAL for segment in segments)

    def drop_others(self) -> list[str]:
        """Drop the tables of topics that are no more, and forget them."""
        living = self._core.state.topics
        with self._guard:
            for known in (self._synced, self._shown, self._waiting):
                for number in [each for each in known if each not in living]:
                    del known[number]
        # First the position, then the names: a topic that is made in between is not missed.
        position = self._core.state.numbers["applied"]
        return self.tables.drop_others(dict(self._core.state.names), position)

    def learn(self, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Take from a table how far it has come, if it was not synced since the log was opened."""
        with self._guard:
            self._shown.setdefault(topic.id, offsets)

    def lag(self, topic: Topic) -> Lag:
        """Return how far a topic's table is behind."""
        now = self._core.clock.monotonic()
        synced = self._synced.get(topic.id)
        known = {segment.id for segments in synced[1] for segment in segments} if synced else set()
        shown = self._shown.get(topic.id, {})
        records, oldest = 0, now
        for number in range(topic.partitions):
            partition = self._core.partition((topic.id, number)) or Partition()
            records += sum(
                each.records
                for each in partition.segments
                if each.id not in known and each.end > shown.get(number, 0)
            )
            memtable = self._core.memtables.get((topic.id, number))
            if memtable is not None and len(memtable):
                records += partition.end - max(partition.flushed, partition.low)
                oldest = min(oldest, memtable.since)
        with self._guard:
            oldest = min(oldest, self._waiting.get(topic.id, now))
        return Lag(records, now - oldest if records else 0.0)

    def _wanted(self, topic: Topic) -> Wanted:
        # First the position, then the segments: what comes in between is shown and not claimed.
        position = self._core.state.numbers["applied"]
        files, offsets = {}, {}
        for number in range(topic.partitions):
            partition = self._core.partition((topic.id, number)) or Partition()
            shown = [each for each in partition.segments if self._is_shown(each)]
            for segment in shown:
                place = self._places.segment(topic.id, number, segment)
                files[place] = self._registered(topic.id, number, segment)
            hidden = [each.base for each in partition.segments if not self._is_shown(each)]
            offsets[number] = min([*hidden, partition.flushed])
        columns = self._core.columns(topic)
        first = columns
        if len(topic.schemas) > 1:
            first = numbered_schema([self._core.schema(topic, 1).field("value").type])
        return Wanted(topic.id, topic.name, columns, first, files, position, offsets)

    def _is_shown(self, segment: Segment) -> bool:
        return segment.records > 0 and not (self._stored and segment.place == LOCAL)

    def _registered(self, topic: int, partition: int, segment: Segment) -> Registered:
        return Registered(
            partition, segment, lambda: self._reader.metadata(topic, partition, segment)
        )

    def _has_sealed(self, topic: Topic) -> bool:
        """Return whether a topic has, or had, records in segments; if not, it needs no table."""
        found = (self._core.partition((topic.id, each)) for each in range(topic.partitions))
        return any(each is not None and each.flushed > 0 for each in found)

    def _shape(self, topic: Topic) -> Shape:
        found = [self._core.partition((topic.id, each)) for each in range(topic.partitions)]
        segments = tuple(each.segments if each is not None else () for each in found)
        return len(topic.schemas), segments


def _same(one: Shape, other: Shape | None) -> bool:
    """Compare by identity: a partition's segments are a value that is replaced, never changed."""
    return (
        other is not None
        and one[0] == other[0]
        and len(one[1]) == len(other[1])
        and all(here is there for here, there in zip(one[1], other[1], strict=True))
    )
