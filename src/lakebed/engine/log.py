"""The embedded log as its users see it: topics, writing, reading, groups, transactions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from lakebed import limits
from lakebed.api.arguments import wait_seconds
from lakebed.api.log import Log
from lakebed.api.reads import Bounds, check_bounds, microseconds
from lakebed.api.together import CommittedTogether, outcome_of
from lakebed.config import LogConfig, TopicConfig
from lakebed.engine.access import Access
from lakebed.engine.assembly import assemble
from lakebed.engine.audit import Audit
from lakebed.engine.compaction import plan_merges
from lakebed.engine.core import Key
from lakebed.engine.ownership import Takeover
from lakebed.engine.parts import Parts
from lakebed.engine.segments import describe_segments
from lakebed.engine.settings import effective_config
from lakebed.engine.stats import collect_stats
from lakebed.engine.table import EmbeddedTable
from lakebed.errors import InvalidArgumentError
from lakebed.host import Clock, Disk, OsDisk, SystemClock
from lakebed.iceberg.derived_table import Derived
from lakebed.iceberg.lake import Lake
from lakebed.reports.maintenance import (
    BackupReport,
    CheckpointReport,
    CleanupReport,
    CompactionPlan,
    RewriteReport,
)
from lakebed.reports.stats import LogStats
from lakebed.reports.topics import SegmentInfo, TopicInfo
from lakebed.state.commands import CommitTogether
from lakebed.types import Progress, say_nothing


class EmbeddedLog(Log):
    """A log in a folder that this process owns, or a replica of a log in a store."""

    lake: Lake
    derived: Derived
    access: Access
    audit: Audit
    """What a server refused, and what was done to the log itself."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.folder = parts.folder
        self.config = parts.config
        self.lake = parts.lake
        self.derived = parts.derived
        self.access = parts.access
        self.audit = parts.audit
        self._backend = parts.backend

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
        takeover: Takeover | None = None,
    ) -> Self:
        """Open the log in `folder`: see `Log.open`. `takeover` is for a log in a store."""
        if not isinstance(folder, (str, os.PathLike)) or "\0" in os.fspath(folder):
            raise InvalidArgumentError("the folder is not a path", got=repr(folder))
        if config is not None and not isinstance(config, LogConfig):
            raise InvalidArgumentError(
                "the settings are not a LogConfig", got=type(config).__name__
            )
        disk, path = disk or OsDisk(), Path(folder)
        parts = assemble(
            path,
            effective_config(disk, path, os.environ) if config is None else config,
            disk=disk,
            clock=clock or SystemClock(),
            tell=progress or say_nothing,
            threaded=threaded,
            takeover=takeover,
        )
        return cls(parts)

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
        return self.parts.topics.create(name, partitions, schema, config)

    def get_or_create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Return a topic as it is, or make it if there is none of that name."""
        self._check_open()
        return self.parts.topics.get_or_create(name, partitions, schema, config)

    def topics(self) -> list[str]:
        """List the names of the topics, without those of the log's own."""
        self._check_open()
        return self.parts.topics.names()

    def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic."""
        self._check_open()
        return self.parts.topics.describe(name)

    def alter_topic(
        self,
        name: str,
        config: Mapping[str, object] | TopicConfig | None = None,
        schema: pa.Schema | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings, add nullable fields to the schema, add partitions."""
        self._check_open()
        return self.parts.topics.alter(name, config, schema, partitions)

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Let a topic have so many partitions in all. Keys written from now on may go elsewhere."""
        self._check_open()
        return self.parts.topics.add_partitions(name, partitions)

    def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets go on where they were."""
        self._check_open()
        self.parts.topics.purge(name)
        self.parts.checkpointer.remove_dropped()
        self.lake.nudge()

    def delete_topic(self, name: str) -> None:
        """Remove a topic with everything in it; one made later under its name begins empty."""
        self._check_open()
        self.parts.topics.delete(name)
        self.parts.checkpointer.remove_dropped()
        self.lake.nudge()

    # Transactions

    def _commit_together(self, command: CommitTogether) -> CommittedTogether:
        self.parts.admission.admit()
        return outcome_of(self._submit(command))

    def _committed_number(self, name: str) -> int | None:
        marker = self.parts.core.state.markers.get(name)
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
        seconds = wait_seconds(wait_ms)
        bounds = check_bounds(max_records, max_bytes)
        table, wanted = self._read_now(topic, partition, offset, bounds, columns)
        if table.num_rows or seconds == 0 or not self.parts.reading.wait(wanted, seconds):
            return table
        following = next(iter(wanted.values()))
        return self._read_now(topic, partition, following, bounds, columns)[0]

    def table(self, name: str) -> EmbeddedTable:
        """Return a topic as a table: scans, lookups by key, the current record of each key."""
        self._check_open()
        parts = self.parts
        return EmbeddedTable(
            core=parts.core,
            reading=parts.reading,
            segments=parts.segment_reader,
            lookup=parts.lookup,
            iceberg=parts.lake.table,
            locate=parts.lake.locate,
            name=name,
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
        reading = self.parts.reading
        topic_state = reading.topic(topic)
        start = reading.start(topic_state, partition, offset)
        table, following = reading.read(topic_state, partition, start, bounds, columns)
        return table, {reading.key(topic_state, partition): following}

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end of each partition; the end is exclusive."""
        self._check_open()
        return self.parts.reading.offsets(self.parts.reading.topic(topic))

    def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset whose record is of that time or later."""
        self._check_open()
        return self.parts.reading.offset_for_time(
            self.parts.reading.topic(topic), partition, microseconds(timestamp)
        )

    # Looking after it

    def checkpoint(self) -> CheckpointReport:
        """Put what is in memory into segments, write a snapshot, free WAL files."""
        self._check_writable()
        report: CheckpointReport = self.parts.maintenance.checkpoint()
        return report

    def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all."""
        self._check_writable()
        if topic is not None:
            return self.parts.maintenance.clean([self.parts.topics.find(topic)])
        return self.parts.maintenance.clean(self.parts.topics.every())

    def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return the segments of a topic that are due for a compaction by key, and their files."""
        self._check_open()
        return plan_merges(
            self.parts.core, self.parts.topics.find(topic), self.lake.locate, force=force
        )

    def rewrite_segments(
        self, topic: str, partition: int, segments: Sequence[int], survivors: bytes
    ) -> RewriteReport:
        """Let only the survivors of a compaction stand for segments that follow each other."""
        self._check_writable()
        key = self.parts.reading.key(self.parts.topics.find(topic), partition)
        return self.parts.maintenance.rewrite(
            lambda: self.parts.compaction_rewrite.rewrite(key, segments, survivors)
        )

    def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the log as it is at one point, verified, into a folder that is new or empty."""
        self._check_writable()
        with self.parts.lifecycle.backing_up:
            self._check_open()
            return self.parts.backups.take(target, progress or say_nothing)

    def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return how many. Raises at the first damage."""
        self._check_open()
        if topic is not None:
            return self.parts.reading.verify(self.parts.topics.find(topic))
        topics = sorted(
            self.parts.core.state.topics.values(), key=lambda topic_state: topic_state.name
        )
        return sum(self.parts.reading.verify(topic_state) for topic_state in topics)

    def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Return what is known of each segment of a partition, and where its file is."""
        self._check_open()
        topic_state = self.parts.topics.find(topic)
        key = self.parts.reading.key(topic_state, partition)
        return describe_segments(self.parts.core, topic_state, key, self.lake.locate)

    def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of one segment, wherever it is; False if there is none of that id."""
        self._check_open()
        key = self.parts.reading.key(self.parts.topics.find(topic), partition)
        return self.parts.reading.verify_segment(key, segment)

    def tick(self) -> None:
        """Do what maintenance would do now: timeouts, due checkpoints, retention."""
        self._check_writable()
        self.parts.maintenance.tick()

    def stats(self) -> LogStats:
        """Return counters and the current state of the log."""
        self._check_open()
        return collect_stats(self.parts)

    def close(self) -> None:
        """Finish what was appended and release the folder. A second call does nothing.

        What is in memory stays in the WAL and is read again at the next opening; `checkpoint`
        before makes that quicker.
        """
        parts, lifecycle = self.parts, self.parts.lifecycle
        if lifecycle.released:
            return
        parts.wal.commits.check_may_wait()
        while lifecycle.before_close:
            lifecycle.before_close.pop()()
        lifecycle.closed = True  # an interrupted call is finished by the next one
        with lifecycle.backing_up:
            pass  # a backup that is being taken notices, and ends while the folder is ours
        parts.budget.close()
        parts.maintenance.stop()
        parts.lake.stop()
        parts.derived.close()
        parts.reading.closed = True
        parts.core.wake_all()
        parts.groups.wake_all()
        if parts.replica is not None:
            parts.replica.close()
        if parts.shipping is not None:
            parts.shipping.prepare_close()
        try:
            parts.wal.close()
            lifecycle.released = True
        finally:
            if parts.shipping is not None:
                parts.shipping.finish_close(parts.wal.last_index)
            parts.segment_reader.close()
            for act in lifecycle.after_close:
                act()

    def _check_open(self) -> None:
        self.parts.lifecycle.check_open()

    def _check_writable(self) -> None:
        self.parts.lifecycle.check_open()
        self.parts.wal.check_writable()

    def __repr__(self) -> str:
        state = (
            "closed"
            if self.parts.lifecycle.closed
            else f"{len(self.parts.core.state.topics)} topics"
        )
        return f"<Log {str(self.folder)!r}: {state}>"
