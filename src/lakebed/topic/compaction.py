"""Which records of a partition outlive a compaction by key: the last of each key.

Records without a key always stay. A tombstone that is the last of its key stays as long as readers
may still need to learn of it, and then goes too.

Memory is the distinct keys and 16 bytes for each (its place in the key buffer, its last offset),
twice while two parts are joined, and 8 bytes for each record without a key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Offsets = npt.NDArray[np.int64]

_FOLD_ROWS_MIN: Final = 1_000_000
"""Keys that gather before they are joined with those known.

Joining when as many are new as are known makes its cost linear in the number of records.
"""


def surviving(
    batches: Iterable[pa.RecordBatch], *, now_us: int, tombstone_retention_ms: int
) -> Offsets:
    """Give the offsets of the records that stay, sorted.

    Batches have the columns `offset`, `timestamp` (microseconds), `key` and `tombstone` (whether
    the value is null).
    """
    oldest_us = now_us - tombstone_retention_ms * 1000
    known: Any = _EMPTY
    fresh: list[Any] = []
    keyless: list[Offsets] = []
    fresh_rows = 0
    for batch in batches:
        keyless.append(_numbers(batch.filter(pc.is_null(batch["key"]))["offset"]))
        last = _last_of_each_key(pa.Table.from_batches([_marked(batch, oldest_us)]))
        fresh.append(last)
        fresh_rows += last.num_rows
        if fresh_rows >= max(_FOLD_ROWS_MIN, known.num_rows):
            known = _last_of_each_key(pa.concat_tables([known, *fresh]))
            fresh, fresh_rows = [], 0
    marks = _numbers(_last_of_each_key(pa.concat_tables([known, *fresh]))["mark"])
    kept = marks[marks & 1 == 0] >> 1
    return np.sort(np.concatenate([kept, *keyless]))


def keep(batch: pa.RecordBatch, survivors: Offsets) -> pa.RecordBatch:
    """Give the rows of a batch whose `offset` is among the survivors, in their order."""
    offsets = _numbers(batch["offset"])
    places = np.searchsorted(survivors, offsets)
    found = places < len(survivors)
    found[found] = survivors[places[found]] == offsets[found]
    return batch.filter(pa.array(found))


# By `nulls`, because `array` would import pandas, in every process that imports this.
_EMPTY: Final = pa.table({"key": pa.nulls(0, pa.large_binary()), "mark": pa.nulls(0, pa.int64())})


def _marked(batch: pa.RecordBatch, oldest_us: int) -> pa.RecordBatch:
    """Give key and mark of the records with a key.

    The mark is twice the offset, and one more for a tombstone that may go: the greatest mark of a
    key is that of its last record, and says both in one number.
    """
    keyed = batch.filter(pc.is_valid(batch["key"]))
    tombstone = keyed["tombstone"].to_numpy(zero_copy_only=False).astype(bool)
    goes = tombstone & (_numbers(keyed["timestamp"]) < oldest_us)
    marks = _numbers(keyed["offset"]) * 2 + goes
    # Keys of a whole partition may have more bytes together than 32-bit places can count.
    keys = keyed["key"].cast(pa.large_binary())
    return pa.record_batch({"key": keys, "mark": pa.array(marks, pa.int64())})


def _last_of_each_key(table: pa.Table) -> pa.Table:
    grouped = table.group_by("key", use_threads=False).aggregate([("mark", "max")])
    return pa.table({"key": grouped["key"], "mark": grouped["mark_max"]})


def _numbers(column: Any) -> Offsets:
    """Give a column of whole numbers or timestamps as 64-bit numbers."""
    whole = column.cast(pa.int64())
    numbers: Offsets = np.asarray(whole, dtype=np.int64)
    return numbers
