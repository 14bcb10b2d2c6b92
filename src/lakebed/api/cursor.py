"""Where a consumer is: the next offset of each partition, and what it has received so far."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

import pyarrow as pa

from lakebed.types import TopicPartition

_log = logging.getLogger("lakebed.engine")


class Fetched(NamedTuple):
    """The next records of a consumer, and where it is once it has received them."""

    table: pa.Table | None
    """None if there are no records."""
    following: dict[TopicPartition, int]
    """The next offset of each partition that was read."""
    given: dict[TopicPartition, int]
    """The next offset of each partition that has records in the table."""
    allowed: frozenset[TopicPartition] | None = None
    """The partitions that the group assigns to the member; None for a consumer without one.

    If they are not the partitions of the cursor, nothing was read.
    """
    empty: pa.Table | None = None
    """A table without records in the columns of the consumer, if the log sent one."""


class Cursor:
    """Positions of one consumer. One thread at a time."""

    def __init__(self, group: str | None) -> None:
        self.group = group
        self.positions: dict[TopicPartition, int] = {}
        """The next offset of each partition."""
        self.given: dict[TopicPartition, int] = {}
        """The offset behind the last record that the consumer received, by partition."""
        self.ids: dict[str, int] = {}
        """The id that each topic had when it was last looked up."""
        self.turn = 0
        """Counts fetches, so that partitions take turns."""
        self.skipped_records = 0
        """Records that were removed before the consumer could read them."""

    def topics(self) -> set[str]:
        """Return the names of the topics that are read."""
        return {partition.topic for partition in self.positions}

    def restart(self, topic: str, topic_id: int, low: Callable[[int], int]) -> None:
        """Start again in a topic that was deleted and recreated: its old offsets mean nothing.

        `low` returns the first offset of a partition.
        """
        if self.ids.setdefault(topic, topic_id) == topic_id:
            return
        _log.warning("%s was deleted and created again; reading from its start", topic)
        for partition in self.positions:
            if partition.topic == topic:
                self.given.pop(partition, None)
                self.positions[partition] = low(partition.partition)
        self.ids[topic] = topic_id

    def skip(self, partition: TopicPartition, position: int, low: int, end: int) -> int:
        """Return where to continue instead of at a position that the partition does not have."""
        if position > end:
            _log.warning(
                "%s/%d ends at %d, before offset %d: it was created again; reading from its start",
                partition.topic,
                partition.partition,
                end,
                position,
            )
            return low
        self.skipped_records += low - position
        _log.warning(
            "%d records of %s/%d were removed before group %s read them; going on at %d",
            low - position,
            partition.topic,
            partition.partition,
            self.group,
            low,
        )
        return low

    def give(self, fetched: Fetched) -> pa.Table | None:
        """Move behind what was fetched: from here on a commit counts it as read."""
        self.positions.update(fetched.following)
        self.given.update(fetched.given)
        return fetched.table

    def give_up(self, places: Collection[TopicPartition]) -> None:
        """Forget partitions that the group assigned to another member."""
        for partition in places:
            self.positions.pop(partition, None)
            self.given.pop(partition, None)
        left = self.topics()
        self.ids = {name: topic_id for name, topic_id in self.ids.items() if name in left}
