"""The memtable of a partition: acknowledged records that are not in a segment yet.

A body is what one part of an entry brought, as bytes; it is decoded when it is first needed. A
chunk is the rows of a body that one partition got. The committing thread appends; any thread reads
without a lock, because chunks are only ever added at the end, and dropping or merging some makes a
new memtable.

Records that are appended one by one would leave a body each: several times their payload in memory,
and microseconds for each of them when they are read. So once a memtable has `RUN_CHUNKS` new
chunks, the small ones among them are merged into one (`consolidate`).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lakebed.errors import CorruptionError
from lakebed.topic.messages import Unusual, decode_messages
from lakebed.topic.records import deserialize, serialize

_log = logging.getLogger("lakebed.engine")

RUN_CHUNKS: Final = 256
"""A memtable is consolidated whenever so many chunks were added."""
SMALL_BYTES: Final = 8 * 1024
"""A body up to this size is merged with its neighbours."""
RUN_CHUNKS_MIN: Final = 16
"""Fewer small chunks side by side stay as they are."""
ONE_PASS_MIN: Final = 48
"""From so many messages on, decoding all in one pass is faster than one after the other."""
ONE_PASS_MAX: Final = 2_048
"""So many are decoded at a time: the fixed cost is spread, and the copies stay small."""
_OBJECT_BYTES: Final = 512
"""About what the objects around a body take: Python's, Arrow's, and its chunk."""


class Body:
    """The batch of one part, decoded when it is needed; a large one is kept from then on."""

    __slots__ = ("_batch", "holders", "raw", "schema", "size_bytes", "staged")

    def __init__(
        self,
        raw: Callable[[], Any],
        schema: pa.Schema,
        size_bytes: int,
        staged: int = 0,
        holders: int = 1,
    ) -> None:
        self.raw = raw
        """Returns the encoded bytes."""
        self._batch: pa.RecordBatch | None = None
        self.schema = schema
        self.size_bytes = size_bytes
        self.staged = staged
        """The staged file it comes from, 0 if none."""
        self.holders = holders
        """How many chunks of memtables refer to it, or will: its memory is free when none does."""

    @classmethod
    def of(cls, batch: pa.RecordBatch, schema: pa.Schema) -> Body:
        """Make a body of rows that are decoded."""
        body = cls(lambda: serialize(batch), schema, batch.nbytes)
        body._batch = batch
        return body

    def __setitem__(self, _: str, holders: int) -> None:
        """Set the number of holders: a change as `state/machine.py` describes it."""
        self.holders = holders

    @property
    def small(self) -> bool:
        """Whether it is merged with its neighbours."""
        return self.size_bytes <= SMALL_BYTES and not self.staged

    @property
    def memory_bytes(self) -> int:
        """Return what of it is held in memory: nothing if it comes from a file."""
        return 0 if self.staged else self.size_bytes + _OBJECT_BYTES

    def batch(self) -> pa.RecordBatch:
        """Return the rows. Two threads may decode at once; both get the same."""
        batch = self._batch
        if batch is None:
            batch = deserialize(self.raw(), self.schema)
            if not self.small:  # the objects of a decoded batch are larger than a small one's bytes
                self._batch = batch
        return batch


class Chunk(NamedTuple):
    """Rows of a body with their offsets."""

    base: int
    records: int
    body: Body
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        """Return the offset behind the last row."""
        return self.base + self.records

    def batch(self, first: int, last: int) -> pa.RecordBatch:
        """Return the rows from offset `first` up to, not including, `last`."""
        return self.body.batch().slice(self.start + first - self.base, last - first)

    def cut(self, first: int, last: int) -> Chunk:
        """Return the part of it from offset `first` up to, not including, `last`."""
        if first == self.base and last == self.end:
            return self
        size_bytes = self.size_bytes * (last - first) // self.records
        return Chunk(first, last - first, self.body, self.start + first - self.base, size_bytes)


class Consolidated(NamedTuple):
    """A memtable with fewer chunks of the same rows."""

    memtable: Memtable
    merged: list[Chunk]
    """The chunks that it does without."""
    made: list[Chunk]
    """The chunks that it has instead."""


class Memtable:
    """The chunks of one partition in the order of their offsets, without a hole."""

    __slots__ = ("_bases", "_chunks", "_seen", "since")

    def __init__(self, since: float, chunks: list[Chunk] | None = None, seen: int = 0) -> None:
        self.since = since
        """When its first record came, on the monotonic clock."""
        self._chunks = chunks or []
        self._bases = [chunk.base for chunk in self._chunks]
        self._seen = seen
        """How many of its chunks were there when it was consolidated last."""

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
        """Return every chunk there is now."""
        return self._chunks[: len(self._bases)]

    def starting(self, offset: int) -> Iterator[Chunk]:
        """Yield the chunks from the one that holds `offset` on; nothing if it is not here."""
        count = len(self._bases)
        first = bisect_right(self._bases, offset, 0, count) - 1
        if first < 0 or offset >= self._chunks[first].end:
            return
        for index in range(first, count):
            yield self._chunks[index]

    def above(self, offset: int, since: float) -> Memtable:
        """Return a memtable without what lies below `offset`; a chunk across it is cut."""
        chunks = [chunk for chunk in self.chunks() if chunk.end > offset]
        if chunks and chunks[0].base < offset:
            chunks[0] = chunks[0].cut(offset, chunks[0].end)
        return Memtable(since, chunks, max(0, self._seen - len(self) + len(chunks)))

    def bytes_between(self, start: int, until: int) -> int:
        """Return about how many bytes the records from `start` to before `until` take."""
        total = 0
        for chunk in self.chunks():
            records = min(until, chunk.end) - max(start, chunk.base)
            if records > 0:
                total += chunk.size_bytes * records // chunk.records
        return total

    def consolidation_due(self) -> bool:
        """Return True if many chunks were added since it was consolidated."""
        return len(self._bases) - self._seen >= RUN_CHUNKS

    def consolidate(self) -> Consolidated | None:
        """Merge runs of small chunks that were added lately; None if there are none.

        This memtable does not change. Only the committing thread calls it.
        """
        chunks = self.chunks()
        first = max(0, self._seen - RUN_CHUNKS_MIN)  # a run may have begun before
        done = Consolidated(Memtable(self.since), [], [])
        kept = chunks[:first]
        for run in small_runs(chunks[first:]):
            chunk = _merge(run) if len(run) >= RUN_CHUNKS_MIN else None
            if chunk is None:
                kept += run
            else:
                kept.append(chunk)
                done.merged.extend(run)
                done.made.append(chunk)
        self._seen = len(chunks)
        if not done.made:
            return None
        return done._replace(memtable=Memtable(self.since, kept, len(kept)))


def chunk_of(base: int, batch: pa.RecordBatch, schema: pa.Schema) -> Chunk:
    """Return rows that are decoded as a chunk."""
    body = Body.of(batch, schema)
    return Chunk(base, batch.num_rows, body, 0, body.size_bytes)


def decode_chunks(chunks: Iterable[Chunk]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of chunks with their first offset, those of small neighbours in one batch."""
    for run in small_runs(chunks):
        yield run[0].base, _rows(run)


