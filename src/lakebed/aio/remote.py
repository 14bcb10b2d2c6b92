"""A served log for asyncio: calls that ask the server run in threads, so as not to block the loop.

Single records are handed to one thread, which checks and sends all that have accumulated: records
of thousands of tasks travel in few batches. A `read` or a `poll` that waits has a separate thread
for that time, so that the threads for everything else are never all waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

import pyarrow as pa

from lakebed import limits
from lakebed.aio.consumer import AsyncCallback, AsyncConsumer
from lakebed.aio.log import AsyncLog
from lakebed.aio.producer import AsyncProducer
from lakebed.aio.remote_consumer import AsyncRemoteConsumer
from lakebed.aio.table import AsyncTable
from lakebed.aio.transaction import AsyncTransaction
from lakebed.api.acks import Ack, Acks
from lakebed.api.arguments import wait_seconds
from lakebed.api.consumer import Consumer
from lakebed.api.encoding import Rows
from lakebed.api.producer import Producer
from lakebed.api.producer_batch import Sent
from lakebed.api.reads import check_bounds
from lakebed.api.transaction import Transaction
from lakebed.bridge.completions import FutureReply
from lakebed.bridge.threads import Threads
from lakebed.client.connection import Connection
from lakebed.client.log import RemoteLog
from lakebed.client.reading import as_list, check_named
from lakebed.client.table import RemoteTable
from lakebed.client.writing import STALE_TOPIC_ERRORS, RemoteWriting
from lakebed.errors import ClosedError
from lakebed.host.forks import watch_forks

_WAIT_MS_MAX: Final = 10_000
"""The longest that one request waits; after it the next one is made."""

Result = TypeVar("Result")


class AsyncRemoteLog(AsyncLog):
    """A durable event log that another process serves, for the tasks of one event loop."""

    _log: RemoteLog

    def __init__(self, log: RemoteLog, threads: Threads) -> None:
        super().__init__(log, threads)
        self._posts: deque[tuple[tuple[Any, ...], asyncio.Future[Ack]]] = deque()
        self._called = False
        self._poster = ThreadPoolExecutor(1, "lakebed-aio-post")
        self._answers: set[asyncio.Future[Any]] = set()
        """What tasks wait for that the end of the log ends."""
        self._consumers: weakref.WeakSet[AsyncRemoteConsumer] = weakref.WeakSet()
        self._ending = False
        watch_forks(self)

    def after_fork(self) -> None:
        """Post nothing in a forked process: the thread that would is the parent's."""
        self._poster = ThreadPoolExecutor(1)
        self._posts.clear()
        self._answers.clear()

    @property
    def url(self) -> str:
        """Where it is served."""
        return self._log.url

    @property
    def principal(self) -> str:
        """Who the server takes this client for."""
        return self._log.principal

    @property
    def log_id(self) -> str:
        """The identity of the served log."""
        return self._log.log_id

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

        If the call is cancelled, the record may still be written.

        Arguments and errors are those of `Log.append`.
        """

        def post() -> asyncio.Future[Ack]:
            return self.append_async(
                topic, value, key, headers=headers, partition=partition, timestamp=timestamp
            )

        try:
            return await post()
        except STALE_TOPIC_ERRORS:
            if not await self._is_changed(topic):
                raise
            return await post()

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
        self._check_open()
        future: asyncio.Future[Ack] = self._loop.create_future()
        self._posts.append(((topic, value, key, headers, partition, timestamp), future))
        if not self._called:
            self._called = True
            self._poster.submit(self._post_all)
        return future

    def _post_all(self) -> None:
        """Check the records that have accumulated, and send them; runs in one thread only."""
        self._called = False  # before looking: what comes from here on calls again
        writing = self._log._writing
        lanes = set()
        while self._posts:
            arguments, future = self._posts.popleft()
            if future.done():
                continue  # cancelled, and never written
            reply = FutureReply(self._completions, future)
            try:
                record = writing.record(*arguments)
                lane = writing._own_lane(record.target)
                gathered = writing._gathering_lanes[writing._own_key(record.target)]
                if gathered.is_crowded():
                    lane.pump()
                    lane.wait_while(gathered.is_crowded)
                gathered.add(record, reply)
                lanes.add(lane)
            except Exception as error:
                reply.set_exception(error)
        for lane in lanes:
            lane.pump()

    async def append_batch(self, topic: str, rows: Rows, *, partition: int | None = None) -> Acks:
        """Append records atomically; return their positions once they are durable.

        Returns when it is durable. If the call is cancelled, the batch may still be written.

        Arguments and errors are those of `Log.append_batch`.
        """

        async def post() -> Acks:
            posted = await self._run(self._log._writing.append_batch_async, topic, rows, partition)
            return await asyncio.wrap_future(posted)

        try:
            return await post()
        except STALE_TOPIC_ERRORS:
            if not await self._is_changed(topic):
                raise
            return await post()

    async def _is_changed(self, topic: str) -> bool:
        """Fetch a topic again; return whether it has changed, which explains the error."""
        if not isinstance(topic, str):
            return False
        return await self._run(self._log._topics.has_changed, topic)

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

        With `wait_ms` an empty answer waits that long for a record (None: forever).

        Arguments and errors are those of `Log.read`.
        """
        self._check_open()
        check_named(topic)
        seconds = wait_seconds(wait_ms)
        bounds = check_bounds(max_records, max_bytes)
        deadline = None if seconds is None else time.monotonic() + seconds
        ticket = {
            "call": "read",
            "topic": topic,
            "partition": partition,
            "max_records": bounds.records,
            "max_bytes": bounds.bytes,
            "columns": as_list(columns),
        }
        with self._log._reading.waiting.under_a_name() as name:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                most = self._log._connection.wait_ms_max(_WAIT_MS_MAX)
                wait = most if left is None else min(most, int(left * 1000))
                asked = {**ticket, "offset": offset, "wait_ms": wait, "waiter": name}
                table, said = await self._answer(asked)
                if table.num_rows or (left is not None and left * 1000 <= wait):
                    return table
                offset = said["following"]

    async def _answer(self, ticket: dict[str, Any]) -> tuple[pa.Table, Any]:
        """Return the answer to a ticket, which may wait under a name."""
        get = self._log._connection.get
        if not ticket["wait_ms"]:
            return await self._run(get, ticket)
        try:
            return await self._until_closed(self._threads.waiting(get, ticket))
        except asyncio.CancelledError:
            self._in_the_background(self._log._reading.waiting.wake, ticket["waiter"])
            raise

    async def _until_closed(self, under_way: Future[Result]) -> Result:
        """Wait for an answer; raise `ClosedError` if the log is closed in the meantime."""
        answer: asyncio.Future[Result] = self._loop.create_future()
        self._answers.add(answer)
        under_way.add_done_callback(lambda done: self._completions.settle(answer, done.result))
        try:
            return await answer
        finally:
            self._answers.discard(answer)

    def _in_the_background(self, call: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(ClosedError):  # closing wakes all of them
            self._threads.waiting(call, *args)

    def table(self, name: str) -> AsyncTable:
        """Return a topic as a table: scans, lookups by key, the current record of each key.

        Its `schema` asks the server and holds up the loop for that long.

        Arguments and errors are those of `Log.table`.
        """
        self._check_open()
        return AsyncTable(_LateTable(self._log._connection, name), self._threads)

    async def close(self) -> None:
        """Finish what was appended and end the connection. A second call does nothing.

        Tasks that wait for records get `ClosedError`.
        """
        if self._ending:
            return
        self._ending = True
        for answer in list(self._answers):
            if not answer.done():
                answer.set_exception(ClosedError("the log is closed", url=self.url))
        for consumer in list(self._consumers):
            consumer.ring()
        try:
            await asyncio.shield(asyncio.to_thread(self._end))
        finally:
            self._threads.close()

    def _end(self) -> None:
        self._poster.shutdown()  # what was appended is on its way then
        self._log.close()

    # Inside

    def _check_open(self) -> None:
        if self._ending:
            raise ClosedError("the log is closed", url=self.url)
        self._log._connection.check_process()

    def _async_producer(self, producer: Producer) -> AsyncProducer:
        return AsyncRemoteProducer(producer, self._threads, self._completions)

    def _async_transaction(self, transaction: Transaction) -> AsyncTransaction:
        return AsyncRemoteTransaction(transaction, self._run, self._admit)

    def _async_consumer(
        self,
        consumer: Consumer,
        on_assign: AsyncCallback | None,
        on_revoke: AsyncCallback | None,
    ) -> AsyncConsumer:
        made = AsyncRemoteConsumer(
            consumer=consumer,
            run=self._run,
            on_assign=on_assign,
            on_revoke=on_revoke,
            threads=self._threads,
            check_log=self._check_open,
        )
        self._consumers.add(made)
        return made

    async def _admit(self) -> None:
        """Admit every write: the server makes writes wait if necessary."""


class _LateTable(RemoteTable):
    """A table that does not ask at once whether there is such a topic."""

    def __init__(self, connection: Connection, name: str) -> None:
        check_named(name)
        self._connection = connection
        self.name = name

    @functools.cached_property
    def _id(self) -> int:
        topic_id: int = self._connection.call("describe_topic", name=self.name).id
        return topic_id


class AsyncRemoteProducer(AsyncProducer):
    """Sends records to a served log; a thread checks them, as it may have to ask the server."""

    def send(self, topic: str, value: Any, key: Any = None, **more: Any) -> asyncio.Future[Ack]:
        """Queue a record; the future receives its position when it is durable.

        Arguments and errors are those of `Producer.send`.
        """
        self._connection.check_process()
        return super().send(topic, value, key, **more)

    async def close(self) -> None:
        """Write what was sent, and close; in a forked process this is left to the parent."""
        if not self._connection.forked:
            await super().close()

    @property
    def _connection(self) -> Connection:
        return cast(RemoteWriting, self._producer._writing)._connection

    def _full(self) -> bool:
        return True  # everything goes the way of what waits for memory

    async def _send_waiting(self) -> None:
        """Send what has come together, as often as there is something."""
        try:
            while self._waiting:
                taken = list(self._waiting)
                outcomes = await asyncio.wrap_future(
                    self._threads.waiting(_send_all, [send for send, _ in taken])
                )
                for outcome in outcomes:
                    _, future = self._waiting.popleft()
                    if isinstance(outcome, Sent):
                        self._follow(outcome, future)
                    elif not future.done():
                        future.set_exception(outcome)
                        future.exception()  # `flush` and `close` tell what nobody looked at
        finally:
            self._pump = None


def _send_all(sends: list[Callable[[], Sent]]) -> list[Sent | Exception]:
    outcomes: list[Sent | Exception] = []
    for send in sends:
        try:
            outcomes.append(send())
        except Exception as error:  # told to whoever sent it
            outcomes.append(error)
    return outcomes


class AsyncRemoteTransaction(AsyncTransaction):
    """An open transaction of a served log."""

    async def append(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timestamp: Any = None,
    ) -> None:
        """Add a record, visible after the commit: see `Transaction.append`."""
        arguments = (topic, value, key, headers, partition, timestamp)
        record = self._check_locally(*arguments)
        if record is None or not self._transaction._add_at_once(topic, record):
            await self._run(self._add, *arguments)

    def _check_locally(self, topic: str, *arguments: Any) -> Any:
        """Check a record without asking the server; None if that is not possible, or it is bad."""
        return cast(RemoteWriting, self._transaction._writing).record_at_once(topic, *arguments)

    def _add(self, topic: str, *arguments: Any) -> None:
        record = self._transaction._writing.record(topic, *arguments)
        self._transaction._add_record(topic, record)
