"""A topic as a table, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.aio._stubs import AsyncTableStub
from lakebed.api.table import Points, Table
from lakebed.bridge.threads import Threads


class AsyncTable(AsyncTableStub):
    """The records of a topic, as a table of the columns that readers get. Any task."""

    def __init__(self, table: Table, threads: Threads) -> None:
        super().__init__(threads)
        self._table = table

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        """Return the columns as readers see them now."""
        return self._table.schema

    async def scan(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        *,
        partitions: Collection[int] | None = None,
        start: Points | None = None,
        until: Points | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Read the current records, partition by partition, in the order of offsets.

        `async for batch in table.scan(): ...`. Bad arguments raise there too. For the rest see
        `Table.scan`. A caller that stops early holds the scan's resources until the iterator is
        collected, or until `aclose` is called.

        Arguments and errors are those of `Table.scan`.
        """
        reader = await self._threads.run(
            partial(
                self._table.scan, columns, where, partitions=partitions, start=start, until=until
            )
        )
        following = partial(next, iter(reader), None)  # a future cannot be given a StopIteration
        while (batch := await self._threads.run(following)) is not None:
            yield batch

    async def get(self, key: bytes | str, default: Any = None) -> Any:
        """Return the current value of a key: bytes for a raw topic, a dictionary for a typed one.

        A key that was never written, or was deleted by a tombstone, has the value `default`.

        Arguments and errors are those of `Table.get`.
        """
        return await self._threads.run(self._table.get, key, default)

    async def iceberg(self) -> Any:
        """Return the pyiceberg table of the topic, with everything that is in files now."""
        return await self._threads.run_slowly(self._table.iceberg)

    def __repr__(self) -> str:
        return f"<Async{repr(self._table)[1:]}"
