"""The memtable of a partition: acknowledged records that are not in a segment yet.

A body is what one part of an entry brought, as bytes; it is decoded when somebody needs it. A chunk
is the rows of a body that one partition got. The committing thread appends; any thread reads
without a lock, because chunks are only ever added at the end, and dropping some makes a new
memtable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from lakebed.topic.records import deserialize


class Body:
    """The batch of one part, decoded when it is first needed and kept from then on."""

    __slots__ = ("_batch", "raw", "schema", "size_bytes", "staged")

    def __init__(
        self, raw: Callable[[], Any], schema: pa.Schema, size_bytes: int, staged: int = 0
    ) -> None:
        self.raw = raw
        """Gives the encoded bytes."""
        self._batch: pa.RecordBatch | None = None
        self.schema = schema
        self.size_bytes = size_bytes
        self.staged = staged
        """The staged file it comes from, 0 if none."""

    @property
    def memory_bytes(self) -> int:
        """Give what of it is held in memory: nothing if it comes from a file."""
        return 0 if self.staged else self.size_bytes

    def batch(self) -> pa.RecordBatch:
        """Give the rows. Two threads may decode at once; both get the same."""
        batch = self._batch
        if batch is None:
            batch = self._batch = deserialize(self.raw(), self.schema)
        return batch


class Chunk(NamedTuple):
    """Rows of a body with their offsets."""

    base: int
    records: int
    body: Body
    start: int
    size_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Give what of it is held in memory."""
        return 0 if self.body.staged else self.size_bytes

    @property
    def end(self) -> int:
        """Give the offset behind the last row."""
        return self.base + self.records

    def batch(self, first: int, last: int) -> pa.RecordBatch:
        """Give the rows from offset `first` up to, not including, `last`."""
        return self.body.batch().slice(self.start + first - self.base, last - first)


class Memtable:
    """The chunks of one partition in the order of their offsets, without a hole."""

    __slots__ = ("_bases", "_chunks", "since")

    def __init__(self, since: float, chunks: list[Chunk] | None = None) -> None:
        self.since = since
        """When its first record came, on the monotonic clock."""
        self._chunks = chunks or []
        self._bases = [chunk.base for chunk in self._chunks]

    def __setitem__(self, base: int, chunk: Chunk) -> None:
        """Add a chunk behind the last one; a second time does nothing."""
        if self._bases and self._bases[-1] >= base:
            return
        del self._chunks[len(self._bases) :]  # of an addition that was cut short
        self._chunks.append(chunk)
        self._bases.append(base)  # from here on readers see it

    def __len__(self) -> int:
        return len(self._bases)

    def chunks(self) -> list[Chunk]:
        """Give every chunk there is now."""
        return self._chunks[: len(self._bases)]

    def starting(self, offset: int) -> Iterator[Chunk]:
        """Give the chunks from the one that holds `offset` on; nothing if it is not here."""
        count = len(self._bases)
        first = bisect_right(self._bases, offset, 0, count) - 1
        if first < 0 or offset >= self._chunks[first].end:
            return
        for number in range(first, count):
            yield self._chunks[number]

    def above(self, offset: int, since: float) -> Memtable:
        """Give a memtable without what lies below `offset`."""
        return Memtable(since, [chunk for chunk in self.chunks() if chunk.end > offset])

    def bytes_between(self, start: int, until: int) -> int:
        """Give about how many bytes the records from `start` up to, not including, `until` take."""
        total = 0
        for chunk in self.chunks():
            records = min(until, chunk.end) - max(start, chunk.base)
            if records > 0:
                total += chunk.size_bytes * records // chunk.records
        return total

    def memory_bytes(self) -> int:
        """Give what it holds in memory."""
        return sum(chunk.memory_bytes for chunk in self.chunks())
