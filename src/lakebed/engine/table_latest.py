"""The current record of each key, found in two passes.

The first pass reads keys, offsets and times, and keeps the last of each key. The second reads only
the row groups that hold one of these, so that values which were replaced are not read, unless they
stand beside one that was not. Memory is the distinct keys, about twice while parts are joined, and
the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Offsets = npt.NDArray[np.int64]

KEY_COLUMNS: Final = ("offset", "timestamp", "key")
"""What the first pass needs."""

_FOLD_ROWS_MIN: Final = 1_000_000
"""Keys that gather before they are joined with those known, which keeps the work linear."""

_SCHEMA: Final = pa.schema(
    [("offset", pa.int64()), ("timestamp", pa.int64()), ("key", pa.large_binary())]
)


def last_of_keys(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return offset, time and key of the last record of each key of a partition, by offset.

    Batches have `KEY_COLUMNS`, offsets ascending. Records without a key are left out.
    """
    folded: Any = _SCHEMA.empty_table()
    fresh: list[Any] = []
    rows = 0
    for batch in batches:
        last = _last(_with_keys(batch))
        fresh.append(last)
        rows += last.num_rows
        if rows >= max(_FOLD_ROWS_MIN, folded.num_rows):
            folded, fresh, rows = _last(pa.concat_tables([folded, *fresh])), [], 0
    return _last(pa.concat_tables([folded, *fresh])) if fresh else folded


def current(last: Mapping[int, pa.Table]) -> dict[int, Offsets]:
    """Return by partition the sorted offsets of the records that are the last of their keys.

    Of partitions that have a key in common, the one whose record is of the latest time has the
    current one, of several with that time the highest partition.
    """
    tables = {partition: table for partition, table in last.items() if table.num_rows}
    if len(tables) > 1:
        numbered = [
            table.append_column("partition", pa.array(np.full(table.num_rows, partition, np.int32)))
            for partition, table in tables.items()
        ]
        order = [(name, "ascending") for name in ("timestamp", "partition")]
        newest = _last(pa.concat_tables(numbered).sort_by(order))
        partitions = np.asarray(newest.column("partition"))
        tables = {
            partition: newest.filter(pa.array(partitions == partition)) for partition in tables
        }
    return {
        partition: np.sort(np.asarray(table.column("offset")))
        for partition, table in tables.items()
    }


def _with_keys(batch: pa.RecordBatch) -> pa.Table:
    table = pa.Table.from_batches([batch]).select(list(KEY_COLUMNS))
    if batch.column("key").null_count:
        table = table.filter(pc.is_valid(table.column("key")))
    # Keys of a whole topic may have more bytes together than 32-bit places can count.
    return table.cast(_SCHEMA)


def _last(table: pa.Table) -> pa.Table:
    """Keep the last row of each key, in their order.

    Numbering the keys by a dictionary takes a quarter of the time of grouping by them.
    """
    table = table.combine_chunks()
    keys = table.column("key").combine_chunks()
    if not len(keys):
        return table
    numbered = keys.dictionary_encode()
    last = np.empty(len(numbered.dictionary), np.int64)
    last[np.asarray(numbered.indices)] = np.arange(len(keys))  # the last of equal ones stays
    if len(last) == len(keys):
        return table
    return table.take(pa.array(np.sort(last)))
