"""Transactions for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from lakebed.aio.consumer import AsyncConsumer, Run
from lakebed.aio.opening import AsyncClosing
from lakebed.api.acks import Acks
from lakebed.api.offsets import Offsets
from lakebed.api.transaction import Transaction
from lakebed.errors import LakebedError


class AsyncTransaction(AsyncClosing):
    """An open transaction. `async with` commits it, or aborts it if the block raises.

    A commit that is cancelled may have happened: `outcome` says so once it is known.
    """

    def __init__(
        self, transaction: Transaction, run: Run, admit: Callable[[], Awaitable[None]]
    ) -> None:
        self._transaction = transaction
        self._run = run
        self._admit = admit

    @property
    def name(self) -> str:
        """The name it was begun under."""
        return self._transaction.name

    @property
    def id(self) -> int:
        """The id that the log gave to the name."""
        return self._transaction.id

    @property
    def epoch(self) -> int:
        """How often the name was taken over, this time included."""
        return self._transaction.epoch

    @property
    def outcome(self) -> str:
        """`open`, `prepared`, `committed` or `aborted`."""
        return self._transaction.outcome

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
        """Add a record, visible after the commit; the arguments are those of `Log.append`.

        Arguments and errors are those of `Transaction.append`.
        """
        transaction = self._transaction
        record = transaction._writing.record(topic, value, key, headers, partition, timestamp)
        if not transaction._add_at_once(topic, record):
            await self._admit()
            await self._run(transaction._add_record, topic, record)

    async def append_batch(self, topic: str, rows: Any, *, partition: int | None = None) -> None:
        """Add records, visible after the commit; the arguments are those of `Log.append_batch`."""
        await self._admit()
        await self._run(self._transaction.append_batch, topic, rows, partition=partition)

    async def commit_offsets(
        self, group: str | AsyncConsumer, offsets: Offsets | None = None
    ) -> None:
        """Commit consumer offsets with the transaction.

        Given a consumer, its partitions must still be its own when the transaction commits, and
        `offsets` may be left out: everything that the consumer gave out so far.

        Arguments and errors are those of `Transaction.commit_offsets`.
        """
        if isinstance(group, AsyncConsumer):
            offsets = await group.given() if offsets is None else offsets
            await self._run(self._transaction.commit_offsets, group._consumer, offsets)
        else:
            await self._run(self._transaction.commit_offsets, group, offsets)

    async def commit(self) -> list[Acks]:
        """Make everything visible atomically; return the positions once that is durable.

        Arguments and errors are those of `Transaction.commit`.
        """
        await self._admit()
        acks: list[Acks] = await self._run(self._transaction.commit)
        return acks

    async def prepare(self) -> tuple[int, int]:
        """Make everything durable but invisible, for `Log.commit_together`; return (id, epoch)."""
        await self._admit()
        identity: tuple[int, int] = await self._run(self._transaction.prepare)
        return identity

    async def abort(self) -> None:
        """Drop everything."""
        await self._run(self._transaction.abort)

    async def close(self) -> None:
        """Abort, unless it has ended, is prepared, or belongs to the parent process."""
        if self.outcome == "open":
            await self._run(self._transaction.close)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit if the block came to its end, abort if it raised."""
        if self.outcome != "open":
            return
        if kind is None:
            await self.commit()
            return
        try:
            # Also right behind a commit that was cancelled under way: then it waits for that one.
            await self.close()
        except LakebedError as failure:
            if error is not None:
                error.add_note(f"aborting the transaction failed too: {failure}")

    def __repr__(self) -> str:
        return f"<Async{repr(self._transaction)[1:]}"
