"""How many bytes each record of a batch has, from the offsets that Arrow keeps anyway.

A record's bytes are those of its key, its headers' names and values, and its value: text and bytes
by their length, everything else by its width. What Arrow adds (offsets, null bits) does not count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

_Numbers = npt.NDArray[np.int64]


def bytes_bound(array: pa.Array) -> int:
    """Return a number of bytes that all rows together do not exceed; quick, whatever the length."""
    return sum(buffer.size for buffer in array.buffers() if buffer is not None)


def record_bytes(columns: list[pa.Array]) -> _Numbers:
    """Return the bytes of each record, whose parts are in these columns."""
    total: _Numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if column.null_count < len(column):
            total += np.diff(_positions(column))
    return total


def counts(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return how many elements each list or map has."""
    return np.diff(_offsets(array))


def _positions(array: pa.Array) -> _Numbers | npt.NDArray[np.int32]:
    """Return for each row how many bytes are before it, and at last those of all."""
    kind = array.type
    if types.is_string(kind) or types.is_binary(kind):
        return _offsets(array)
    if types.is_struct(kind):
        return _sum([array.field(index) for index in range(kind.num_fields)], len(array))
    if types.is_map(kind):
        return _sum([array.keys, array.items], len(array.keys))[_offsets(array)]
    if types.is_list(kind):
        return _sum([array.values], len(array.values))[_offsets(array)]
    width: int = max(1, kind.bit_width // 8)
    return np.arange(len(array) + 1, dtype=np.int64) * width


def _sum(children: list[pa.Array], rows: int) -> _Numbers:
    total: _Numbers = np.zeros(rows + 1, np.int64)
    for child in children:
        total += _positions(child)
    return total


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    buffer: Any = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int32)
    return np.frombuffer(buffer, np.int32, len(array) + 1, 4 * array.offset)
