"""Scans an open segment row group by row group: each becomes a piece that is decoded ahead.

A scan neither uses nor fills the cache, and gives back the memory of each row group of the map as
soon as it is decoded: what it holds does not grow with what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from lakebed.lake.ahead import Piece
from lakebed.lake.columns import column_numbers
from lakebed.lake.opened import OpenSegment

Shape = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Makes of a row group's records what the scan gives of them, in the thread that decoded them."""


def between(opened: OpenSegment, start: int, until: int) -> list[int]:
    """Give the row groups that have an offset from `start` up to, not including, `until`."""
    return [
        number
        for number, group in enumerate(opened.index.row_groups)
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
) -> Iterator[Piece]:
    """Give row groups as pieces, cut to the offsets from `start` up to, not including, `until`."""
    for number in numbers:
        yield _piece(opened, number, tuple(names), start, until, shape)


def _piece(
    opened: OpenSegment, number: int, names: tuple[str, ...], start: int, until: int, shape: Shape
) -> Piece:
    group = opened.index.row_groups[number]
    cut = group.first < start or group.last >= until
    # Counting rows gives the offsets, unless a compaction has left gaps between them.
    read = ("offset", *names) if cut and not group.dense and "offset" not in names else names

    def decode() -> pa.RecordBatch:
        batch = opened.batch(opened.columns(number, read, threads=False))
        opened.release(number)
        if cut:
            offsets = (
                np.arange(group.first, group.last + 1)
                if group.dense
                else column_numbers(batch, "offset")
            )
            first, last = np.searchsorted(offsets, (start, until))
            batch = batch.slice(int(first), int(last - first))
        return shape(batch if read is names else batch.select(list(names)))

    return Piece(opened.decoded_bytes(number, read), decode)
