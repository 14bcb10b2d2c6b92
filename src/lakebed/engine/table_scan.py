"""A scan: records of a topic, partition after partition, as they were when it began.

What is fixed at the beginning is the schema and, of each partition, the offsets to be given. Where
these are is looked up step by step, as a consumer does: a checkpoint may move them from the
memtable into a segment meanwhile, a merge from some segments into another, and nothing is missing
or given twice. Records that retention removes before the scan has come to them are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lakebed import limits
from lakebed.api.lookup import no_topic
from lakebed.api.reads import Bounds
from lakebed.engine.core import Core, Key
from lakebed.engine.reading import Reading, segment_at
from lakebed.errors import ClosedError, InvalidArgumentError, OffsetOutOfRangeError
from lakebed.lake.open_segment import OpenSegment
from lakebed.lake.prefetch import PendingDecode
from lakebed.lake.pruning import may_match
from lakebed.lake.segment_reader import SegmentReader
from lakebed.lake.segment_scan import between, pieces
from lakebed.state.values import Partition, Segment, Topic
from lakebed.topic.compaction import keep
from lakebed.topic.schema import evolve

_log = logging.getLogger("lakebed.engine")

Offsets = npt.NDArray[np.int64]

_FROM_MEMORY: Final = Bounds(limits.ROW_GROUP_RECORDS, 16 * limits.MIB)
"""How much of a memtable is made one batch."""


class ScanExtent(NamedTuple):
    """Offsets of a partition, `until` exclusive."""

    partition: int
    start: int
    until: int


class Selection(NamedTuple):
    """What a scan gives of the records in its extents."""

    names: tuple[str, ...]
    """The columns it gives."""
    where: pc.Expression | None = None
    """Which records; all if there is no predicate."""
    needs: tuple[str, ...] = ()
    """The columns that the predicate looks at."""
    only: Mapping[int, Offsets] | None = None
    """By partition the sorted offsets of the only records to give; `names` includes `offset`."""


class Scan:
    """One pass over some extents of a topic. One thread at a time."""

    def __init__(
        self,
        *,
        core: Core,
        reading: Reading,
        segments: SegmentReader,
        topic: Topic,
        extents: Sequence[ScanExtent],
        wanted: Selection,
    ) -> None:
        self._core = core
        self._reading = reading
        self._segments = segments
        self._topic = topic
        self._extents = extents
        self._wanted = wanted
        self._names = tuple(dict.fromkeys((*wanted.names, *wanted.needs)))
        self._whole = reading.empty(topic, None).schema
        self._read_schema = _choose(self._whole, self._names)
        self.schema: Final = _choose(self._whole, wanted.names)
        """The schema of what it gives."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the records, in batches that are decoded ahead; none of them is empty."""
        for batch in self._segments.decoders.in_order(self._pieces()):
            yield batch
            del batch  # its caller is done with it
            if self._reading.closed:
                raise ClosedError("the log was closed during a scan")

    def table(self) -> pa.Table:
        """Return all of it at once."""
        return pa.Table.from_batches(self.batches(), self.schema)

    # Where the records are

    def _pieces(self) -> Iterator[PendingDecode]:
        for extent in self._extents:
            yield from self._of_partition(extent)

    def _of_partition(self, extent: ScanExtent) -> Iterator[PendingDecode]:
        key, offset = (self._topic.id, extent.partition), extent.start
        while (offset := self._following(extent.partition, offset, extent.until)) < extent.until:
            partition = self._partition(key)
            if offset < partition.low:
                self._tell_removed(extent, offset, partition.low)
                offset = partition.low
            elif offset >= partition.flushed:
                offset, piece = self._from_memory(key, offset, extent.until)
                if piece is not None:
                    yield piece
            elif (segment := segment_at(partition, offset)) is None:
                later = [
                    later_segment.base
                    for later_segment in partition.segments
                    if later_segment.base > offset
                ]
                offset = min([*later, partition.flushed])
            elif (opened := self._open(key, segment)) is not None:
                yield from self._of_segment(opened, key, segment, offset, extent.until)
                offset = segment.end

    def _following(self, partition: int, offset: int, until: int) -> int:
        """Return the offset of the next record that is wanted, if only some are."""
        if self._wanted.only is None:
            return offset
        only = self._wanted.only.get(partition, _NONE)
        position = int(np.searchsorted(only, offset))
        return int(only[position]) if position < len(only) else until

    def _open(self, key: Key, segment: Segment) -> OpenSegment | None:
        """Open a segment; None if it was replaced or removed a moment ago."""
        try:
            return self._segments.open(*key, segment)
        except Exception:
            self._core.catch_up()
            if segment in self._partition(key).segments:
                raise
            return None

    def _of_segment(
        self, opened: OpenSegment, key: Key, segment: Segment, start: int, until: int
    ) -> Iterator[PendingDecode]:
        wanted, partition = self._wanted, key[1]
        numbers = between(opened, start, until)
        if wanted.where is not None:
            numbers = may_match(opened, numbers, wanted.where, self._whole, wanted.needs)
        if wanted.only is not None:
            only = wanted.only.get(partition, _NONE)
            groups = opened.index.row_groups
            numbers = [
                row_group
                for row_group in numbers
                if _any(only, groups[row_group].first, groups[row_group].last)
            ]
        yield from pieces(
            opened,
            numbers,
            self._names,
            start=start,
            until=until,
            shape=lambda batch: self._shape(batch, partition),
            reopen=lambda: self._segments.reopen(*key, segment),
        )

    def _from_memory(self, key: Key, offset: int, until: int) -> tuple[int, PendingDecode | None]:
        """Return the next records of a memtable, and the offset behind them."""
        names = ("offset", *self._names)
        bounds = Bounds(min(_FROM_MEMORY.records, until - offset), _FROM_MEMORY.bytes)
        try:
            table, offset = self._reading.read(self._topic, key[1], offset, bounds, names)
        except OffsetOutOfRangeError:
            return offset, None  # removed a moment ago; the next look at the state tells
        # A checkpoint and a compaction in between may have led the reading beyond the end.
        offsets = np.asarray(table.column("offset"))
        table = table.slice(0, int(np.searchsorted(offsets, until)))
        batches = table.select(list(self._names)).combine_chunks().to_batches()
        if not batches:
            return offset, None
        return offset, PendingDecode(table.nbytes, lambda: self._shape(batches[0], key[1]))

    def _partition(self, key: Key) -> Partition:
        if self._reading.closed:
            raise ClosedError("the log was closed during a scan")
        partition = self._core.partition(key)
        if partition is None:
            raise no_topic(self._topic.name)
        return partition

    def _tell_removed(self, extent: ScanExtent, offset: int, low: int) -> None:
        _log.warning(
            "a scan left out what was removed before it came there: topic=%s partition=%d"
            " offsets=%d",
            self._topic.name,
            extent.partition,
            min(low, extent.until) - offset,
        )

    # What is given of them

    def _shape(self, batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
        """Return a batch in the scan's schema, with the records and columns that are wanted."""
        wanted = self._wanted
        batch = fit(batch, self._read_schema)
        if wanted.only is not None:
            batch = keep(batch, wanted.only.get(partition, _NONE))
        if wanted.where is not None:
            batch = filter_batch(batch, wanted.where)
        return pa.RecordBatch.from_arrays(
            [batch.column(name) for name in wanted.names], schema=self.schema
        )


_NONE: Final[Offsets] = np.empty(0, np.int64)


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the schema that a scan began with, however old or new what was read is.

    Fields that the batch lacks are null. Fields that were added after the scan began are dropped:
    no record of the scan has them.
    """
    arrays = [batch.column(name) for name in schema.names]
    index = schema.get_field_index("value")
    if index >= 0 and arrays[index].type != schema.field(index).type:
        kind = schema.field(index).type
        narrow = pa.RecordBatch.from_arrays([_narrow(arrays[index], kind)], ["value"])
        arrays[index] = evolve(narrow, kind).column(0)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Drop fields at the end of structs that `kind` does not have."""
    if not (types.is_struct(array.type) and types.is_struct(kind)):
        return array
    fields = list(array.type)[: kind.num_fields]
    children = [_narrow(array.field(index), kind.field(index).type) for index in range(len(fields))]
    fields = [field.with_type(child.type) for field, child in zip(fields, children, strict=True)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def filter_batch(batch: pa.RecordBatch, where: pc.Expression) -> pa.RecordBatch:
    """Return the records that satisfy a predicate, in their order."""
    from pyarrow import acero  # loaded late: importing lakebed stays quick

    source = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", source),
            acero.Declaration("filter", acero.FilterNodeOptions(where)),
        ]
    )
    try:
        batches: Any = plan.to_table(use_threads=False).combine_chunks().to_batches()
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            "the predicate cannot be evaluated for a record", where=where, reason=error
        ) from error
    return batches[0] if batches else batch.slice(0, 0)


def _choose(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names], metadata=schema.metadata)


def _any(offsets: Offsets, first: int, last: int) -> bool:
    """Return whether one of the sorted offsets lies from `first` to `last`."""
    position = int(np.searchsorted(offsets, first))
    return position < len(offsets) and int(offsets[position]) <= last
