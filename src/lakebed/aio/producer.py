"""Producers for asyncio: `send` gives a future, and a full producer makes tasks wait, not threads.

Records keep the order in which they were sent: while one waits for memory, those behind it wait
too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from lakebed.aio.opening import AsyncClosing
from lakebed.api.acks import Ack
from lakebed.api.producer import Producer
from lakebed.api.producer_batch import Sent
from lakebed.bridge.completions import CompletionQueue
from lakebed.bridge.threads import Threads
from lakebed.errors import ClosedError


class AsyncProducer(AsyncClosing):
    """Sends records under a name; the latest of a name fences those before it."""

    def __init__(self, producer: Producer, threads: Threads, completions: CompletionQueue) -> None:
        self._producer = producer
        self._threads = threads
        self._completions = completions
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[partial[Sent], asyncio.Future[Ack]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def name(self) -> str:
        """The name it sends under."""
        return self._producer.name

    @property
    def id(self) -> int:
        """The id that the log gave to the name."""
        return self._producer.id

    @property
    def epoch(self) -> int:
        """How often the name was taken over, this time included."""
        return self._producer.epoch

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        headers: Mapping[str, Any] | None = None,
        partition: int | None = None,
        timestamp: Any = None,
    ) -> asyncio.Future[Ack]:
        """Queue a record; the future receives its position when it is durable.

        It is sent whether or not the future is awaited. Awaiting some of them is what keeps a
        sender from running ahead of the disk.

        Arguments and errors are those of `Producer.send`.
        """
        if self._closing:
            raise ClosedError("the producer is closed", name=self.name)
        send = partial(
            self._producer.send,
            topic,
            value,
            key,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
        )
        future: asyncio.Future[Ack] = self._loop.create_future()
        if self._waiting or self._full():
            self._waiting.append((send, future))
            if self._pump is None:
                self._pump = self._loop.create_task(self._send_waiting())
        else:
            self._follow(send(), future)
        return future

    def _full(self) -> bool:
        return self._producer._held_bytes > self._producer._memory_bytes

    def _follow(self, sent: Sent, future: asyncio.Future[Ack]) -> None:
        """Complete the future with the outcome of a record."""
        # An error that was not retrieved is raised by `flush` and `close`, so it is not lost.
        future.add_done_callback(_retrieve_error)
        sent.add_done_callback(lambda done: self._completions.settle(future, done.result))

    async def _send_waiting(self) -> None:
        """Send what waits for memory, one after the other."""
        try:
            while self._waiting:
                send, future = self._waiting[0]
                try:
                    sent = await self._threads.run_slowly(send) if self._full() else send()
                    self._follow(sent, future)
                except Exception as error:
                    if not future.done():
                        future.set_exception(error)
                        _retrieve_error(future)
                self._waiting.popleft()
        finally:
            self._pump = None

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is durable; raise the error if some of it is not.

        Arguments and errors are those of `Producer.flush`.
        """
        async with asyncio.timeout(timeout):
            if self._pump is not None:
                await asyncio.shield(self._pump)
        await self._threads.run(self._producer.flush, timeout)

    async def close(self) -> None:
        """Write what was sent, and close; raise the error if some of it was not written."""
        if self._closing:
            return
        self._closing = True
        if self._pump is not None:
            await asyncio.shield(self._pump)
        # Not in a thread of the log: the producer's own thread must end after the log, too.
        await asyncio.to_thread(self._producer.close)

    def __repr__(self) -> str:
        return f"<Async{repr(self._producer)[1:]}"


def _retrieve_error(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
