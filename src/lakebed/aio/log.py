"""The log for asyncio: `Log`, awaited."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

import lakebed
from lakebed import limits
from lakebed.aio.access import AsyncAccess
from lakebed.aio.consumer import AsyncCallback, AsyncConsumer
from lakebed.aio.lake import AsyncLake
from lakebed.aio.loop import AsyncClosing, Bell, Mailbox, Opening, Reply, Threads, told_in_loop
from lakebed.aio.producer import AsyncProducer
from lakebed.aio.table import AsyncTable
from lakebed.aio.transaction import AsyncTransaction
from lakebed.api.acks import Ack, Acks
from lakebed.api.arguments import checked_wait
from lakebed.api.consumer import Consumer
from lakebed.api.encoding import Record, Rows
from lakebed.api.log import Log
from lakebed.api.offsets import Offsets
from lakebed.api.producer import Producer
from lakebed.api.reads import checked_bounds
from lakebed.api.together import KEEP_MS, CommittedTogether
from lakebed.api.transaction import Transaction
from lakebed.client.config import ClientConfig
from lakebed.config import LogConfig, TopicConfig
from lakebed.engine.core import Key
from lakebed.engine.log import EmbeddedLog
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
from lakebed.types import Progress, TopicPartition

Result = TypeVar("Result")


def open(  # noqa: A001  # as lakebed.open
    target: str | os.PathLike[str],
    config: LogConfig | ClientConfig | None = None,
    *,
    progress: Progress | None = None,
) -> Opening[AsyncLog]:
    """Open the log in a folder, making it if the folder is new or empty, or connect to a server.

    `await` it, or enter it with `async with`. `progress` is called in the event loop.
    """
    return Opening(_open(target, config, progress))


async def _open(
    target: str | os.PathLike[str],
    config: LogConfig | ClientConfig | None,
    progress: Progress | None,
) -> AsyncLog:
    threads, woken = Threads(), threading.Event()
    try:
        log = await threads.open(
            _opener(target, config, progress, woken), lambda opened: opened.close()
        )
    except BaseException:
        woken.set()  # a thread that tries to reach a server gives up
        threads.close()
        raise
    if isinstance(log, EmbeddedLog):
        return AsyncEmbeddedLog(log, threads)
    from lakebed.aio.remote import AsyncRemoteLog  # not needed by those who embed the log

    return AsyncRemoteLog(log, threads)


def _opener(
    target: str | os.PathLike[str],
    config: LogConfig | ClientConfig | None,
    progress: Progress | None,
    woken: threading.Event,
) -> Callable[[], Log]:
    """Return what opens the log in a thread; setting `woken` ends its search for a server."""
    if isinstance(target, str) and "://" in target:
        from lakebed.client.log import RemoteLog  # not needed by those who embed the log

        return functools.partial(RemoteLog, target, config, woken=woken)
    tell = None if progress is None else told_in_loop(progress)
    return functools.partial(lakebed.open, target, config, progress=tell)


class AsyncLog(AsyncClosing):
    """A durable event log, for the tasks of one event loop: see `Log`."""

    def __init__(self, log: Log, threads: Threads) -> None:
        self._log = log
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._mailbox = Mailbox(self._loop)
        self._room = Bell(self._loop)
        self._waiting: deque[tuple[Record, asyncio.Future[Ack]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self.lake = AsyncLake(log.lake, self._run_slowly, self._run)
        """Iceberg tables and object store."""
        self.access = AsyncAccess(log.access, self._run)
        """Who may do what when this log is served: tokens, rules, grants."""

    @property
    def _engine(self) -> EmbeddedLog:
        """The log in this process, for what a served one does in another way."""
        return cast(EmbeddedLog, self._log)

    # Topics

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Make a topic: raw without a schema (values are bytes), typed with one."""
        return await self._run(self._log.create_topic, name, partitions, schema, config)

    async def get_or_create_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | TopicConfig | None = None,
    ) -> TopicInfo:
        """Return a topic as it is, or make it if there is none of that name."""
        return await self._run(self._log.get_or_create_topic, name, partitions, schema, config)

    async def topics(self) -> list[str]:
        """List the names of the topics."""
        return self._log.topics()

    async def describe_topic(self, name: str) -> TopicInfo:
        """Return partitions, schema and settings of a topic."""
        return await self._run(self._log.describe_topic, name)

    async def alter_topic(
        self,
        name: str,
        config: Mapping[str, object] | TopicConfig | None = None,
        schema: pa.Schema | None = None,
        partitions: int | None = None,
    ) -> TopicInfo:
        """Change settings, add nullable fields to the schema, add partitions."""
        return await self._run(self._log.alter_topic, name, config, schema, partitions)

    async def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Let a topic have so many partitions in all. Keys written from now on may go elsewhere."""
        return await self._run(self._log.add_partitions, name, partitions)

    async def purge_topic(self, name: str) -> None:
        """Remove every record of a topic; offsets go on where they were."""
        await self._run(self._log.purge_topic, name)

    async def delete_topic(self, name: str) -> None:
        """Remove a topic with everything in it; one made later under its name begins empty."""
        await self._run(self._log.delete_topic, name)

    # Writing

    async def append(
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

        Tasks that append at the same time share entries and syncs. If the call is cancelled, the
        record may still be written.
        """
        return await self.append_async(
            topic, value, key, headers=headers, partition=partition, timestamp=timestamp
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
    ) -> asyncio.Future[Ack]:
        """Append a record; the future gives where it is, when it is durable.

        It is appended whether or not the future is awaited.
        """
        self._log._check_open()
        record = self._engine._writing.record(topic, value, key, headers, partition, timestamp)
        future: asyncio.Future[Ack] = self._loop.create_future()
        if self._waiting or self._must_wait():
            self._waiting.append((record, future))
            if self._pump is None:
                self._pump = self._loop.create_task(self._append_waiting())
            return future
        try:
            self._engine._writing.post(record, Reply(self._mailbox, future))
        except BaseException:
            future.cancel()  # it is told by the exception, and by nothing else
            raise
        return future

    async def append_batch(self, topic: str, rows: Rows, *, partition: int | None = None) -> Acks:
        """Append a table, a record batch or a list of rows; all of it or nothing.

        Returns when it is durable. If the call is cancelled, the batch may still be written.
        """
        self._log._check_open()
        await self._admit()
        # A thread checks and encodes; nobody holds one while the disk works.
        posted = await self._run(self._engine._writing.append_batch_async, topic, rows, partition)
        return await asyncio.wrap_future(posted)

    def producer(
        self,
        name: str | None = None,
        *,
        linger_ms: float = 5.0,
        batch_bytes: int = 1 * limits.MIB,
        memory_bytes: int = 64 * limits.MIB,
    ) -> Opening[AsyncProducer]:
        """Open a producer: it batches what is sent one by one, and writes each batch once."""

        async def opening() -> AsyncProducer:
            self._log._check_open()
            producer = await self._threads.open(
                lambda: self._log.producer(
                    name, linger_ms=linger_ms, batch_bytes=batch_bytes, memory_bytes=memory_bytes
                ),
                lambda opened: opened.close(),
            )
            return self._async_producer(producer)

        return Opening(opening())

    def transaction(
        self, name: str | None = None, *, timeout_ms: int = 60_000
    ) -> Opening[AsyncTransaction]:
        """Begin a transaction: records and consumer offsets that become visible together.

        An open one of the same `name` is aborted and its owner fenced.
        """

        async def opening() -> AsyncTransaction:
            self._log._check_open()
            transaction = await self._threads.open(
                lambda: self._log.transaction(name, timeout_ms=timeout_ms),
                lambda opened: opened.close(),
            )
            return self._async_transaction(transaction)

        return Opening(opening())

    async def commit_together(
        self,
        transactions: Sequence[tuple[int, int]],
        *,
        name: str,
        number: int,
        keep_ms: int = KEEP_MS,
        offsets: Mapping[str, Offsets] | None = None,
    ) -> CommittedTogether:
        """Make prepared transactions, and offsets by group, visible at once; durable on return.

        All of them or none, and once for a `number` of a `name`. If the call is cancelled, it may
        still happen.
        """
        self._log._check_open()
        await self._admit()
        return await self._run(
            self._log.commit_together,
            transactions,
            name=name,
            number=number,
            keep_ms=keep_ms,
            offsets=offsets,
        )

    async def committed_number(self, name: str) -> int | None:
        """Return the last number that was committed under a name; None if there is none."""
        return await self._run(self._log.committed_number, name)

    # Reading

    async def read(
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

        With `wait_ms` an empty answer waits that long for a record (None: forever), without
        holding a thread.
        """
        self._log._check_open()
        seconds = checked_wait(wait_ms)
        bounds = checked_bounds(max_records, max_bytes)
        read = self._engine._read_now
        table, wanted = await self._run(read, topic, partition, offset, bounds, columns)
        if table.num_rows or seconds == 0 or not await self._arrival(wanted, seconds):
            return table
        following = next(iter(wanted.values()))
        table, _ = await self._run(read, topic, partition, following, bounds, columns)
        return table

    def table(self, name: str) -> AsyncTable:
        """Return a topic as a table: scans, lookups by key, the current record of each key."""
        return AsyncTable(self._log.table(name), self._threads)

    async def _arrival(self, wanted: dict[Key, int], seconds: float | None) -> bool:
        """Wait until a partition has a record at the offset named; False if none came in time."""
        reading, bell = self._engine._reading, Bell(self._loop)
        deadline = None if seconds is None else time.monotonic() + seconds
        stop = reading.watch(wanted, bell.ring)
        try:
            while not reading.ready(wanted):
                left = None if deadline is None else deadline - time.monotonic()
                if not await bell.wait(left):
                    return False
                bell.clear()
            return True
        finally:
            stop()

    async def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end of each partition; the end is exclusive."""
        return self._log.offsets(topic)

    async def offset_for_time(self, topic: str, partition: int = 0, *, timestamp: Any) -> int:
        """Return the first offset at that time or later; the end if there is none."""
        return await self._run(self._log.offset_for_time, topic, partition, timestamp=timestamp)

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
        on_assign: AsyncCallback | None = None,
        on_revoke: AsyncCallback | None = None,
    ) -> Opening[AsyncConsumer]:
        """Open a consumer: a member of `group` that reads its share of `topics`.

        Callbacks run in the event loop, and may be coroutine functions.
        """

        async def opening() -> AsyncConsumer:
            self._log._check_open()
            consumer = await self._threads.open(
                lambda: self._log.consumer(
                    group,
                    topics,
                    partitions=partitions,
                    start=start,
                    max_records=max_records,
                    max_bytes=max_bytes,
                    columns=columns,
                    session_timeout_ms=session_timeout_ms,
                    strategy=strategy,
                ),
                lambda opened: opened.close(),
            )
            return self._async_consumer(consumer, on_assign, on_revoke)

        return Opening(opening())

    # Groups

    async def groups(self) -> list[str]:
        """List the names of the consumer groups."""
        return self._log.groups()

    async def describe_group(self, name: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group."""
        return await self._run(self._log.describe_group, name)

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        return await self._run(self._log.committed, group)

    async def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group, whoever its members are."""
        await self._run(self._log.commit_offsets, group, offsets)

    async def reset_group(self, name: str, offsets: Offsets) -> None:
        """Let a group without members go on from other offsets."""
        await self._run(self._log.reset_group, name, offsets)

    async def delete_group(self, name: str) -> None:
        """Forget a group that has no members."""
        await self._run(self._log.delete_group, name)

    # Looking after it

    async def checkpoint(self) -> CheckpointReport:
        """Put what is in memory into segments, write a snapshot, free WAL files."""
        return await self._run_slowly(self._log.checkpoint)

    async def retain(self, topic: str | None = None) -> CleanupReport:
        """Apply retention, compaction and merging now, to one topic or all."""
        return await self._run_slowly(self._log.retain, topic)

    async def plan_compaction(self, topic: str, *, force: bool = False) -> CompactionPlan:
        """Return which segments of a topic are due for a compaction by key, and where they are."""
        return await self._run(functools.partial(self._log.plan_compaction, topic, force=force))

    async def rewrite_segments(
        self, topic: str, partition: int, segments: Sequence[int], survivors: bytes
    ) -> RewriteReport:
        """Let only the survivors of a compaction stand for segments that follow each other."""
        return await self._run_slowly(
            self._log.rewrite_segments, topic, partition, segments, survivors
        )

    async def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the log as it is at one point, verified, into a folder that is new or empty."""
        tell = None if progress is None else told_in_loop(progress)
        return await self._run_slowly(functools.partial(self._log.backup, target, progress=tell))

    async def verify(self, topic: str | None = None) -> int:
        """Read every byte of every segment; return how many. Raises at the first damage."""
        return await self._run_slowly(self._log.verify, topic)

    async def segments(self, topic: str, partition: int) -> list[SegmentInfo]:
        """Return what is known of each segment of a partition, and where its file is."""
        return await self._run(self._log.segments, topic, partition)

    async def verify_segment(self, topic: str, partition: int, segment: int) -> bool:
        """Read every byte of one segment; False if there is none of that id."""
        return await self._run_slowly(self._log.verify_segment, topic, partition, segment)

    async def stats(self) -> LogStats:
        """Return counters and a picture of the log."""
        return await self._run(self._log.stats)

    async def tick(self) -> None:
        """Do what maintenance would do now: timeouts, due checkpoints, retention."""
        await self._run_slowly(self._log.tick)

    async def close(self) -> None:
        """Finish what was appended and release the folder. A second call does nothing.

        Tasks that wait for records or for room get `ClosedError`.
        """
        if self._engine._closed:
            return
        # Not in a thread of the log: those may all be waiting for something that closing ends.
        closing = asyncio.to_thread(self._log.close)
        try:
            await asyncio.shield(closing)
        finally:
            self._room.ring()
            self._threads.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._log)[1:]}"

    # Inside

    def _async_producer(self, producer: Producer) -> AsyncProducer:
        return AsyncProducer(producer, self._threads, self._mailbox)

    def _async_transaction(self, transaction: Transaction) -> AsyncTransaction:
        return AsyncTransaction(transaction, self._run, self._admit)

    def _async_consumer(
        self,
        consumer: Consumer,
        on_assign: AsyncCallback | None,
        on_revoke: AsyncCallback | None,
    ) -> AsyncConsumer:
        return AsyncConsumer(consumer, self._run, on_assign, on_revoke)

    async def _run(self, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        self._log._check_open()
        return await self._threads.run(call, *args, **kwargs)

    async def _run_slowly(self, call: Callable[..., Result], *args: Any) -> Result:
        self._log._check_open()
        return await self._threads.run_slowly(call, *args)

    # Room

    def _must_wait(self) -> bool:
        """Return whether a write has to wait, or has something to be told instead."""
        log = self._engine
        return bool(log._core.broken or log._budget.pause() or log._wal.queue_is_full)

    async def _append_waiting(self) -> None:
        """Append the records that wait for room, in the order in which they came."""
        try:
            while self._waiting:
                count = len(self._waiting)
                error: Exception | None = None
                try:
                    await self._admit()
                    count = len(self._waiting)  # whoever came meanwhile has waited enough
                except Exception as refusal:
                    error = refusal
                for _ in range(count):
                    await self._append_first(error)
        finally:
            self._pump = None

    async def _append_first(self, error: Exception | None) -> None:
        """Append the record that has waited longest, or tell its caller why not."""
        record, future = self._waiting[0]
        try:
            if error is not None:
                raise error
            if not future.done():  # otherwise cancelled, and never written
                reply, post = Reply(self._mailbox, future), self._engine._writing.post
                if self._engine._wal.queue_is_full:
                    await self._run_slowly(post, record, reply)
                else:
                    post(record, reply)
        except Exception as refusal:
            if not future.done():
                future.set_exception(refusal)
        self._waiting.popleft()

    async def _admit(self) -> None:
        """Let a write pass, or make it wait: as `Budget.admit`, without a thread."""
        if self._engine._core.broken is not None:
            raise self._engine._core.broken
        budget = self._engine._budget
        pause = budget.pause()
        if pause == 0:
            return
        started = time.monotonic()
        if pause < math.inf:
            await asyncio.sleep(pause)
        else:
            await self._wait_for_room(started)
        budget.throttled_seconds += time.monotonic() - started

    async def _wait_for_room(self, started: float) -> None:
        budget = self._engine._budget
        deadline = started + self._engine.config.write_timeout_ms / 1000
        budget.stopped_writes += 1
        with budget.watched(self._room.ring):
            while budget.used() >= 1:
                self._room.clear()
                left = deadline - time.monotonic()
                if budget.disk_full:
                    raise budget.refusal(started)
                if budget.used() >= 1 and (left <= 0 or not await self._room.wait(left)):
                    raise budget.refusal(started)
                self._log._check_open()


class AsyncEmbeddedLog(AsyncLog):
    """A log in a folder that this process owns, for the tasks of one event loop."""

    @property
    def folder(self) -> Path:
        """The folder of the log."""
        return self._engine.folder

    @property
    def config(self) -> LogConfig:
        """The settings it was opened with."""
        return self._engine.config