def small_runs(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Group small neighbours with the same schema; a large chunk is a group alone."""
    run: list[Chunk] = []
    for chunk in chunks:
        if run and not _joins(run, chunk):
            yield run
            run = []
        run.append(chunk)
    if run:
        yield run


def _joins(run: list[Chunk], chunk: Chunk) -> bool:
    last = run[-1]
    return (
        chunk.body.small
        and last.body.small
        and chunk.body.schema is last.body.schema
        and len(run) < ONE_PASS_MAX
    )


def _merge(run: list[Chunk]) -> Chunk | None:
    """Return one chunk for a run; None if a body cannot be read: its readers get the error."""
    try:
        batch = _rows(run)
        if batch.num_rows != run[-1].end - run[0].base:
            raise CorruptionError("an entry says another number of rows than its batch has")
    except CorruptionError as error:
        _log.error("records in memory are not merged: %s", error)
        return None
    return chunk_of(run[0].base, batch, run[0].body.schema)


def _rows(run: Sequence[Chunk]) -> pa.RecordBatch:
    if len(run) >= ONE_PASS_MIN:
        try:
            return _rows_in_one_pass(run)
        except (Unusual, pa.ArrowException):
            pass  # Arrow decodes it, or says what is wrong
    batches = [chunk.batch(chunk.base, chunk.end) for chunk in run]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _rows_in_one_pass(run: Sequence[Chunk]) -> pa.RecordBatch:
    batch, rows = decode_messages([memoryview(c.body.raw()) for c in run], run[0].body.schema)
    starts = np.fromiter((chunk.start for chunk in run), np.int64, len(run))
    records = np.fromiter((chunk.records for chunk in run), np.int64, len(run))
    if (starts + records > rows).any():
        raise Unusual("a message has fewer rows than its entry says")
    if np.array_equal(records, rows):
        return batch
    # Other partitions got the other rows.
    shifts = (rows.cumsum() - rows) + starts - (records.cumsum() - records)
    return batch.take(pa.array(np.arange(int(records.sum())) + np.repeat(shifts, records)))
