"""Scans an open segment: row groups, or parts of large ones, become pieces to be decoded ahead.

A scan neither uses nor fills the cache, and gives back the memory of each row group of the map as
soon as it is decoded: what it holds does not grow with what it reads.

A row group of small records is one piece. One of large records is decoded in parts, one after the
other: several of them whole would take more memory than a scan may, and fresh memory for each costs
more time than a second thread saves.

A segment that was fetched from the object store and is found damaged here is fetched again, once,
and the scan continues with the new copy.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from lakebed import limits
from lakebed.errors import CorruptionError
from lakebed.lake.columns import column_numbers
from lakebed.lake.open_segment import OpenSegment
from lakebed.lake.prefetch import PendingDecode
from lakebed.lake.segment_index import RowGroup

WHOLE_BYTES_MAX: Final = 16 * limits.MIB
"""Row groups up to this size are decoded whole."""

PART_BYTES: Final = 8 * limits.MIB
"""About the size of the parts of larger ones."""

Shape = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Makes of decoded records what the scan gives of them, in the thread that decoded them."""

Reopen = Callable[[], OpenSegment | None]
"""Opens another copy of a segment that is damaged; gives None if there is none."""


def between(opened: OpenSegment, start: int, until: int) -> list[int]:
    """Return the row groups that have an offset from `start` up to, not including, `until`."""
    return [
        row_group
        for row_group, group in enumerate(opened.index.row_groups)
        if group.last >= start and group.first < until
    ]


def pieces(
    opened: OpenSegment,
    numbers: Sequence[int],
    names: Sequence[str],
    *,
    start: int,
    until: int,
    shape: Shape,
    reopen: Reopen,
) -> Iterator[PendingDecode]:
    """Return row groups in pieces, cut to the offsets from `start` up to `until`, exclusive."""
    source = _Source(opened, reopen)
    for row_group in numbers:
        yield from _of_row_group(source, row_group, tuple(names), start, until, shape)


def _of_row_group(
    source: _Source, row_group: int, names: tuple[str, ...], start: int, until: int, shape: Shape
) -> Iterator[PendingDecode]:
    opened = source.opened
    group = opened.index.row_groups[row_group]
    cut = group.first < start or group.last >= until
    # Counting rows gives the offsets, unless a compaction has left gaps between them.
    read = ("offset", *names) if cut and not group.dense and "offset" not in names else names

    def cut_and_shape(batch: pa.RecordBatch, row: int) -> pa.RecordBatch:
        if cut:
            batch = _between(batch, group, row, start, until)
        return shape(batch if read is names else batch.select(list(names)))

    size = opened.count_decoded_bytes(row_group, read)
    if size <= WHOLE_BYTES_MAX:
        yield PendingDecode(
            size,
            lambda: cut_and_shape(source.use(lambda segment: _whole(segment, row_group, read)), 0),
        )
        return
    parts = _RowParts(source, row_group, read, max(1, group.rows * PART_BYTES // size))
    for row in range(0, group.rows, parts.rows):
        yield PendingDecode(PART_BYTES, lambda row=row: cut_and_shape(parts.at(row), row))  # type: ignore[misc]


def _whole(opened: OpenSegment, row_group: int, names: Sequence[str]) -> pa.RecordBatch:
    batch = opened.batch(opened.columns(row_group, names, threads=False))
    opened.release(row_group)
    return batch


def _between(
    batch: pa.RecordBatch, group: RowGroup, row: int, start: int, until: int
) -> pa.RecordBatch:
    """Cut rows of a row group, from number `row` on, to some offsets."""
    if group.dense:
        offsets = np.arange(group.first + row, group.first + row + batch.num_rows)
    else:
        offsets = column_numbers(batch, "offset")
    first, last = np.searchsorted(offsets, (start, until))
    return batch.slice(int(first), int(last - first))


class _Source:
    """A segment that is scanned, from another copy as soon as one is found damaged. Any thread."""

    def __init__(self, opened: OpenSegment, reopen: Reopen) -> None:
        self.opened = opened
        """The copy to be read."""
        self._reopen: Reopen | None = reopen
        self._guard = threading.Lock()

    def use(self, decode: Callable[[OpenSegment], pa.RecordBatch]) -> pa.RecordBatch:
        """Decode something, again if there is another copy than the damaged one."""
        opened = self.opened
        try:
            return decode(opened)
        except CorruptionError:
            if not self._replace_copy(opened):
                raise
        return decode(self.opened)

    def _replace_copy(self, damaged: OpenSegment) -> bool:
        """Return whether there is another copy now; it is looked for once."""
        with self._guard:
            reopen, self._reopen = self._reopen, None
            other_copy = None if reopen is None else reopen()
            if other_copy is not None:
                self.opened = other_copy
            return self.opened is not damaged


class _RowParts:
    """A row group that is decoded part by part, in order. Any thread may ask for any part."""

    def __init__(self, source: _Source, row_group: int, names: tuple[str, ...], rows: int) -> None:
        self.rows: Final = rows
        """How many rows a part has; the last one may have fewer."""
        self._guard = threading.Lock()
        self._source = source
        self._columns = (row_group, names, rows)
        self._decoding: tuple[OpenSegment, Iterator[pa.RecordBatch]] | None = None
        """The copy that is decoded, and the parts that are still to come; None after a failure."""
        self._row = 0
        """The first row that is not decoded yet."""
        self._waiting: dict[int, pa.RecordBatch] = {}
        """Parts that were decoded on the way to one behind them."""

    def at(self, row: int) -> pa.RecordBatch:
        """Return the part that begins with a row, once."""
        with self._guard:
            while row not in self._waiting:
                batch = self._source.use(self._next)
                self._waiting[self._row] = batch
                self._row += batch.num_rows
            return self._waiting.pop(row)

    def _next(self, opened: OpenSegment) -> pa.RecordBatch:
        """Decode the next part; after a failure, everything before it too."""
        decoding, self._decoding = self._decoding, None
        if decoding is None or decoding[0] is not opened:
            parts = opened.slices(*self._columns)
            decoding = (opened, itertools.islice(parts, self._row // self.rows, None))
        batch = next(decoding[1])
        self._decoding = decoding
        return batch
