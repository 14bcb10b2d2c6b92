"""The embedded log as its users see it: topics, writing, reading, groups, transactions."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from lakebed import limits
from lakebed.api.acks import Ack, Acks
from lakebed.api.arguments import (
    check_range,
    checked_consumer,
    checked_start,
    checked_wait,
)
from lakebed.api.offsets import Offsets
from lakebed.api.reads import Bounds, checked_bounds, microseconds
from lakebed.api.together import KEEP_MS, CommittedTogether, command_of, outcome_of
from lakebed.config import TopicConfig
from lakebed.engine.assembly import Assembly
from lakebed.engine.compaction import planned
from lakebed.engine.consumer import Callback, Consumer
from lakebed.engine.core import Key
from lakebed.engine.producer import Producer
from lakebed.engine.segments import described
from lakebed.engine.table import Table
from lakebed.engine.transaction import Transaction
from lakebed.engine.writing import Rows
from lakebed.reports.groups import GroupInfo
from lakebed.reports.maintenance import (
    BackupReport,
    CheckpointReport,
    CleanupReport,
    CompactionPlan,
    RewriteReport,
)
from lakebed.reports.topics import SegmentInfo, TopicInfo
from lakebed.state.commands import BeginTransaction, CommitTogether, RegisterProducer
from lakebed.types import GroupName, ProducerName, Progress, TopicPartition, say_nothing


class Log(Assembly):
    """A durable event log in a folder that this process owns.

    Any thread may call any method. Use it as a context manager, or call `close`.
    """

    _producer_kind: type[Producer] = Producer
    _transaction_kind: type[Transaction] = Transaction
    _consumer_kind: type[Consumer] = Consumer
    """What is made by the methods of these names; a served log has kinds of its own."""

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
        """Return a topic as it is, or make it if there is none of that name.

        Of a topic that is there, partitions, schema and settings stay what they are.
        """
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

    # Writing

    def append(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timestamp: Any = None,
    ) -> Ack:
        """Append a record and return where it is, when it is durable.

        It goes to `partition`, or where its key's hash says, or to the next partition in turn.
        """
        self._check_open()
        return self._writing.append(
            self._writing.record(topic, value, key, headers, partition, timestamp)
        )

    def append_async(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timestamp: Any = None,
    ) -> Future[Ack]:
        """Append a record; the future gives where it is, when it is durable."""
        self._check_open()
        return self._writing.append_async(
            self._writing.record(topic, value, key, headers, partition, timestamp)
        )

    def append_batch(self, topic: str, rows: Rows, *, partition: int | None = None) -> Acks:
        """Append a table, a record batch or a list of rows; all of it or nothing.

        Returns when it is durable. Rows go to `partition`, or where their keys' hashes say; rows
        without a key are spread over the partitions.
        """
        self._check_open()
        return self._writing.append_batch(topic, rows, partition)

    def append_batch_async(
        self, topic: str, rows: Rows, *, partition: int | None = None
    ) -> Future[Acks]:
        """Append a batch as `append_batch` does; the future gives where it is, when it is durable.

        Several of them under way at a time keep the disk, or the way to a server, busy.
        """
        self._check_open()
        return self._writing.append_batch_async(topic, rows, partition)

    def producer(
        self,
        name: str | None = None,
        *,
        linger_ms: float = 5.0,
        batch_bytes: int = 1 * limits.MIB,
        memory_bytes: int = 64 * limits.MIB,
    ) -> Producer:
        """Open a producer: it batches what is sent one by one, and writes each batch once.

        A batch is written when it has `batch_bytes`, after `linger_ms`, or on `flush`. With more
        than `memory_bytes` on their way, `send` waits. Whoever opens a producer of the same `name`
        later fences this one.
        """
        self._check_open()
        check_range("linger_ms", linger_ms, 0, 60_000)
        check_range("batch_bytes", batch_bytes, 1, 32 * limits.MIB)
        check_range("memory_bytes", memory_bytes, 1, 1024 * limits.GIB)
        chosen = "" if name is None else str(ProducerName(name))
        identity = self._submit(RegisterProducer(chosen, self._core.clock.time_us()))
        return self._producer_kind(
            self._core,
            self._writing,
            self._admit,
            identity,
            chosen,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            memory_bytes=memory_bytes,
        )

    def transaction(self, name: str | None = None, *, timeout_ms: int = 60_000) -> Transaction:
        """Begin a transaction: records and consumer offsets that become visible together.

        An open one of the same `name` is aborted and its owner fenced.
        """
        self._check_open()
        check_range("timeout_ms", timeout_ms, 1, 86_400_000)
        chosen = "" if name is None else str(ProducerName(name))
        time_us = self._core.clock.time_us()
        identity = self._submit(BeginTransaction(chosen, int(timeout_ms) * 1000, time_us))
        return self._transaction_kind(
            self._core, self._writing, self._groups, self._admit, identity, chosen
        )

    def commit_together(
        self,
        transactions: Sequence[tuple[int, int]],
        *,
        name: str,
        number: int,
        keep_ms: int = KEEP_MS,
        offsets: Mapping[str, Offsets] | None = None,
    ) -> CommittedTogether:
        """Make prepared transactions, and offsets by group, visible at once; durable on return.

        All of them or none: if one is not open any more, nothing happens. This happens once for a
        `number`: when it, or a greater one, was committed under `name` before, nothing is added and
        the transactions are dropped. The number is remembered until `keep_ms` after it.
        """
        self._check_open()
        self._core.check_may_wait()
        time_us = self._core.clock.time_us()
        places = self._groups.places
        command = command_of(transactions, name, number, keep_ms, offsets, places, time_us)
        return self._commit_together(command)

    def _commit_together(self, command: CommitTogether) -> CommittedTogether:
        self._admit()
        return outcome_of(self._submit(command))

    def committed_number(self, name: str) -> int | None:
        """Return the last number that was committed under a name; None if there is none."""
        self._check_open()
        return self._committed_number(str(ProducerName(name)))

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
        """Return records of a partition from `offset` on, as one table; empty at the end.

        `offset` is a number, `"earliest"` or `"latest"`. At least one record is given if there is
        one, however large. With `wait_ms` an empty answer waits that long for a record (None: for
        ever).
        """
        self._check_open()
        seconds = checked_wait(wait_ms)
        bounds = checked_bounds(max_records, max_bytes)
        table, wanted = self._read_now(topic, partition, offset, bounds, columns)
        if table.num_rows or seconds == 0 or not self._reading.wait(wanted, seconds):
            return table
        following = next(iter(wanted.values()))
        return self._read_now(topic, partition, following, bounds, columns)[0]

    def table(self, name: str) -> Table:
        """Return a topic as a table: scans, lookups by key, the current record of each key."""
        self._check_open()
        return Table(
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
        found = self._reading.topic(topic)
        return {number: self._reading.bounds(found, number) for number in range(found.partitions)}

    def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset whose record is of that time or later; the end if there is none.

        `timestamp` is a datetime (naive means UTC) or microseconds since 1970.
        """
        self._check_open()
        return self._reading.offset_for_time(
            self._reading.topic(topic), partition, microseconds(timestamp)
        )

    def consumer(
        self,
        group: str | None = None,
        topics: Collection[str] | None = None,
        *,
        partitions: Collection[tuple[str, int]] | None = None,
        start: str = "earliest",
        max_records: int = 10_000,
        max_bytes: int = 16 * limits.MIB,
        columns: Collection[str] | None = None,
        session_timeout_ms: int = 60_000,
        strategy: str = "sticky",
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
    ) -> Consumer:
        """Open a consumer: a member of `group` that reads its share of `topics`.

        Or, with `partitions`, one that reads exactly those, with or without a group to commit to.
        It goes on where the group committed last; a group that has committed nothing begins at
        `start`. A member that does not poll for `session_timeout_ms` loses its partitions.
        """
        self._check_open()
        topics = checked_consumer(group, topics, partitions, session_timeout_ms)
        return self._consumer_kind(
            self._reading,
            self._groups,
            None if group is None else str(GroupName(group)),
            topics or (),
            partitions,
            start=checked_start(start),
            bounds=checked_bounds(max_records, max_bytes),
            columns=columns,
            session_seconds=session_timeout_ms / 1000,
            strategy=strategy,
            on_assign=on_assign,
            on_revoke=on_revoke,
        )

    # Groups

    def groups(self) -> list[str]:
        """List the names of the consumer groups."""
        self._check_open()
        return self._groups.names()

    def describe_group(self, name: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group."""
        self._check_open()
        return self._groups.describe(name)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        self._check_open()
        return self._groups.committed(str(GroupName(group)))

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group, whoever its members are."""
        self._check_open()
        self._groups.commit(group, "", offsets)

    def reset_group(self, name: str, offsets: Offsets) -> None:
        """Let a group without members go on from other offsets."""
        self._check_open()
        self._groups.reset(name, offsets)

    def delete_group(self, name: str) -> None:
        """Forget a group that has no members."""
        self._check_open()
        self._groups.delete(name)

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
        """Return the segments of a topic that are due for a compaction by key, and their files.

        For whoever decides elsewhere which records survive, and has them rewritten by
        `rewrite_segments`. Changes nothing. `force` leaves `compact_dirty_percent` aside; what is
        too young or held by a group is never part of it.
        """
        self._check_open()
        return planned(self._core, self._topics.find(topic), self.lake.locate, force=force)

    def rewrite_segments(
        self, topic: str, partition: int, segments: Sequence[int], survivors: bytes
    ) -> RewriteReport:
        """Let only the survivors of a compaction stand for segments that follow each other.

        `survivors` has a bit for each offset of the segments, compressed (`topic/survivors.py` says
        how, and `pack_survivors` makes it). They are to be decided over everything from the
        partition's first segment on: every record without a key survives, and the last of each key,
        unless it is a tombstone that may go. A partition too large for one call is rewritten in
        several, from its beginning on.

        What is written is read again and compared before it counts; writers do not wait. Raises
        `StalePlanError` if the segments are not there any more as they were, also when it is called
        a second time; `SurvivorsError` if they cannot be right. Then nothing is changed.
        """
        self._check_open()
        key = self._reading.key(self._topics.find(topic), partition)
        return self._maintenance.rewrite(lambda: self._survival.rewrite(key, segments, survivors))

    def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the log as it is at one point, verified, into a folder that is new or empty.

        Everything acknowledged before the call is part of it. Writers and readers go on; files
        that the log drops meanwhile stay until they are copied. One at a time.
        """
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
        """Read every byte of one segment, wherever it is; False if there is none of that id.

        Raises `CorruptionError` if anything in it is not as it should be.
        """
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
