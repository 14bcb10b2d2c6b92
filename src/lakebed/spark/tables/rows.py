"""Rows of a table by their keys: the latest change of each key, and where old rows are.

Everything works on whole Arrow tables. Keys are integers, texts, bytes, times or decimals, and
never null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Numbers = Any
"""An array of row numbers (`numpy.ndarray`)."""


def key_codes(rows: pa.Table, key: Sequence[str]) -> Numbers:
    """Return a number for the key of each row, equal exactly for equal keys."""
    codes: Any = None
    for name in key:
        encoded = rows.column(name).combine_chunks().dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if codes is None:
            codes = numbers
        else:
            _, codes = np.unique(
                codes * (len(encoded.dictionary) + 1) + numbers, return_inverse=True
            )
    return codes


class RowOrder(NamedTuple):
    """Which rows of a key are later: by these columns, the most significant first."""

    columns: tuple[str, ...]
    moved: tuple[str, ...] = ()
    """The order for keys whose rows differ in the first of `columns`: those that have moved to
    another partition, whose offsets cannot be compared.
    """


def in_order(rows: pa.Table, codes: Numbers, order: RowOrder) -> Numbers:
    """Return row numbers key by key, the rows of a key in their order, the latest one last."""
    sequence = _sort_indices(rows, codes, order.columns)
    if not order.moved or len(codes) < 2:
        return sequence
    first = rows.column(order.columns[0]).combine_chunks().dictionary_encode()
    parts = first.indices.fill_null(-1).to_numpy()[sequence]  # an old version has no partition
    sorted_codes = codes[sequence]
    moved = (parts[1:] != parts[:-1]) & (sorted_codes[1:] == sorted_codes[:-1]) & (parts[:-1] >= 0)
    if not moved.any():
        return sequence
    chosen = np.isin(sorted_codes, sorted_codes[1:][moved])
    return np.where(chosen, _sort_indices(rows, codes, order.moved), sequence)


def _sort_indices(rows: pa.Table, codes: Numbers, columns: Sequence[str]) -> Numbers:
    """Return row numbers sorted by key and these columns; rows without an order come first."""
    values = [rows.column(name).combine_chunks() for name in columns]
    ordered = values[0].is_valid().cast(pa.int8())
    ranked = pa.table([pa.array(codes), ordered, *values], names=["key", "ordered", *columns])
    by = [(name, "ascending") for name in ranked.column_names]
    return pc.sort_indices(ranked, sort_keys=by).to_numpy()


def ends_key(codes: Numbers) -> Numbers:
    """Return whether each row is the last of its key, of rows that are sorted by key."""
    return np.append(codes[1:] != codes[:-1], True) if len(codes) else np.zeros(0, bool)


def latest(rows: pa.Table, key: Sequence[str], order: RowOrder) -> pa.Table:
    """Return the latest row of each key."""
    codes = key_codes(rows, key)
    if len(codes) and codes.max() + 1 == len(codes):
        return rows  # every key once
    sequence = in_order(rows, codes, order)
    return rows.take(pa.array(sequence[ends_key(codes[sequence])]))


def matching_rows(rows: pa.Table, wanted: pa.Table, key: Sequence[str]) -> Numbers:
    """Return the numbers of the rows that have one of the keys of `wanted`, ascending."""
    if len(key) == 1:
        values = wanted.column(key[0]).combine_chunks()
        mask = pc.is_in(rows.column(key[0]), value_set=values)
        return np.flatnonzero(mask.combine_chunks().to_numpy(zero_copy_only=False))
    numbered = rows.select(list(key)).append_column("_row", pa.array(np.arange(len(rows))))
    joined = numbered.join(wanted.select(list(key)), list(key), join_type="left semi")
    return np.sort(joined.column("_row").to_numpy())


def without(rows: pa.Table, numbers: Numbers) -> pa.Table:
    """Return the rows except those with these numbers."""
    if not len(numbers):
        return rows
    mask = np.ones(len(rows), bool)
    mask[numbers] = False
    return rows.filter(pa.array(mask))


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with exactly the columns of a schema; missing ones are null."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def sort_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows in the order of their keys, so that readers can skip others."""
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in key]))
