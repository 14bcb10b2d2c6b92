"""What the tables need from the log: a view of its state, and the parts that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lakebed.config import LakeConfig, resolve_env
from lakebed.host import Clock, Disk
from lakebed.host.store import ObjectStore
from lakebed.iceberg.pointers import TableOwner
from lakebed.lake.folder import LakeFolder
from lakebed.lake.locations import TABLES_NAME, Locations
from lakebed.lake.remote_cache import RemoteCache
from lakebed.lake.segment_reader import SegmentReader
from lakebed.state.commands import Command
from lakebed.state.image import State
from lakebed.state.values import Partition, Topic
from lakebed.topic.memtable import Memtable
from lakebed.wal import Wal

PartitionKey = tuple[int, int]
"""A partition: the topic's id and the partition's number."""


class LogView(Protocol):
    """The log as its tables see it. Any thread; the engine's `Core` is one."""

    state: State
    clock: Clock

    @property
    def memtables(self) -> Mapping[PartitionKey, Memtable]:
        """Return the records of each partition that are not in segments yet."""

    def topic(self, topic_id: int, /) -> Topic | None:
        """Find a topic by id."""

    def partition(self, key: PartitionKey, /) -> Partition | None:
        """Find a partition, in a state where no command is half applied."""

    def schema(self, topic: Topic, version: int, /) -> pa.Schema:
        """Return the storage schema of a topic's schema version; 0 for a raw topic."""

    def columns(self, topic: Topic, /) -> pa.Schema:
        """Return the columns of a topic's segments, with the field ids of its Iceberg table."""

    def check_may_wait(self) -> None:
        """Refuse a callback of the committing thread, which waiting would hold up."""


class CommandWriter(Protocol):
    """Writes commands to the log. Any thread; the engine's `Writing` is one."""

    def submit(self, command: Command, /) -> Any:
        """Write a command; return its result when it is durable and applied."""


@dataclass(frozen=True)
class LakeParts:
    """The parts of a log that its tables, its object store and their cleanup share."""

    log: LogView
    wal: Wal
    commands: CommandWriter
    config: LakeConfig
    segments: LakeFolder
    """The segments on the local disk."""
    reader: SegmentReader
    store: ObjectStore | None
    remote_cache: RemoteCache | None
    """Local copies of segments that are in the store; None without a store."""
    locations: Locations
    owner: TableOwner | None = None
    """Who may change the tables of a log that ships its entries; None for one on this disk."""

    @property
    def disk(self) -> Disk:
        """Return the disk that the log is on."""
        return self.segments.disk

    @property
    def folder(self) -> Path:
        """Return the folder of the log."""
        return self.wal.folder

    @cached_property
    def log_id(self) -> str:
        """Return the log's identity, as its tables state it."""
        return str(self.wal.log_id)

    @cached_property
    def tables_folder(self) -> Path:
        """Return the local folder of the topics' tables, and of the log's own catalog."""
        return self.folder / TABLES_NAME

    def has_table_files(self) -> bool:
        """Return whether topics have tables, or had some whose files may be left."""
        return self.store is not None or bool(self.disk.names(self.tables_folder))


def open_store(config: LakeConfig) -> ObjectStore | None:
    """Return the store of a log, if it has one."""
    return ObjectStore(config.store, resolve_env(config.store_options)) if config.store else None
