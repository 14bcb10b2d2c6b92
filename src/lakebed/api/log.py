"""The log as its users see it, embedded or served: one interface, over one backend protocol."""

from __future__ import annotations

import abc
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed import limits
from lakebed.api.acks import Ack, Acks
from lakebed.api.arguments import check_consumer, check_range, check_start
from lakebed.api.backend import Backend
from lakebed.api.consumer import Callback, Consumer
from lakebed.api.encoding import Rows
from lakebed.api.offsets import Offsets
from lakebed.api.parts import AccessApi, DerivedApi, LakeApi
from lakebed.api.producer import Producer
from lakebed.api.reads import check_bounds
from lakebed.api.table import Table
from lakebed.api.together import KEEP_MS, CommittedTogether, command_of
from lakebed.api.transaction import Transaction
from lakebed.config import LogConfig, TopicConfig
from lakebed.host.clock import Clock
from lakebed.host.disk import Disk
from lakebed.reports.groups import GroupInfo
from lakebed.reports.maintenance import (
    BackupReport,
    CheckpointReport,
    CleanupReport,
    CompactionPlan,
    RewriteReport,
)
from lakebed.reports.stats import LogStats
from lakebed.reports.topics import SegmentInfo, TopicInfo
from lakebed.state.commands import BeginTransaction, Command, CommitTogether, RegisterProducer
from lakebed.types import Closing, GroupName, ProducerName, Progress, TopicPartition

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog


