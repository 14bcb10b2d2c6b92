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


class LastOfKeys:
    """The last record of each key among those added so far, and each record without one."""

    def __init__(self, tombstone_before_us: int) -> None:
        self._oldest_us = tombstone_before_us
        self._known: Any = _EMPTY
        self._fresh: list[Any] = []
        self._fresh_rows = 0
        self._keyless: list[Offsets] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records, in the order of their offsets.

        Columns are `offset` and `key`, and where tombstones may be `timestamp` (microseconds) and
        `tombstone` (whether the value is null).
        """
        if batch["key"].null_count:
            self._keyless.append(_numbers(batch.filter(pc.is_null(batch["key"]))["offset"]))
            batch = batch.filter(pc.is_valid(batch["key"]))
        last = _last_of_each_key(pa.Table.from_batches([_marked(batch, self._oldest_us)]))
        self._fresh.append(last)
        self._fresh_rows += last.num_rows
        if self._fresh_rows >= max(_FOLD_ROWS_MIN, self._known.num_rows):
            self._fold()

    @property
    def size_bytes(self) -> int:
        """Give how much memory is held, without what joining takes."""
        parts = [self._known, *self._fresh, *self._keyless]
        return sum(each.nbytes for each in parts)

    def take(self) -> tuple[pa.Table, Offsets]:
        """Give `key` and `mark` of each key's last record, and offsets without a key; begin anew.

        The mark is twice the offset, and one more for a tombstone that goes.
        """
        self._fold()
        found, keyless = self._known, np.concatenate([_NO_OFFSETS, *self._keyless])
        self._known, self._keyless = _EMPTY, []
        return found, keyless

    def _fold(self) -> None:
        if self._fresh:
            self._known = _last_of_each_key(pa.concat_tables([self._known, *self._fresh]))
            self._fresh, self._fresh_rows = [], 0


def with_tombstones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give records with what is asked of a value only: whether there is one."""
    names = ["offset", "timestamp", "key"]
    columns = [*(batch.column(name) for name in names), batch.column("value").is_null()]
    return pa.RecordBatch.from_arrays(columns, [*names, "tombstone"])


def surviving(batches: Iterable[pa.RecordBatch], tombstone_before_us: int) -> Offsets:
    """Give the offsets of the records that stay, sorted. Batches are as for `LastOfKeys`."""
    held = LastOfKeys(tombstone_before_us)
    for batch in batches:
        held.add(batch)
    last, keyless = held.take()
    marks = _numbers(last["mark"])
    return np.sort(np.concatenate([marks[marks & 1 == 0] >> 1, keyless]))


def keep(batch: pa.RecordBatch, survivors: Offsets) -> pa.RecordBatch:
    """Give the rows of a batch whose `offset` is among the survivors, in their order."""
    offsets = _numbers(batch["offset"])
    places = np.searchsorted(survivors, offsets)
    found = places < len(survivors)
    found[found] = survivors[places[found]] == offsets[found]
    return batch.filter(pa.array(found))


# By `nulls`, because `array` would import pandas, in every process that imports this.
_EMPTY: Final = pa.table({"key": pa.nulls(0, pa.large_binary()), "mark": pa.nulls(0, pa.int64())})
_NO_OFFSETS: Final = np.zeros(0, np.int64)


def _marked(batch: pa.RecordBatch, oldest_us: int) -> pa.RecordBatch:
    """Give key and mark of records that have a key.

    The greatest mark of a key is that of its last record, and says in one number whether it goes.
    """
    marks = _numbers(batch["offset"]) * 2
    if "tombstone" in batch.schema.names:
        tombstone = batch["tombstone"].to_numpy(zero_copy_only=False).astype(bool)
        marks += tombstone & (_numbers(batch["timestamp"]) < oldest_us)
    # Keys of a whole partition may have more bytes together than 32-bit places can count.
    keys = batch["key"].cast(pa.large_binary())
    return pa.record_batch({"key": keys, "mark": pa.array(marks, pa.int64())})


def _last_of_each_key(table: pa.Table) -> pa.Table:
    grouped = table.group_by("key", use_threads=False).aggregate([("mark", "max")])
    return pa.table({"key": grouped["key"], "mark": grouped["mark_max"]})


def _numbers(column: Any) -> Offsets:
    """Give a column of whole numbers or timestamps as 64-bit numbers."""
    whole = column.cast(pa.int64())
    numbers: Offsets = np.asarray(whole, dtype=np.int64)
    return numbers
