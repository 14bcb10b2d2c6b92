"""The log for asyncio: `Log`, awaited."""

from __future__ import annotations

import abc
import asyncio
import functools
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

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
from lakebed.api.consumer import Consumer
from lakebed.api.encoding import Rows
from lakebed.api.log import Log
from lakebed.api.offsets import Offsets
from lakebed.api.producer import Producer
from lakebed.api.together import KEEP_MS, CommittedTogether
from lakebed.api.transaction import Transaction
from lakebed.bridge.completions import CompletionQueue
from lakebed.bridge.threads import Threads, progress_in_loop
from lakebed.client.config import ClientConfig
from lakebed.config import STORE_SCHEMES, LogConfig
from lakebed.reports.maintenance import (
    BackupReport,
)
from lakebed.types import Progress

if TYPE_CHECKING:
    from lakebed.client.log import RemoteLog
    from lakebed.engine.log import EmbeddedLog

_SLOW_THREADS: Final = 2
"""For checkpoints, cleanup and other long calls."""


def open(  # noqa: A001  # as lakebed.open
    target: str | os.PathLike[str],
    config: LogConfig | ClientConfig | None = None,
    *,
    progress: Progress | None = None,
    folder: str | os.PathLike[str] | None = None,
    replica: bool = False,
) -> Opening[AsyncLog]:
    """Open the log in a folder or in an object store, creating it, or connect to a server.

    `await` it, or enter it with `async with`. `progress` is called in the event loop. The arguments
    are those of `lakebed.open`.
    """
    return Opening(_open(target, config, progress, folder, replica=replica))


async def _open(
    target: str | os.PathLike[str],
    config: LogConfig | ClientConfig | None,
    progress: Progress | None,
    folder: str | os.PathLike[str] | None,
    *,
    replica: bool,
) -> AsyncLog:
    threads, woken = Threads("lakebed-aio", slow_threads=_SLOW_THREADS), threading.Event()
    try:
        log = await threads.open(
            _opener(target, config, progress, folder, woken, replica=replica),
            lambda opened: opened.close(),
        )
    except BaseException:
        woken.set()  # a thread that tries to reach a server gives up
        threads.close()
        raise
    if hasattr(log, "folder"):
        from lakebed.aio.embedded import AsyncEmbeddedLog  # a client does not need the engine

        return AsyncEmbeddedLog(cast("EmbeddedLog", log), threads)
    from lakebed.aio.remote import AsyncRemoteLog  # an embedded log does not need the client

    return AsyncRemoteLog(cast("RemoteLog", log), threads)


def _opener(
    target: str | os.PathLike[str],
    config: LogConfig | ClientConfig | None,
    progress: Progress | None,
    folder: str | os.PathLike[str] | None,
    woken: threading.Event,
    *,
    replica: bool,
) -> Callable[[], Log]:
    """Return what opens the log in a thread; setting `woken` ends its search for a server."""
    scheme, is_url, _ = str(target).partition("://")
    is_server = bool(is_url) and scheme not in STORE_SCHEMES and folder is None and not replica
    if isinstance(target, str) and is_server:
        from lakebed.client.log import RemoteLog  # not needed by those who embed the log

        return functools.partial(RemoteLog, target, config, woken=woken)
    tell = None if progress is None else progress_in_loop(progress)
    return functools.partial(
        lakebed.open, target, config, progress=tell, folder=folder, replica=replica
    )


class AsyncLog(AsyncLogStub, AsyncClosing):
    """A durable event log, for the tasks of one event loop: see `Log`."""

    def __init__(self, log: Log, threads: Threads) -> None:
        super().__init__(threads, log._check_open)
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._completions = CompletionQueue(self._loop)
        self.lake = AsyncLake(log.lake, threads, log._check_open)
        """Iceberg tables and object store."""
        self.derived = AsyncDerived(log.derived, threads, log._check_open)
        """Tables that jobs make of topics."""
        self.access = AsyncAccess(log.access, threads, log._check_open)
        """Who may do what when this log is served: tokens, rules, grants."""

    # Writing

    @abc.abstractmethod
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

    @abc.abstractmethod
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

    @abc.abstractmethod
    async def append_batch(self, topic: str, rows: Rows, *, partition: int | None = None) -> Acks:
        """Append records atomically; return their positions once they are durable.

        Returns when it is durable. If the call is cancelled, the batch may still be written.

        Arguments and errors are those of `Log.append_batch`.
        """

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

    @abc.abstractmethod
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

    @abc.abstractmethod
    def table(self, name: str) -> AsyncTable:
        """Return a topic as a table: scans, lookups by key, the current record of each key."""

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

    # Maintenance

    async def backup(
        self, target: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Copy the log as of one point in time, verified, into a new or empty folder.

        Arguments and errors are those of `Log.backup`.
        """
        tell = None if progress is None else progress_in_loop(progress)
        return await self._run_slowly(self._log.backup, target, progress=tell)

    def __repr__(self) -> str:
        return f"<Async{repr(self._log)[1:]}"

    # Inside

    @abc.abstractmethod
    def _async_producer(self, producer: Producer) -> AsyncProducer: ...

    @abc.abstractmethod
    def _async_transaction(self, transaction: Transaction) -> AsyncTransaction: ...

    @abc.abstractmethod
    def _async_consumer(
        self,
        consumer: Consumer,
        on_assign: AsyncCallback | None,
        on_revoke: AsyncCallback | None,
    ) -> AsyncConsumer: ...

    @abc.abstractmethod
    async def _admit(self) -> None:
        """Return when a write may begin, without holding a thread; raise if it may not."""
