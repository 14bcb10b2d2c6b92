"""The embedded log as its users see it: topics, writing, reading, groups, transactions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from lakebed import limits
from lakebed.api.arguments import checked_wait
from lakebed.api.reads import Bounds, checked_bounds, microseconds
from lakebed.api.together import CommittedTogether, outcome_of
from lakebed.config import LogConfig, TopicConfig
from lakebed.engine.assembly import Assembly
from lakebed.engine.compaction import planned
from lakebed.engine.core import Key
from lakebed.engine.segments import described
from lakebed.engine.table import EmbeddedTable
from lakebed.host import Clock, Disk
from lakebed.reports.maintenance import (
    BackupReport,
    CheckpointReport,
    CleanupReport,
    CompactionPlan,
    RewriteReport,
)
from lakebed.reports.topics import SegmentInfo, TopicInfo
from lakebed.state.commands import CommitTogether
from lakebed.types import Progress, say_nothing


class EmbeddedLog(Assembly):
    """A log in a folder that this process owns."""

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        config: LogConfig | None = None,
        *,
        progress: Progress | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        threaded: bool = True,
    ) -> Self:
        """Open the log in `folder`: see `Log.open`."""
        return cls._open(folder, config, progress, disk, clock, threaded=threaded)

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Make a topic: raw without a schema (values are bytes), typed with one."""
        self._check_open()
        return self._topics.create(name, partitions, schema, config)

    def get_or_create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Return a topic as it is, or make it if there is none of that name."""
        self._check_open()
        return self._topics.get_or_create(name, partitions, schema, config)

    def topics(self) -> list[str]:
        """List the names of the topics, without those of the log's own."""
        self._check_open()
        return self._topics.names()

    def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic."""
        self._check_open()
        return self._topics.describe(name)

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, object] | TopicConfig | None = None,
        schema: pa.Schema | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings, add nullable fields to the schema, add partitions."""
        self._check_open()
        return self._topics.alter(name, config, schema, partitions)

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Let a topic have so many partitions in all. Keys written from now on may go elsewhere."""
        self._check_open()
        return self._topics.add_partitions(name, partitions)

    def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets go on where they were."""
        self._check_open()
        self._topics.purge(name)
        self._checkpointer.remove_dropped()
        self.lake.nudge()

    def delete_topic(self, name: str) -> None:
        """Remove a topic with everything in it; one made later under its name begins empty."""
        self._check_open()
        self._topics.delete(name)
        self._checkpointer.remove_dropped()
        self.lake.nudge()

    # Transactions

    def _commit_together(self, command: CommitTogether) -> CommittedTogether:
        self._admit()
        return outcome_of(self._submit(command))

    def _committed_number(self, name: str) -> int | None:
        marker = self._core.state.markers.get(name)
        return None if marker is None else marker.number

    # Reading

    def read(
        self,
        topic: str,
        partition: int = 0,
        offset: int | str = "earliest",
        *,
        max_records: int = 10_000,
        max_bytes: int = 16 * limits.MIB,
        columns: Sequence[str] | None = None,
        wait_ms: int | None = 0,
    ) -> pa.Table:
        """Return records of a partition from `offset` on, as one table; empty at the end."""
        self._check_open()
        seconds = checked_wait(wait_ms)
        bounds = checked_bounds(max_records, max_bytes)
        table, wanted = self._read_now(topic, partition, offset, bounds, columns)
        if table.num_rows or seconds == 0 or not self._reading.wait(wanted, seconds):
            return table
        following = next(iter(wanted.values()))
        return self._read_now(topic, partition, following, bounds, columns)[0]

    def table(self, name: str) -> EmbeddedTable:
        """Return a topic as a table: scans, lookups by key, the current record of each key."""
        self._check_open()
        return EmbeddedTable(
            self._core,
            self._reading,
            self._segments,
            self._lookup,
            self.lake.table,
            self.lake.locate,
            name,
        )

    def _read_now(
        self,
        topic: str,
        partition: int,
        offset: int | str,
        bounds: Bounds,
        columns: Sequence[str] | None,
    ) -> tuple[pa.Table, dict[Key, int]]:
        """Return what there is from `offset` on, and where the next record would be."""
        found = self._reading.topic(topic)
        start = self._reading.start(found, partition, offset)
        table, following = self._reading.read(found, partition, start, bounds, columns)
        return table, {self._reading.key(found, partition): following}

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end of each partition; the end is exclusive."""
        self._check_open()
        return self._reading.offsets(self._reading.topic(topic))

    def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset whose record is of that time or later."""
        self._check_open()
        return self._reading.offset_for_time(
            self._reading.topic(topic), partition, microseconds(timestamp)
        )

    # Looking after it

    def checkpoint(self) -> CheckpointReport:
        """Put what is in memory into segments, write a snapshot, free WAL files."""
        self._check_open()
        report: CheckpointReport = self._maintenance.checkpoint()
        return report

    def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all."""
        self._check_open()
        if topic is not None:
            return self._maintenance.clean([self._topics.find(topic)])
        return self._maintenance.clean(self._topics.every())

    def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return the segments of a topic that are due for a compaction by key, and their files."""
        self._check_open()
        return planned(self._core, self._topics.find(topic), self.lake.locate, force=force)

    def rewrite_segments(
        self, topic: str, partition: int, segments: Sequence[int], survivors: bytes
    ) -> RewriteReport:
        """Let only the survivors of a compaction stand for segments that follow each other."""
        self._check_open()
        key = self._reading.key(self._topics.find(topic), partition)
        return self._maintenance.rewrite(lambda: self._survival.rewrite(key, segments, survivors))

    def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the log as it is at one point, verified, into a folder that is new or empty."""
        self._check_open()
        with self._backing_up:
            self._check_open()
            return self._backups.take(target, progress or say_nothing)

    def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return how many. Raises at the first damage."""
        self._check_open()
        if topic is not None:
            return self._reading.verify(self._topics.find(topic))
        topics = sorted(self._core.state.topics.values(), key=lambda each: each.name)
        return sum(self._reading.verify(each) for each in topics)

    def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Return what is known of each segment of a partition, and where its file is."""
        self._check_open()
        found = self._topics.find(topic)
        key = self._reading.key(found, partition)
        return described(self._core, found, key, self.lake.locate)

    def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of one segment, wherever it is; False if there is none of that id."""
        self._check_open()
        key = self._reading.key(self._topics.find(topic), partition)
        return self._reading.verify_segment(key, segment)

    def tick(self) -> None:
        """Do what maintenance would do now: timeouts, due checkpoints, retention."""
        self._check_open()
        self._maintenance.tick()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._core.state.topics)} topics"
        return f"<Log {str(self.folder)!r}: {state}>"
