"""Which records of a partition outlive a compaction by key: the last of each key.

Records without a key always stay. A tombstone that is the last of its key stays as long as readers
may still need to learn of it, and then goes too.

Memory is the distinct keys and 12 bytes for each (its place in the key buffer, its last offset),
as much again of records that are not joined with them yet, twice that while they are joined, and 8
bytes for each record without a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed import limits

Offsets = npt.NDArray[np.int64]

_FOLD_ROWS_MIN: Final = 1_000_000
_FOLD_BYTES_MIN: Final = 64 * limits.MIB
"""Records that gather before they are joined with the keys known: so many, or of so many bytes.

Joining when as many are new as are known makes its cost linear in the number of records.
"""
_NARROW_BYTES: Final = (1 << 31) - 1
"""Keys that have more bytes together need 64-bit places."""


class LastOfKeys:
    """The last record of each key among those added so far, and each record without one."""

    def __init__(self, tombstone_before_us: int) -> None:
        self._oldest_us = tombstone_before_us
        self._known: Any = _EMPTY
        self._fresh: list[Any] = []
        self._fresh_rows = self._fresh_bytes = 0
        self._keyless: list[Offsets] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records, in the order of their offsets.

        Columns are `offset` and `key`, and where tombstones may be `timestamp` (microseconds) and
        `tombstone` (whether the value is null).
        """
        if batch["key"].null_count:
            self._keyless.append(_numbers(batch.filter(pc.is_null(batch["key"]))["offset"]))
            batch = batch.filter(pc.is_valid(batch["key"]))
        marked = pa.Table.from_batches([_add_marks(batch, self._oldest_us)])
        self._fresh.append(marked)
        self._fresh_rows += marked.num_rows
        self._fresh_bytes += marked.nbytes
        if self._fresh_rows >= max(
            _FOLD_ROWS_MIN, self._known.num_rows
        ) or self._fresh_bytes >= max(_FOLD_BYTES_MIN, self._known.nbytes):
            self._fold()

    @property
    def size_bytes(self) -> int:
        """Return how much memory is held, without what joining takes."""
        held = [self._known, *self._keyless]
        return self._fresh_bytes + sum(int(table.nbytes) for table in held)

    def take(self) -> tuple[pa.Table, Offsets]:
        """Return `key` and `mark` of each key's last record, and offsets without a key; reset.

        The mark is twice the offset, and one more for a tombstone that goes.
        """
        self._fold()
        last_records, keyless = self._known, np.concatenate([_NO_OFFSETS, *self._keyless])
        self._known, self._keyless = _EMPTY, []
        return last_records, keyless

    def _fold(self) -> None:
        if self._fresh:
            self._known = _last_of_each_key(self._known, *self._fresh)
            self._fresh, self._fresh_rows, self._fresh_bytes = [], 0, 0


def with_tombstones(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with what is asked of a value only: whether there is one."""
    names = ["offset", "timestamp", "key"]
    columns = [*(batch.column(name) for name in names), batch.column("value").is_null()]
    return pa.RecordBatch.from_arrays(columns, [*names, "tombstone"])


def surviving(batches: Iterable[pa.RecordBatch], tombstone_before_us: int) -> Offsets:
    """Return the offsets of the records that stay, sorted. Batches are as for `LastOfKeys`."""
    held = LastOfKeys(tombstone_before_us)
    for batch in batches:
        held.add(batch)
    last, keyless = held.take()
    marks = _numbers(last["mark"])
    return np.sort(np.concatenate([marks[marks & 1 == 0] >> 1, keyless]))


def keep(batch: pa.RecordBatch, survivors: Offsets) -> pa.RecordBatch:
    """Return the rows of a batch whose `offset` is among the survivors, in their order."""
    offsets = _numbers(batch["offset"])
    places = np.searchsorted(survivors, offsets)
    survives = places < len(survivors)
    survives[survives] = survivors[places[survives]] == offsets[survives]
    return batch.filter(pa.array(survives))


# By `nulls`, because `array` would import pandas, in every process that imports this.
_MARK: Final = pa.int64()
_EMPTY: Final = pa.table({"key": pa.nulls(0, pa.binary()), "mark": pa.nulls(0, _MARK)})
_NO_OFFSETS: Final = np.zeros(0, np.int64)


def _add_marks(batch: pa.RecordBatch, oldest_us: int) -> pa.RecordBatch:
    """Return key and mark of records that have a key.

    The greatest mark of a key is that of its last record, and says in one number whether it goes.
    """
    marks = _numbers(batch["offset"]) * 2
    if "tombstone" in batch.schema.names:
        tombstone = batch["tombstone"].to_numpy(zero_copy_only=False).astype(bool)
        marks += tombstone & (_numbers(batch["timestamp"]) < oldest_us)
    return pa.record_batch({"key": batch["key"], "mark": pa.array(marks, pa.int64())})


def count_repeated_keys(columns: Sequence[pa.Array]) -> int:
    """Count keys that are among those before them; keys that are null do not count."""
    keys = pa.table({"key": _same_kind([column.drop_null() for column in columns])})
    distinct = keys.group_by("key", use_threads=False).aggregate([])
    return int(keys.num_rows - distinct.num_rows)


def _last_of_each_key(*tables: pa.Table) -> pa.Table:
    chunks = [chunk for source in tables for chunk in source["key"].chunks]
    marks = pa.chunked_array([chunk for source in tables for chunk in source["mark"].chunks], _MARK)
    table = pa.table({"key": _same_kind(chunks), "mark": marks})
    grouped = table.group_by("key", use_threads=False).aggregate([("mark", "max")])
    return pa.table({"key": grouped["key"], "mark": grouped["mark_max"]})


def _same_kind(keys: Sequence[pa.Array]) -> pa.ChunkedArray:
    """Put keys together.

    Arrow groups by keys with 32-bit places ten times as fast as by those with 64-bit ones, so the
    latter are for keys that have too many bytes together.
    """
    wide = sum(column.nbytes for column in keys) > _NARROW_BYTES
    kind = pa.large_binary() if wide else pa.binary()
    return pa.chunked_array([column.cast(kind) for column in keys], kind)


def _numbers(column: Any) -> Offsets:
    """Return a column of integers or timestamps as 64-bit numbers."""
    whole = column.cast(pa.int64())
    numbers: Offsets = np.asarray(whole, dtype=np.int64)
    return numbers
