"""What the tables need from the log: a view of its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

from lakebed.host import Clock
from lakebed.state.image import State
from lakebed.state.values import Partition, Topic
from lakebed.topic.memtable import Memtable

PartitionKey = tuple[int, int]
"""A partition: the topic's id and the partition's number."""


class LogView(Protocol):
    """The log as its tables see it. Any thread; the engine's `Core` is one."""

    state: State
    clock: Clock

    @property
    def memtables(self) -> Mapping[PartitionKey, Memtable]:
        """Return the records of each partition that are not in segments yet."""

    def topic(self, number: int, /) -> Topic | None:
        """Find a topic by id."""

    def partition(self, key: PartitionKey, /) -> Partition | None:
        """Find a partition, in a state where no command is half applied."""

    def schema(self, topic: Topic, version: int, /) -> pa.Schema:
        """Return the storage schema of a topic's schema version; 0 for a raw topic."""

    def columns(self, topic: Topic, /) -> pa.Schema:
        """Return the columns of a topic's segments, with the field ids of its Iceberg table."""

    def check_may_wait(self) -> None:
        """Refuse a callback of the committing thread, which waiting would hold up."""
