"""Consumers for asyncio: waiting for records holds no thread, and cancelling loses none."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from lakebed.aio.opening import AsyncClosing
from lakebed.api.arguments import check_wait
from lakebed.api.consumer import Consumer
from lakebed.api.cursor import Fetched
from lakebed.api.offsets import Offsets
from lakebed.bridge.completions import AsyncEvent
from lakebed.types import TopicPartition

if TYPE_CHECKING:
    from lakebed.engine.backend import EmbeddedFetcher

AsyncCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]
Run = Callable[..., Awaitable[Any]]


class AsyncConsumer(AsyncClosing):
    """Reads what a group has not read yet. One task at a time; `wake` from anywhere.

    Iterating waits for new records and never ends (`break`, cancel the task, or `wake`).
    """

    def __init__(
        self,
        consumer: Consumer,
        run: Run,
        on_assign: AsyncCallback | None,
        on_revoke: AsyncCallback | None,
    ) -> None:
        self._consumer = consumer
        self._run = run
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._event = AsyncEvent(asyncio.get_running_loop())
        consumer._ring = self._event.set

    @property
    def group(self) -> str | None:
        """The group it commits to."""
        return self._consumer.group

    @property
    def member(self) -> str:
        """Its id in the group; empty for a consumer with fixed partitions."""
        return self._consumer.member

    @property
    def skipped_records(self) -> int:
        """Records that were removed before this consumer could read them."""
        return self._consumer.skipped_records

    # Reading

    async def poll(self, wait_ms: int | None = 0) -> pa.Table:
        """Return the next records; the table is empty if none arrive in time.

        The table is empty if none came. It is also what tells the group that this member lives.

        Arguments and errors are those of `Consumer.poll`.
        """
        consumer = self._consumer
        consumer._check_open()
        check_wait(wait_ms)
        deadline = None if wait_ms is None else time.monotonic() + wait_ms / 1000
        while True:
            table = consumer._give(await self._beat_and_fetch())
            if table is not None:
                return table
            left = None if deadline is None else deadline - time.monotonic()
            if consumer._stopping or (left is not None and left <= 0):
                consumer._stopping = False
                return await self._run(consumer._empty)
            await self._wait(left)

    async def __aiter__(self) -> AsyncIterator[pa.Table]:
        """Return batch after batch, waiting for new records."""
        while True:
            table = await self.poll(None)
            if not table.num_rows:
                return  # woken
            yield table

    def wake(self) -> None:
        """End the iteration, or the wait, of another task. Any thread."""
        self._consumer.wake()

    async def _wait(self, left: float | None) -> None:
        """Sleep until there are records, the group changes, or it is time for a heartbeat."""
        cursor = self._consumer._cursor
        fetcher = cast("EmbeddedFetcher", self._consumer._fetcher)
        stop = fetcher.watch(cursor, self._event.set)
        try:
            if not fetcher.ready(cursor):
                await self._event.wait(self._consumer._at_most_a_beat(left))
            self._event.clear()
        finally:
            stop()

    # The group

    async def heartbeat(self) -> None:
        """Send a heartbeat to the group, and take or give up partitions as it decides."""
        if self.member:
            held = frozenset(self._consumer._positions)
            await self._take_over(held, await self._run(self._consumer._beat))

    async def _beat_and_fetch(self) -> Fetched:
        """Heartbeat and read, in one turn of a thread unless partitions change hands."""
        consumer = self._consumer
        held = frozenset(consumer._positions)

        fetched: Fetched = await self._run(consumer._fetch)
        if fetched.allowed is not None and fetched.allowed != held:
            await self._take_over(held, fetched.allowed)
            fetched = await self._run(consumer._fetch)
        return fetched

    async def _take_over(
        self, held: frozenset[TopicPartition], allowed: frozenset[TopicPartition]
    ) -> None:
        """Return up what is not allowed any more, then take what is new."""
        consumer = self._consumer
        lost = sorted(held - allowed)
        if lost:
            await tell(self._on_revoke, lost)
            consumer._give_up(lost)
            allowed = await self._run(consumer._beat)
        gained = sorted(allowed - held)
        if gained:
            consumer._positions.update(await self._run(consumer._starts, gained))
            await tell(self._on_assign, gained)

    async def assignment(self) -> list[TopicPartition]:
        """List the partitions that this consumer reads."""
        return self._consumer.assignment()

    # Positions

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition."""
        return self._consumer.positions()

    async def seek(self, topic: str, partition: int, offset: int | str) -> None:
        """Continue at another offset of a partition that this consumer reads.

        Arguments and errors are those of `Consumer.seek`.
        """
        self._consumer.seek(topic, partition, offset)

    async def rewind(self) -> None:
        """Go back to the committed offsets, or to where this consumer began."""
        self._consumer.rewind()

    async def lag(self) -> dict[TopicPartition, int]:
        """Count the records of each partition that this consumer has not returned yet."""
        return self._consumer.lag()

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets of the group; durable on return.

        Without `offsets`: everything given out so far.

        Arguments and errors are those of `Consumer.commit`.
        """
        self._consumer._check_open()
        if offsets is None:
            offsets = self._consumer.given()
        await self._run(self._consumer.commit, offsets)

    async def given(self) -> dict[TopicPartition, int]:
        """Return the offsets after all records that were returned so far."""
        return self._consumer.given()

    async def close(self) -> None:
        """Leave the group, so that other members take over at once."""
        if not self._consumer._closed:
            await self._run(self._consumer.close)

    def __repr__(self) -> str:
        return f"<Async{repr(self._consumer)[1:]}"


async def tell(callback: AsyncCallback | None, places: list[TopicPartition]) -> None:
    """Call a callback, and await it if it is a coroutine function."""
    if callback is not None:
        answer = callback(places)
        if inspect.isawaitable(answer):
            await answer
