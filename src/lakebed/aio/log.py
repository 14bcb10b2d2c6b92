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
from typing import Any, Final, TypeVar, cast

import pyarrow as pa

import lakebed
from lakebed import limits
from lakebed.aio._stubs import AsyncLogStub
from lakebed.aio.access import AsyncAccess
from lakebed.aio.consumer import AsyncCallback, AsyncConsumer
from lakebed.aio.derived import AsyncDerived
from lakebed.aio.lake import AsyncLake
from lakebed.aio.opening import AsyncClosing, Opening
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
from lakebed.bridge import log as bridge
from lakebed.bridge.completions import AsyncEvent, CompletionQueue, FutureReply
from lakebed.bridge.threads import Threads, progress_in_loop
from lakebed.client.config import ClientConfig
from lakebed.config import LogConfig
from lakebed.engine.log import EmbeddedLog
from lakebed.reports.maintenance import (
    BackupReport,
)
from lakebed.types import Progress

_SLOW_THREADS: Final = 2
"""For checkpoints, cleanup and other long calls."""

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
    threads, woken = Threads("lakebed-aio", slow_threads=_SLOW_THREADS), threading.Event()
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
    tell = None if progress is None else progress_in_loop(progress)
    return functools.partial(lakebed.open, target, config, progress=tell)


class AsyncLog(AsyncLogStub, AsyncClosing):
    """A durable event log, for the tasks of one event loop: see `Log`."""

    def __init__(self, log: Log, threads: Threads) -> None:
        super().__init__(threads, log._check_open)
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._completions = CompletionQueue(self._loop)
        self._room = AsyncEvent(self._loop)
        self._waiting: deque[tuple[Record, asyncio.Future[Ack]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self.lake = AsyncLake(log.lake, threads, log._check_open)
        """Iceberg tables and object store."""
        self.derived = AsyncDerived(log.derived, threads, log._check_open)
        """Tables that jobs make of topics."""
        self.access = AsyncAccess(log.access, threads, log._check_open)
        """Who may do what when this log is served: tokens, rules, grants."""

    @property
    def _engine(self) -> EmbeddedLog:
        """The log in this process, for what a served one does in another way."""
        return cast(EmbeddedLog, self._log)

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
        """Append a record; return its position once it is durable.

        Tasks that append at the same time share entries and syncs. If the call is cancelled, the
        record may still be written.

        Arguments and errors are those of `Log.append`.
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
        """Append a record as `append` does; return a future of its position.

        It is appended whether or not the future is awaited.
        """
        self._log._check_open()
        record = self._engine.parts.writing.record(topic, value, key, headers, partition, timestamp)
        future: asyncio.Future[Ack] = self._loop.create_future()
        if self._waiting or bridge.must_wait(self._engine):
            self._waiting.append((record, future))
            if self._pump is None:
                self._pump = self._loop.create_task(self._append_waiting())
            return future
        try:
            self._engine.parts.writing.post(record, FutureReply(self._completions, future))
        except BaseException:
            future.cancel()  # it is told by the exception, and by nothing else
            raise
        return future

    async def append_batch(self, topic: str, rows: Rows, *, partition: int | None = None) -> Acks:
        """Append records atomically; return their positions once they are durable.

        Returns when it is durable. If the call is cancelled, the batch may still be written.

        Arguments and errors are those of `Log.append_batch`.
        """
        self._log._check_open()
        await self._admit()
        # A thread checks and encodes; nobody holds one while the disk works.
        posted = await self._run(
            self._engine.parts.writing.append_batch_async, topic, rows, partition
        )
        return await asyncio.wrap_future(posted)

    def producer(
        self,
        name: str | None = None,
        *,
        linger_ms: float = 5.0,
        batch_bytes: int = 1 * limits.MIB,
        memory_bytes: int = 64 * limits.MIB,
    ) -> Opening[AsyncProducer]:
        """Open a producer, which batches single records and writes each batch exactly once.

        Arguments and errors are those of `Log.producer`.
        """

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
        """Begin a transaction: records and consumer offsets that become visible atomically.

        An open one of the same `name` is aborted and its owner fenced.

        Arguments and errors are those of `Log.transaction`.
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
        """Commit prepared transactions and group offsets atomically; durable on return.

        All of them or none, and once for a `number` of a `name`. If the call is cancelled, it may
        still happen.

        Arguments and errors are those of `Log.commit_together`.
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
        """Return records of a partition as a table, which is empty at the end of the partition.

        With `wait_ms` an empty answer waits that long for a record (None: forever), without holding
        a thread.

        Arguments and errors are those of `Log.read`.
        """
        self._log._check_open()
        seconds = checked_wait(wait_ms)
        bounds = checked_bounds(max_records, max_bytes)
        return await bridge.read(
            self._engine, self._run, topic, partition, offset, bounds, columns, seconds
        )

    def table(self, name: str) -> AsyncTable:
        """Return a topic as a table: scans, lookups by key, the current record of each key.

        Arguments and errors are those of `Log.table`.
        """
        return AsyncTable(self._log.table(name), self._threads)

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

        Arguments and errors are those of `Log.consumer`.
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

    # Looking after it

    async def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the log as of one point in time, verified, into a new or empty folder.

        Arguments and errors are those of `Log.backup`.
        """
        tell = None if progress is None else progress_in_loop(progress)
        return await self._run_slowly(self._log.backup, target, progress=tell)

    async def close(self) -> None:
        """Finish what was appended and release the folder. A second call does nothing.

        Tasks that wait for records or for room get `ClosedError`.
        """
        if self._engine.parts.lifecycle.closed:
            return
        # Not in a thread of the log: those may all be waiting for something that closing ends.
        closing = asyncio.to_thread(self._log.close)
        try:
            await asyncio.shield(closing)
        finally:
            self._room.set()
            self._threads.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._log)[1:]}"

    # Inside

    def _async_producer(self, producer: Producer) -> AsyncProducer:
        return AsyncProducer(producer, self._threads, self._completions)

    def _async_transaction(self, transaction: Transaction) -> AsyncTransaction:
        return AsyncTransaction(transaction, self._run, self._admit)

    def _async_consumer(
        self,
        consumer: Consumer,
        on_assign: AsyncCallback | None,
        on_revoke: AsyncCallback | None,
    ) -> AsyncConsumer:
        return AsyncConsumer(consumer, self._run, on_assign, on_revoke)

    # Room

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
                reply, post = (
                    FutureReply(self._completions, future),
                    self._engine.parts.writing.post,
                )
                if self._engine.parts.wal.commits.queue_is_full:
                    await self._run_slowly(post, record, reply)
                else:
                    post(record, reply)
        except Exception as refusal:
            if not future.done():
                future.set_exception(refusal)
        self._waiting.popleft()

    async def _admit(self) -> None:
        """Let a write pass, or make it wait: as `Budget.admit`, without a thread."""
        if self._engine.parts.core.broken is not None:
            raise self._engine.parts.core.broken
        budget = self._engine.parts.budget
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
        budget = self._engine.parts.budget
        deadline = started + self._engine.config.write_timeout_ms / 1000
        budget.stopped_writes += 1
        with budget.watched(self._room.set):
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
