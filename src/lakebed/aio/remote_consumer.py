"""Consumers of a served log for asyncio.

One request at a time fetches, is a heartbeat for the group, and waits, in a separate thread. It
consumes nothing: the position moves in the loop, when a task receives the records. So a cancelled
`poll` loses none; its request is ended before the consumer does anything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import pyarrow as pa

from lakebed.aio.consumer import AsyncCallback, AsyncConsumer, Run, tell
from lakebed.api.arguments import check_wait
from lakebed.api.consumer import Consumer
from lakebed.api.cursor import Fetched
from lakebed.api.offsets import Offsets
from lakebed.bridge.threads import Threads
from lakebed.errors import ClosedError, FencedError
from lakebed.types import TopicPartition

_WAKE_SECONDS: Final = 0.05
"""How often a request is woken that does not end: the first call may have overtaken it."""


class AsyncRemoteConsumer(AsyncConsumer):
    """Reads what a group of a served log has not read yet; for the rest see `AsyncConsumer`."""

    def __init__(
        self,
        *,
        consumer: Consumer,
        run: Run,
        on_assign: AsyncCallback | None,
        on_revoke: AsyncCallback | None,
        threads: Threads,
        check_log: Callable[[], None],
    ) -> None:
        super().__init__(consumer, run, on_assign, on_revoke)
        self._remote = consumer
        consumer._ring = consumer._fetcher.wake
        self._threads = threads
        self._check_log = check_log
        self._asked: Future[Fetched] | None = None
        self._waking: Future[None] | None = None

    def ring(self) -> None:
        """Make a waiting task check its condition again. Any thread."""
        self._event.set()

    # Reading

    async def poll(self, wait_ms: int | None = 0) -> pa.Table:
        """Return the next records; the table is empty if none arrive in time.

        The table is empty if none came. It is also what tells the group that this member lives.

        Arguments and errors are those of `Consumer.poll`.
        """
        consumer = self._remote
        consumer._check_open()
        check_wait(wait_ms)
        deadline = None if wait_ms is None else time.monotonic() + wait_ms / 1000
        while True:
            await self._settle()
            try:
                return await self._poll(deadline)
            except FencedError:
                if not await self._rejoin():
                    raise

    async def _rejoin(self) -> bool:
        """Join the group again if the membership was lost only because the server restarted."""
        consumer = self._remote
        if not consumer.member or (
            await self._run(consumer._backend.incarnation) == consumer._incarnation
        ):
            return False
        held = consumer.assignment()
        if held:
            await tell(self._on_revoke, held)
        return bool(await self._run(consumer._rejoin))

    async def _poll(self, deadline: float | None) -> pa.Table:
        consumer = self._remote
        if consumer.member and not consumer._positions:
            await self.heartbeat()
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            fetched = await self._request(0.0 if consumer._stopping else left)
            if fetched.allowed is not None and fetched.allowed != frozenset(consumer._positions):
                await self.heartbeat()
                if fetched.table is None:  # partitions of other members were not read
                    fetched = await self._request(0.0)
            table = consumer._give(fetched)
            if table is not None:
                return table
            if consumer._stopping or (deadline is not None and time.monotonic() >= deadline):
                consumer._stopping = False
                return await self._run(consumer._empty)
            consumer._check_open()

    async def _request(self, left: float | None) -> Fetched:
        """Ask for the next records, and wait until they arrive or another task wakes this one."""
        self._check_log()
        asked = self._asked = self._threads.waiting(self._remote._fetch, left)
        asked.add_done_callback(lambda _: self._event.set())
        try:
            while not asked.done():
                await self._event.wait(None)
                self._event.clear()
                self._check_log()
                if self._remote._stopping and not asked.done():
                    self._wake_request()
                    return Fetched(None, {}, {})
        except asyncio.CancelledError:
            self._wake_request()
            raise
        return asked.result()

    async def _settle(self) -> None:
        """End a request whose task was cancelled or woken; its answer is discarded."""
        asked = self._asked
        while asked is not None and not asked.done():
            self._check_log()
            self._wake_request()
            await self._event.wait(_WAKE_SECONDS)
            self._event.clear()
        self._asked = None

    def wake(self) -> None:
        """End the iteration, or the wait, of another task. Any thread."""
        self._remote._stopping = True
        self._event.set()

    def _wake_request(self) -> None:
        """Make the server answer the request now; one call at a time does so."""
        if self._waking is None or self._waking.done():
            with contextlib.suppress(ClosedError):  # closing wakes all of them
                self._waking = self._threads.waiting(self._remote._fetcher.wake)

    # The group

    async def heartbeat(self) -> None:
        """Send a heartbeat to the group, and take or give up partitions as it decides."""
        await self._settle()
        await super().heartbeat()

    # Positions

    async def seek(self, topic: str, partition: int, offset: int | str) -> None:
        """Continue at another offset of a partition that this consumer reads.

        Arguments and errors are those of `Consumer.seek`.
        """
        await self._settle()
        await self._run(self._remote.seek, topic, partition, offset)

    async def rewind(self) -> None:
        """Go back to the committed offsets, or to where this consumer began."""
        await self._settle()
        await self._run(self._remote.rewind)

    async def lag(self) -> dict[TopicPartition, int]:
        """Count the records of each partition that this consumer has not returned yet."""
        lags: dict[TopicPartition, int] = await self._run(self._remote.lag)
        return lags

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets of the group; durable on return.

        Without `offsets`: everything given out so far.

        Arguments and errors are those of `Consumer.commit`.
        """
        self._remote._check_open()
        await self._run(self._remote.commit, await self.given() if offsets is None else offsets)

    async def given(self) -> dict[TopicPartition, int]:
        """Return the offsets after all records that were returned so far."""
        offsets: dict[TopicPartition, int] = await self._run(self._remote.given)
        return offsets

    async def close(self) -> None:
        """Leave the group, so that other members take over at once."""
        if self._remote._closed:
            return
        with contextlib.suppress(ClosedError):  # a closed log has no members any more
            await self._run(self._remote.close)
        self._event.set()

    def __repr__(self) -> str:
        return f"<Async{repr(self._remote)[1:]}"
