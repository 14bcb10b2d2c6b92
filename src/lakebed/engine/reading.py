"""Reading: one sequence of offsets over segments and memtable, never beyond what is committed.

A partition's state says where it begins and ends and which segments it has; it is one value and
read in one step. Records below `flushed` are in segments, the others in the memtable. A checkpoint
may move records from one to the other in between: then the chunk is not found, and the state is
looked at again.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed.api.lookup import check_partition, no_topic
from lakebed.api.reads import COLUMNS, Bounds, out_of_range, resolve_offset
from lakebed.engine.core import Core, Key
from lakebed.errors import (
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    SchemaChangeError,
    StoreNotFoundError,
)
from lakebed.lake.segment_reader import SegmentReader
from lakebed.state.values import Partition, Segment, Topic
from lakebed.topic.memtable import Chunk, decode_chunks
from lakebed.topic.records import with_position
from lakebed.topic.schema import evolve, reader_schema

_SMALL_ROWS: Final = 1_000
"""Batches with fewer rows than this, on average, are copied together for their reader."""


class Reading:
    """Everything that reads. Any thread."""

    def __init__(self, core: Core, segments: SegmentReader) -> None:
        self._core = core
        self._segments = segments
        self._schemas: dict[tuple[int, int, tuple[str, ...] | None], pa.Schema] = {}
        self.closed = False

    def topic(self, name: str) -> Topic:
        """Find a topic, or raise `TopicNotFoundError`."""
        return self._core.topic_named(name)

    def names(self) -> Collection[str]:
        """Return the names of the topics there are."""
        return self._core.state.names.keys()

    def key(self, topic: Topic, partition: int) -> Key:
        """Find a partition, or raise `PartitionNotFoundError`."""
        check_partition(topic, partition)
        return (topic.id, partition)

    def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """Return a partition's low watermark and its end."""
        partition_state = self._partition(topic, self.key(topic, partition))
        return partition_state.low, partition_state.end

    def offsets(self, topic: Topic) -> dict[int, tuple[int, int]]:
        """Return the earliest offset and the end of each partition; the end is exclusive."""
        return {partition: self.bounds(topic, partition) for partition in range(topic.partitions)}

    def start(self, topic: Topic, partition: int, offset: int | str) -> int:
        """Return the offset that `earliest`, `latest` or a number means."""
        return resolve_offset(topic, partition, offset, *self.bounds(topic, partition))

    def read(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        bounds: Bounds,
        columns: Sequence[str] | None,
    ) -> tuple[pa.Table, int]:
        """Return records from `offset` on, and the offset behind what was looked at.

        At least one record if there is one, at most so many.
        """
        while True:
            try:
                return self._read(topic, partition, offset, bounds, columns)
            except SchemaChangeError:
                now = self._core.topic(topic.id)
                if now is None or now is topic:
                    raise
                topic = now  # it got a field a moment ago, and a record that has it

    def _read(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        bounds: Bounds,
        columns: Sequence[str] | None,
    ) -> tuple[pa.Table, int]:
        key = self.key(topic, partition)
        names = _check_columns(columns)
        schema = self._schema(topic, names)
        batches: list[pa.RecordBatch] = []
        records, size = bounds
        record_bytes = 0  # one more of them would not fit: there is always one more in an answer
        while records > 0 and size > record_bytes:
            try:
                records_read, offset = self._some(topic, key, offset, Bounds(records, size), names)
            except OffsetOutOfRangeError:
                if not batches:
                    raise
                break  # what follows was removed a moment ago; what was read is good
            if not records_read:
                break
            for batch in records_read:
                batches.append(batch)
                records -= batch.num_rows
                size -= batch.nbytes
                record_bytes = batch.nbytes // batch.num_rows
        return pa.Table.from_batches(batches, schema), offset

    def empty(self, topic: Topic, columns: Sequence[str] | None) -> pa.Table:
        """Return a table of a topic's columns without a record."""
        return self._schema(topic, _check_columns(columns)).empty_table()

    def _some(
        self, topic: Topic, key: Key, offset: int, bounds: Bounds, names: tuple[str, ...] | None
    ) -> tuple[list[pa.RecordBatch], int]:
        """Return the next records from one place, and the offset behind them; none at the end."""
        while True:
            partition = self._partition(topic, key)
            if offset == partition.end:
                return [], offset
            if not partition.low <= offset < partition.end:
                raise out_of_range(topic, key[1], offset, partition.low, partition.end)
            if offset >= partition.flushed:
                try:
                    in_memory = self._from_memtable(
                        topic, key, offset, partition.end, bounds, names
                    )
                except Exception:
                    self._core.catch_up()
                    if self._partition(topic, key).flushed == partition.flushed:
                        raise
                    continue  # what it had staged in the store was flushed and removed
                if in_memory is not None:
                    return in_memory
                continue  # it was flushed a moment ago
            segment = segment_at(partition, offset)
            if segment is None:
                # Compaction left nothing here up to the next segment, or to the memtable.
                later = [segment.base for segment in partition.segments if segment.base > offset]
                offset = min([*later, partition.flushed])
                continue
            try:
                batches = self._segments.read(
                    *key,
                    segment,
                    offset=offset,
                    max_records=bounds.records,
                    max_bytes=bounds.bytes,
                    columns=_with_offsets(names, segment),
                )
            except Exception:
                self._core.catch_up()
                if segment in self._partition(topic, key).segments:
                    raise
                continue  # it was replaced or removed a moment ago
            if not batches:
                offset = segment.end
                continue
            rows = sum(batch.num_rows for batch in batches)
            following = _following(batches, offset, rows)
            return [self._fit(topic, batch, names) for batch in batches], following

    def _from_memtable(
        self,
        topic: Topic,
        key: Key,
        offset: int,
        end: int,
        bounds: Bounds,
        names: tuple[str, ...] | None,
    ) -> tuple[list[pa.RecordBatch], int] | None:
        memtable = self._core.memtables.get(key)
        if memtable is None:
            return None
        value_type = self._core.schema(topic, len(topic.schemas)).field("value").type
        pieces: list[Chunk] = []
        records, size = bounds
        for chunk in memtable.starting(offset):
            last = min(chunk.end, offset + records, end)
            if chunk.size_bytes > size:
                # About as many as fit, and at least one in all.
                fit = size * chunk.records // chunk.size_bytes
                if not fit and pieces:
                    break
                last = min(last, offset + max(1, fit))
            pieces.append(chunk.cut(offset, last))
            records -= last - offset
            size -= chunk.size_bytes * (last - offset) // chunk.records
            offset = last
            if offset < chunk.end or records <= 0 or size <= 0:
                break
        if not pieces:
            return None
        base = pieces[0].base
        batches = []
        for batch in _fewer([evolve(rows, value_type) for _, rows in decode_chunks(pieces)]):
            batches.append(self._fit(topic, with_position(batch, key[1], base), names))
            base += batch.num_rows
        return batches, offset

    def _fit(
        self, topic: Topic, batch: pa.RecordBatch, names: tuple[str, ...] | None
    ) -> pa.RecordBatch:
        """Return a batch in the reader's schema: fields added since are null, columns as asked."""
        schema = self._schema(topic, names)
        if names is not None and batch.schema.names != list(names):
            batch = batch.select(list(names))
        if names is None or "value" in names:
            batch = evolve(batch, schema.field("value").type)
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _schema(self, topic: Topic, names: tuple[str, ...] | None) -> pa.Schema:
        key = (topic.id, len(topic.schemas), names)
        schema = self._schemas.get(key)
        if schema is None:
            value = self._core.schema(topic, len(topic.schemas)).field("value").type
            schema = reader_schema(value)
            if names is not None:
                schema = pa.schema([schema.field(name) for name in names])
            schema = self._schemas[key] = schema.with_metadata({"topic": topic.name})
        return schema

    def _partition(self, topic: Topic, key: Key) -> Partition:
        partition = self._core.partition(key)
        if partition is None:
            raise no_topic(topic.name)
        return partition

    # Waiting

    def wait(self, wanted: dict[Key, int], seconds: float | None) -> bool:
        """Wait until one of the partitions has a record at the offset named; False if none came."""
        self.check_may_wait()
        arrived = threading.Event()
        stop = self._core.watch(tuple(wanted), arrived.set)
        try:
            deadline = None if seconds is None else time.monotonic() + seconds
            while not self.ready(wanted):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                arrived.wait(left)
                arrived.clear()
            return True
        finally:
            stop()

    def check_may_wait(self) -> None:
        """Refuse to wait in a callback of the thread that would bring the record."""
        self._core.check_may_wait()

    def watch(self, wanted: dict[Key, int], callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called when a partition changes; return the function that ends it."""
        return self._core.watch(tuple(wanted), callback)

    def ready(self, wanted: dict[Key, int]) -> bool:
        """Return whether one of the partitions has a record at the offset named."""
        if self.closed:
            raise ClosedError("the log is closed")
        if self._core.broken is not None:
            raise self._core.broken
        for key, offset in wanted.items():
            partition = self._core.partition(key)
            if partition is None or partition.end > offset:
                return True
        return False

    # Checking

    def verify(self, topic: Topic) -> int:
        """Read every byte of a topic's segments; return how many there are.

        Those that are merged or removed before their turn are left out.
        """
        return sum(
            self._verify((topic.id, partition), segment)
            for partition in range(topic.partitions)
            for segment in self._segments_of((topic.id, partition))
        )

    def verify_segment(self, key: Key, segment: int) -> bool:
        """Read every byte of a segment; False if there is none of that id."""
        candidates = [candidate for candidate in self._segments_of(key) if candidate.id == segment]
        return bool(candidates) and self._verify(key, candidates[0])

    def _verify(self, key: Key, segment: Segment) -> bool:
        """Check a segment; False if it went meanwhile."""
        try:
            self._segments.verify(*key, segment)
        except (CorruptionError, StoreNotFoundError):
            self._core.catch_up()
            if segment.id in [other.id for other in self._segments_of(key)]:
                raise
            return False
        return True

    def _segments_of(self, key: Key) -> Sequence[Segment]:
        partition = self._core.partition(key)
        return () if partition is None else partition.segments

    # Time

    def offset_for_time(self, topic: Topic, partition: int, time_us: int) -> int:
        """Return the first offset at that time or later; the end if there is none."""
        key = self.key(topic, partition)
        while True:
            before = self._partition(topic, key)
            try:
                offset = self._offset_for_time(key, before, time_us)
            except Exception:
                self._core.catch_up()
                if self._partition(topic, key).segments == before.segments:
                    raise
                continue  # a segment was replaced or removed a moment ago
            if self._partition(topic, key).flushed == before.flushed:
                return offset
            # Records went from the memtable into segments meanwhile, and may have been missed.

    def _offset_for_time(self, key: Key, partition: Partition, time_us: int) -> int:
        for segment in partition.segments:
            if segment.time_max_us >= time_us:
                offset = self._segments.offset_for_time(*key, segment, time_us)
                if offset is not None and offset >= partition.low:
                    return offset
        memtable = self._core.memtables.get(key)
        end = partition.end
        for base, batch in decode_chunks(memtable.chunks() if memtable is not None else ()):
            times = batch.column("timestamp")
            late = np.flatnonzero(np.asarray(times.cast(pa.int64())) >= time_us)
            if len(late):
                return max(partition.low, base + int(late[0]))
            end = max(end, base + batch.num_rows)
        return end


def _fewer(pieces: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Copy many small batches together; leave large ones as they are."""
    if len(pieces) == 1 or sum(piece.num_rows for piece in pieces) >= _SMALL_ROWS * len(pieces):
        return pieces
    batches: list[pa.RecordBatch] = pa.Table.from_batches(pieces).combine_chunks().to_batches()
    return batches


def segment_at(partition: Partition, offset: int) -> Segment | None:
    """Find the segment that answers for an offset."""
    segments = partition.segments
    index = bisect_right(segments, offset, key=lambda segment: segment.base) - 1
    if index < 0 or segments[index].end <= offset:
        return None
    return segments[index]


def _with_offsets(names: tuple[str, ...] | None, segment: Segment) -> tuple[str, ...] | None:
    """Read a compacted segment with its offsets: counting rows does not give them."""
    if names is None or "offset" in names or segment.records == segment.end - segment.base:
        return names
    return ("offset", *names)


def _following(batches: list[pa.RecordBatch], offset: int, rows: int) -> int:
    """Return the offset behind what was read of a segment."""
    last = batches[-1]
    if "offset" in last.schema.names:
        return int(last.column("offset")[-1].as_py()) + 1
    return offset + rows


def _check_columns(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str) or not all(name in COLUMNS for name in columns) or not columns:
        raise InvalidArgumentError(
            "columns must be a list of " + ", ".join(COLUMNS), got=repr(columns)
        )
    return tuple(name for name in COLUMNS if name in columns)
