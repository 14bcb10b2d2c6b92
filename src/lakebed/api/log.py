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
from lakebed.api.arguments import check_range, checked_consumer, checked_start
from lakebed.api.backend import Backend
from lakebed.api.consumer import Callback, Consumer
from lakebed.api.encoding import Rows
from lakebed.api.offsets import Offsets
from lakebed.api.parts import AccessApi, DerivedApi, LakeApi
from lakebed.api.producer import Producer
from lakebed.api.reads import checked_bounds
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
        """Open the log in `folder`, making it if the folder is new or empty.

        `progress` is told how far recovery has come. `disk`, `clock` and `threaded=False`
        (everything in the calling thread, checkpoints included) are for tests.
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
        """Create a topic: raw without a schema (values are bytes), typed with one.

        `partitions` defaults to the setting `default_partitions` of the log. `config` are the
        settings that differ from their defaults. Raises `TopicExistsError` if a topic has the
        name, `InvalidNameError` if it cannot be one.
        """

    @abc.abstractmethod
    def get_or_create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Return a topic as it is, or create it if it does not exist.

        Partitions, schema and settings of an existing topic stay what they are.
        """

    @abc.abstractmethod
    def topics(self) -> list[str]:
        """List the names of the topics, without those of the log's own."""

    @abc.abstractmethod
    def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic.

        Raises `TopicNotFoundError` if it does not exist.
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

        What is None stays as it is. Raises `SchemaChangeError` if the schema differs in more than
        added nullable fields.
        """

    @abc.abstractmethod
    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Set the number of partitions of a topic, which can only grow.

        Records written from now on may go to another partition than earlier ones of the same key.
        """

    @abc.abstractmethod
    def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets continue where they were."""

    @abc.abstractmethod
    def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it; one created later under its name is empty."""

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
        """Append a record and return its position, when it is durable.

        It goes to `partition`, or to the partition that the hash of its key selects, or to the
        next partition in turn. `timestamp` is a datetime (naive means UTC) or microseconds since
        1970, by default the time of the call. Raises `RecordTooLargeError`,
        `SchemaMismatchError` or `OverloadedError` if the record is not written, and
        `UnknownOutcomeError` if that is not known.
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
        """Append a record as `append` does; the future receives its position when it is durable."""
        self._check_open()
        writing = self._backend.writing
        return writing.append_async(
            writing.record(topic, value, key, headers, partition, timestamp)
        )

    def append_batch(self, topic: str, rows: Rows, *, partition: int | None = None) -> Acks:
        """Append a table, a record batch or a list of rows; all of it or nothing.

        Returns when it is durable. Rows go to `partition`, or to the partitions that the hashes of
        their keys select; rows without a key are spread over the partitions.
        """
        self._check_open()
        return self._backend.writing.append_batch(topic, rows, partition)

    def append_batch_async(
        self, topic: str, rows: Rows, *, partition: int | None = None
    ) -> Future[Acks]:
        """Append a batch as `append_batch` does; the future receives its positions.

        Several of them in flight at a time keep the disk, or the network, busy.
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
        """Open a producer: it batches records that are sent one by one, and writes each batch once.

        A batch is written when it has `batch_bytes`, after `linger_ms`, or on `flush`. With more
        than `memory_bytes` in flight, `send` waits. A producer that is opened later under the same
        `name` fences this one.
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
        """Begin a transaction: records and consumer offsets that become visible at once.

        It is aborted if it is not committed within `timeout_ms`. An open one of the same `name` is
        aborted and its owner fenced.
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
        """Make prepared transactions, and offsets by group, visible at once; durable on return.

        All of them or none: if one is not open any more, nothing happens. This happens once for a
        `number`: when it, or a greater one, was committed under `name` before, nothing is added and
        the transactions are dropped. The number is remembered until `keep_ms` after it.
        """
        self._check_open()
        backend = self._backend
        backend.check_may_wait()
        time_us, places = backend.clock.time_us(), backend.groups.places
        command = command_of(transactions, name, number, keep_ms, offsets, places, time_us)
        return self._commit_together(command)

    def committed_number(self, name: str) -> int | None:
        """Return the last number that was committed under a name; None if there is none."""
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
        """Return records of a partition from `offset` on, as one table; empty at the end.

        `offset` is a number, `"earliest"` or `"latest"`. If there is a record, at least one is
        returned, however large. With `wait_ms` an empty answer waits that long for a record (None:
        forever). Raises `OffsetOutOfRangeError` if the offset was removed or is above the end.
        """

    @abc.abstractmethod
    def table(self, name: str) -> Table:
        """Return a topic as a table: scans, lookups by key, the current record of each key."""

    @abc.abstractmethod
    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end of each partition; the end is exclusive."""

    @abc.abstractmethod
    def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset whose record is of that time or later; the end if there is none.

        `timestamp` is a datetime (naive means UTC) or microseconds since 1970.
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

        Or, with `partitions`, one that reads exactly those, with or without a group to commit to.
        It continues where the group committed last; a group that has committed nothing begins at
        `start`. A member that does not poll for `session_timeout_ms` loses its partitions.
        """
        self._check_open()
        topics = checked_consumer(group, topics, partitions, session_timeout_ms)
        return Consumer(
            self._backend,
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
        return self._backend.groups.names()

    def describe_group(self, name: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group.

        Raises `GroupNotFoundError` if it does not exist.
        """
        self._check_open()
        return self._backend.groups.describe(name)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        self._check_open()
        return self._backend.groups.committed(str(GroupName(group)))

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group, whether or not it has members."""
        self._check_open()
        self._backend.groups.commit(group, "", offsets)

    def reset_group(self, name: str, offsets: Offsets) -> None:
        """Set the offsets of a group without members; `GroupNotEmptyError` if it has some."""
        self._check_open()
        self._backend.groups.reset(name, offsets)

    def delete_group(self, name: str) -> None:
        """Delete a group that has no members; `GroupNotEmptyError` if it has some."""
        self._check_open()
        self._backend.groups.delete(name)

    # Maintenance

    @abc.abstractmethod
    def checkpoint(self) -> CheckpointReport:
        """Write what is in memory into segments, write a snapshot, free WAL files."""

    @abc.abstractmethod
    def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all."""

    @abc.abstractmethod
    def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return the segments of a topic that are due for a compaction by key, and their files.

        For a job that decides elsewhere which records survive, and has them rewritten by
        `rewrite_segments`. Changes nothing. `force` ignores `compact_dirty_percent`; what is too
        young or held by a group is never part of it. The locations of a served log are those that
        the server sees.
        """

    @abc.abstractmethod
    def rewrite_segments(
        self, topic: str, partition: int, segments: Sequence[int], survivors: bytes
    ) -> RewriteReport:
        """Replace consecutive segments by the survivors of a compaction.

        `survivors` has a bit for each offset of the segments, compressed (`topic/survivors.py` says
        how, and `pack_survivors` makes it). They are to be decided over everything from the
        partition's first segment on: every record without a key survives, and the last of each key,
        unless it is a tombstone that may go. A partition too large for one call is rewritten in
        several, from its beginning on.

        What is written is read again and compared before it counts; writers do not wait. Raises
        `StalePlanError` if the segments are not there any more as they were, also when it is called
        a second time; `SurvivorsError` if they cannot be right. Then nothing is changed.
        """

    @abc.abstractmethod
    def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the log as it is at one point, verified, into a folder that is new or empty.

        Everything acknowledged before the call is part of it. Writers and readers continue; files
        that the log drops during the copy stay until they are copied. One at a time. The target of
        a served log is a name, below the folder that the server's settings name.
        """

    @abc.abstractmethod
    def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return how many. Raises at the first damage."""

    @abc.abstractmethod
    def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Describe each segment of a partition, and where its file is.

        The locations of a served log are those that the server sees.
        """

    @abc.abstractmethod
    def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of one segment, wherever it is; False if there is none of that id.

        Raises `CorruptionError` if anything in it is not as it should be.
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
