"""A log of this process for asyncio: single records are posted without a thread for any of them."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakebed import limits
from lakebed.aio.consumer import AsyncCallback, AsyncConsumer
from lakebed.aio.log import AsyncLog
from lakebed.aio.producer import AsyncProducer
from lakebed.aio.table import AsyncTable
from lakebed.aio.transaction import AsyncTransaction
from lakebed.api.acks import Ack, Acks
from lakebed.api.arguments import wait_seconds
from lakebed.api.consumer import Consumer
from lakebed.api.encoding import Record, Rows
from lakebed.api.producer import Producer
from lakebed.api.reads import check_bounds
from lakebed.api.transaction import Transaction
from lakebed.bridge import log as bridge
from lakebed.bridge.completions import AsyncEvent, FutureReply
from lakebed.bridge.threads import Threads
from lakebed.config import LogConfig
from lakebed.engine.log import EmbeddedLog


class AsyncEmbeddedLog(AsyncLog):
    """A log in a folder that this process owns, for the tasks of one event loop."""

    _log: EmbeddedLog

    def __init__(self, log: EmbeddedLog, threads: Threads) -> None:
        super().__init__(log, threads)
        self._room = AsyncEvent(self._loop)
        self._waiting: deque[tuple[Record, asyncio.Future[Ack]]] = deque()
        self._pump: asyncio.Task[None] | None = None

    @property
    def folder(self) -> Path:
        """The folder of the log."""
        return self._log.folder

    @property
    def config(self) -> LogConfig:
        """The settings it was opened with."""
        return self._log.config

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
        self._log._check_writable()
        record = self._log.parts.writing.record(topic, value, key, headers, partition, timestamp)
        future: asyncio.Future[Ack] = self._loop.create_future()
        if self._waiting or bridge.must_wait(self._log):
            self._waiting.append((record, future))
            if self._pump is None:
                self._pump = self._loop.create_task(self._append_waiting())
            return future
        try:
            self._log.parts.writing.post(record, FutureReply(self._completions, future))
        except BaseException:
            future.cancel()  # the exception alone reports it
            raise
        return future

    async def append_batch(self, topic: str, rows: Rows, *, partition: int | None = None) -> Acks:
        """Append a table, a record batch or a list of rows; all of it or nothing.

        Returns when it is durable. If the call is cancelled, the batch may still be written.
        """
        self._log._check_writable()
        await self._admit()
        # A thread checks and encodes; none is held while the disk works.
        posted = await self._run(self._log.parts.writing.append_batch_async, topic, rows, partition)
        return await asyncio.wrap_future(posted)

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
        seconds = wait_seconds(wait_ms)
        bounds = check_bounds(max_records, max_bytes)
        return await bridge.read(
            self._log, self._run, topic, partition, offset, bounds, columns, seconds
        )

    def table(self, name: str) -> AsyncTable:
        """Return a topic as a table: scans, lookups by key, the current record of each key."""
        return AsyncTable(self._log.table(name), self._threads)

    async def close(self) -> None:
        """Finish what was appended and release the folder. A second call does nothing.

        Tasks that wait for records or for room get `ClosedError`.
        """
        if self._log.parts.lifecycle.closed:
            return
        # Not in a thread of the log: those may all be waiting for something that closing ends.
        closing = asyncio.to_thread(self._log.close)
        try:
            await asyncio.shield(closing)
        finally:
            self._room.set()
            self._threads.close()

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
                    count = len(self._waiting)  # those that came in the meantime have waited enough
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
                    self._log.parts.writing.post,
                )
                if self._log.parts.wal.commits.queue_is_full:
                    await self._run_slowly(post, record, reply)
                else:
                    post(record, reply)
        except Exception as refusal:
            if not future.done():
                future.set_exception(refusal)
        self._waiting.popleft()

    async def _admit(self) -> None:
        """Admit a write, or wait until it can be: `Budget.admit` without a thread."""
        if self._log.parts.core.broken is not None:
            raise self._log.parts.core.broken
        budget = self._log.parts.budget
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
        budget = self._log.parts.budget
        deadline = started + self._log.config.write_timeout_ms / 1000
        budget.stopped_writes += 1
        with budget.watch(self._room.set):
            while budget.share_used() >= 1:
                self._room.clear()
                left = deadline - time.monotonic()
                if budget.disk_full:
                    raise budget.refusal(started)
                if budget.share_used() >= 1 and (left <= 0 or not await self._room.wait(left)):
                    raise budget.refusal(started)
                self._log._check_open()