class Log(Closing):
    """A durable event log: in a folder that this process owns, or served by another process.

    Any thread may call any method. Use it as a context manager, or call `close`. Every method
    raises `ClosedError` once the log is closed; those of a served log may also raise
    `ServerUnavailableError` and, if the caller lacks the right, `AccessDeniedError`.
    """

    lake: LakeApi
    """Iceberg tables and object store."""
    derived: DerivedApi
    """Iceberg tables that jobs and pipelines make."""
    access: AccessApi
    """Who may do what when this log is served: tokens, rules, grants."""
    _backend: Backend

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
    ) -> EmbeddedLog:
        """Open the log in a folder; create it if the folder is new or empty.

        Args:
            folder: path of the log.
            config: settings; default: `lakebed.toml` in the folder, or the defaults.
            progress: called with the progress of recovery.
            disk: for tests.
            clock: for tests.
            threaded: for tests; False runs everything, checkpoints included, in the calling thread.

        Raises:
            LockedError: another process owns the folder.
            NotALogError: the folder contains something else.
            CorruptionError: the files are damaged.
        """
        from lakebed.engine.log import EmbeddedLog  # a client does not need the engine

        return EmbeddedLog.open(
            folder, config, progress=progress, disk=disk, clock=clock, threaded=threaded
        )

    # Topics

    @abc.abstractmethod
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Create a topic.

        Args:
            name: 1 to 128 letters, digits, `.`, `_` or `-`.
            partitions: default: the log's setting `default_partitions`.
            schema: Arrow schema of the values; None makes a raw topic, whose values are bytes.
            config: topic settings that differ from their defaults.

        Raises:
            TopicExistsError: a topic has this name.
            InvalidNameError: the name is not allowed.
        """

    @abc.abstractmethod
    def get_or_create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Return a topic, created as by `create_topic` if it does not exist.

        Partitions, schema and settings of an existing topic do not change.
        """

    @abc.abstractmethod
    def topics(self) -> list[str]:
        """List the names of the topics, without internal ones."""

    @abc.abstractmethod
    def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """

    @abc.abstractmethod
    def alter_topic(
        self,
        name: str,
        config: Mapping[str, object] | TopicConfig | None = None,
        schema: pa.Schema | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings, add nullable fields to the schema, add partitions.

        Args:
            name: the topic.
            config: settings to change; None changes none.
            schema: the schema with the new fields at its end; None keeps it.
            partitions: as in `add_partitions`.

        Raises:
            SchemaChangeError: the schema differs in more than added nullable fields.
        """

    @abc.abstractmethod
    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Raise the number of partitions of a topic.

        From then on a key may go to another partition than before.

        Args:
            name: the topic.
            partitions: the new total, not less than the current one.
        """

    @abc.abstractmethod
    def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets continue where they were."""

    @abc.abstractmethod
    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records; one created later under the name is empty."""

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
        """Append a record; return its position once it is durable.

        Args:
            topic: name of an existing topic.
            value: bytes or text of a raw topic, a dictionary of a typed one; None deletes the key.
            key: bytes or text; its hash selects the partition.
            headers: values by name.
            partition: where the record goes; default: by key, or without a key in turn.
            timestamp: a datetime (naive means UTC) or microseconds since 1970; default: now.

        Raises:
            TopicNotFoundError: the topic does not exist.
            RecordTooLargeError: the record exceeds `record_bytes_max`.
            SchemaMismatchError: the value does not fit the schema.
            OverloadedError: memory is short, and nothing was written.
            UnknownOutcomeError: the record may have been written.
        """
        self._check_open()
        return self._backend.writing.write(topic, value, key, headers, partition, timestamp)

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
        """Append a record as `append` does; return a future of its position."""
        self._check_open()
        writing = self._backend.writing
        return writing.append_async(
            writing.record(topic, value, key, headers, partition, timestamp)
        )

    def append_batch(self, topic: str, rows: Rows, *, partition: int | None = None) -> Acks:
        """Append records atomically; return their positions once they are durable.

        Args:
            topic: name of an existing topic.
            rows: an Arrow table, a record batch or a list of rows.
            partition: where all rows go; default: by key, rows without a key are spread.

        Raises:
            EntryTooLargeError: the batch does not fit into one entry of the log.
            SchemaMismatchError: a row does not fit the schema.
        """
        self._check_open()
        return self._backend.writing.append_batch(topic, rows, partition)

    def append_batch_async(
        self, topic: str, rows: Rows, *, partition: int | None = None
    ) -> Future[Acks]:
        """Append records as `append_batch` does; return a future of their positions.

        Several batches in flight at a time keep the disk, or the network, busy.
        """
        self._check_open()
        return self._backend.writing.append_batch_async(topic, rows, partition)

    def producer(
        self,
        name: str | None = None,
        *,
        linger_ms: float = 5.0,
        batch_bytes: int = 1 * limits.MIB,
        memory_bytes: int = 64 * limits.MIB,
    ) -> Producer:
        """Open a producer, which batches single records and writes each batch exactly once.

        Args:
            name: a producer opened later under the same name fences this one.
            linger_ms: how long a batch waits for more records.
            batch_bytes: size at which a batch is written.
            memory_bytes: with more in flight, `send` waits.
        """
        self._check_open()
        check_range("linger_ms", linger_ms, 0, 60_000)
        check_range("batch_bytes", batch_bytes, 1, 32 * limits.MIB)
        check_range("memory_bytes", memory_bytes, 1, 1024 * limits.GIB)
        chosen = "" if name is None else str(ProducerName(name))
        backend = self._backend
        identity = self._submit(RegisterProducer(chosen, backend.clock.time_us()))
        return Producer(
            backend,
            identity,
            chosen,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            memory_bytes=memory_bytes,
        )

    def transaction(self, name: str | None = None, *, timeout_ms: int = 60_000) -> Transaction:
        """Begin a transaction: records and consumer offsets that become visible atomically.

        Args:
            name: an open transaction of the same name is aborted and its owner fenced.
            timeout_ms: the transaction is aborted if it is not committed by then.
        """
        self._check_open()
        check_range("timeout_ms", timeout_ms, 1, 86_400_000)
        chosen = "" if name is None else str(ProducerName(name))
        backend = self._backend
        command = BeginTransaction(chosen, int(timeout_ms) * 1000, backend.clock.time_us())
        return Transaction(backend, self._submit(command), chosen)

    def commit_together(
        self,
        transactions: Sequence[tuple[int, int]],
        *,
        name: str,
        number: int,
        keep_ms: int = KEEP_MS,
        offsets: Mapping[str, Offsets] | None = None,
    ) -> CommittedTogether:
        """Commit prepared transactions and group offsets atomically; durable on return.

        If one of the transactions is not open, nothing happens. If `number` or a greater one was
        committed under `name` before, the transactions are dropped.

        Args:
            transactions: results of `Transaction.prepare`.
            name: name of the writer.
            number: sequence number of this commit.
            keep_ms: how long the number is remembered.
            offsets: offsets to commit, by group.

        Raises:
            TransactionClosedError: a transaction was committed or aborted.
            TransactionTimedOutError: a transaction timed out.
        """
        self._check_open()
        backend = self._backend
        backend.check_may_wait()
        time_us, places = backend.clock.time_us(), backend.groups.places
        command = command_of(transactions, name, number, keep_ms, offsets, places, time_us)
        return self._commit_together(command)

    def committed_number(self, name: str) -> int | None:
        """Return the last number committed under a name, or None."""
        self._check_open()
        return self._committed_number(str(ProducerName(name)))

    # Reading

    @abc.abstractmethod
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
        """Return records of a partition as a table, which is empty at the end of the partition.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            offset: an integer, `"earliest"` or `"latest"`.
            max_records: maximum number of records.
            max_bytes: maximum size; at least one record is returned, however large.
            columns: names of columns; default: all.
            wait_ms: how long to wait for a record at the end; None waits forever.

        Raises:
            OffsetOutOfRangeError: the offset was removed, or is above the end.
        """

    @abc.abstractmethod
    def table(self, name: str) -> Table:
        """Return a topic as a table: scans, lookups by key, the current record of each key.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """

    @abc.abstractmethod
    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end (exclusive) of each partition."""

    @abc.abstractmethod
    def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset with this timestamp or a later one, or the end.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            timestamp: a datetime (naive means UTC) or microseconds since 1970.
        """

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

        It continues at the committed offsets of the group.

        Args:
            group: name of the group; with `partitions` it is optional.
            topics: names of topics.
            partitions: read exactly these, as `(topic, partition)`, instead of a share of topics.
            start: where a group without commits starts: `"earliest"` or `"latest"`.
            max_records: maximum number of records per poll.
            max_bytes: maximum size per poll.
            columns: names of columns; default: all.
            session_timeout_ms: a member that does not poll for this long loses its partitions.
            strategy: `"sticky"` or `"range"`; the same for all members.
            on_assign: called with partitions that were assigned.
            on_revoke: called with partitions before they are given up.
        """
        self._check_open()
        topics = check_consumer(group, topics, partitions, session_timeout_ms)
        return Consumer(
            self._backend,
            None if group is None else str(GroupName(group)),
            topics or (),
            partitions,
            start=check_start(start),
            bounds=check_bounds(max_records, max_bytes),
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
        return self._backend.groups.names()

    def describe_group(self, name: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group.

        Raises:
            GroupNotFoundError: the group does not exist.
        """
        self._check_open()
        return self._backend.groups.describe(name)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        self._check_open()
        return self._backend.groups.committed(str(GroupName(group)))

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group, whether or not it has members.

        Args:
            group: name of the group.
            offsets: the next offset to read, by topic and partition.
        """
        self._check_open()
        self._backend.groups.commit(group, "", offsets)

    def reset_group(self, name: str, offsets: Offsets) -> None:
        """Set the offsets of a group without members; a new group is created.

        Raises:
            GroupNotEmptyError: the group has members.
        """
        self._check_open()
        self._backend.groups.reset(name, offsets)

    def delete_group(self, name: str) -> None:
        """Delete a group without members, with its offsets.

        Raises:
            GroupNotEmptyError: the group has members.
            GroupNotFoundError: the group does not exist.
        """
        self._check_open()
        self._backend.groups.delete(name)

    # Maintenance

    @abc.abstractmethod
    def checkpoint(self) -> CheckpointReport:
        """Write records in memory to segments, write a snapshot, free WAL files."""

    @abc.abstractmethod
    def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all.

        Failures of topics are in `errors` of the result.
        """

    @abc.abstractmethod
    def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return the segments of a topic that are due for a compaction by key.

        For a job that selects the surviving records, and has them rewritten by `rewrite_segments`.
        Changes nothing. Segments that are too young or held by a group are never part of it.
        Locations are as the process that owns the log sees them.

        Args:
            topic: name of the topic.
            force: ignore `compact_dirty_percent`.
        """

    @abc.abstractmethod
    def rewrite_segments(
        self, topic: str, partition: int, segments: Sequence[int], survivors: bytes
    ) -> RewriteReport:
        """Replace consecutive segments by the survivors of a compaction.

        What is written is verified before it counts; writers do not wait. Of a partition, all
        records without a key must survive, and the last of each key, unless it is a tombstone
        that is due.
        A large partition is rewritten in several calls, from its beginning on.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            segments: ids, as `plan_compaction` returns them.
            survivors: a compressed bitmap with a bit for each offset (`topic/survivors.py`).

        Raises:
            StalePlanError: the segments have changed; nothing was changed.
            SurvivorsError: the survivors cannot be right; nothing was changed.
        """

    @abc.abstractmethod
    def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the log as of one point in time, verified, into a new or empty folder.

        Everything acknowledged before the call is included. Writers and readers continue. One
        backup runs at a time.

        Args:
            target: the folder; for a served log, a name in the server's folder `backups`.
            progress: called with the progress of the copy.
        """

    @abc.abstractmethod
    def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return their number.

        Raises:
            CorruptionError: the first damage found.
        """

    @abc.abstractmethod
    def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Describe the segments of a partition, with the locations that the log's process sees."""

    @abc.abstractmethod
    def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of a segment; return False if there is none of that id.

        Raises:
            CorruptionError: the segment is damaged.
        """

    @abc.abstractmethod
    def stats(self) -> LogStats:
        """Return counters and the current state of the log."""

    @abc.abstractmethod
    def tick(self) -> None:
        """Run maintenance now: timeouts, due checkpoints, retention."""

    # Inside

    @abc.abstractmethod
    def _check_open(self) -> None:
        """Raise `ClosedError` if the log is closed."""

    def _submit(self, command: Command) -> Any:
        """Carry out a command; return its result when it is durable and applied."""
        self._check_open()
        return self._backend.writing.submit(command)

    @abc.abstractmethod
    def _commit_together(self, command: CommitTogether) -> CommittedTogether: ...

    @abc.abstractmethod
    def _committed_number(self, name: str) -> int | None: ...
