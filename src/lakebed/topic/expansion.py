"""What shared values become when they are written out, counted before any memory is taken for it.

Some layouts are small and stand for much: a dictionary or a view refers to the same bytes from many
rows, a column of type null or of zero-width values has no bytes at all. Converting such a column to
the stored layout takes as much memory as its rows say, and Arrow adds up the sizes of views without
looking whether they are negative. `ExpansionBudget` bounds the first, `has_negative_view` finds the
second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lakebed.errors import EntryTooLargeError, RecordTooLargeError

_VIEW_BYTES: Final = 16
"""A view: four bytes of size, then the value itself or where it is."""
_OFFSET_BYTES: Final = 4


class ExpansionBudget:
    """How many bytes the converted columns of one batch may still take."""

    def __init__(self, record_bytes_max: int, batch_bytes_max: int) -> None:
        self._record_bytes_max = record_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._left = batch_bytes_max

    def take_dictionary(self, indices: pa.Array, values: pa.Array) -> None:
        """Take the bytes of a dictionary's values, each as often as an index refers to it."""
        if types.is_binary(values.type) or types.is_string(values.type):
            lengths = pc.take(pc.binary_length(values), indices)
            total = pc.sum(lengths.cast(pa.int64())).as_py() or 0
            self._take(total + _OFFSET_BYTES * len(indices), lambda: pc.max(lengths).as_py())
        else:
            self._take(_null_bytes(values.type, len(indices)))

    def take_nulls(self, kind: pa.DataType, rows: int) -> None:
        """Take the bytes of so many nulls of a type."""
        self._take(_null_bytes(kind, rows))

    def take_cast(self, array: pa.Array) -> None:
        """Take the bytes of the views and fixed-size values within an array."""
        for leaf in _leaves(array, whole=False):
            offsets = _OFFSET_BYTES * len(leaf)
            if _is_view(leaf.type):
                sizes = _view_sizes(leaf)
                if sizes.size:
                    self._take(int(sizes.sum(dtype=np.int64)) + offsets, sizes.max)
            elif types.is_fixed_size_binary(leaf.type):
                self._take(leaf.type.byte_width * len(leaf) + offsets)

    def _take(self, size: int, longest: Callable[[], Any] | None = None) -> None:
        self._left -= size
        if self._left >= 0:
            return
        most = 0 if longest is None else int(longest())
        if most > self._record_bytes_max:
            raise RecordTooLargeError(
                "a record is too large", bytes=most, bytes_max=self._record_bytes_max
            )
        raise EntryTooLargeError(
            "the batch does not fit into one entry: split it",
            bytes=self._batch_bytes_max - self._left,
            bytes_max=self._batch_bytes_max,
        )


def has_negative_view(array: pa.Array) -> bool:
    """Return True if any view within an array has a negative size, null slots included.

    Arrow's own validation does not look at null slots, and its cast reserves too little memory.
    """
    for leaf in _leaves(array, whole=True):
        if _is_view(leaf.type):
            sizes = _view_sizes(leaf)
            if sizes.size and sizes.min() < 0:
                return True
    return False


def has_views(kind: pa.DataType) -> bool:
    """Return True if a type is a view, or holds one."""
    if types.is_dictionary(kind):
        return has_views(kind.value_type)
    return _is_view(kind) or any(
        has_views(kind.field(index).type) for index in range(kind.num_fields)
    )


def _leaves(array: pa.Array, *, whole: bool) -> Iterator[pa.Array]:
    """List the arrays below structs, lists and maps: all values of a list, or those in use."""
    kind = array.type
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaves(array.field(index), whole=whole)
    elif types.is_map(kind):
        for child in (array.keys, array.items):
            yield from _leaves(child if whole else _cut_to_used(array, child), whole=whole)
    elif types.is_list(kind) or types.is_large_list(kind):
        child = array.values
        yield from _leaves(child if whole else _cut_to_used(array, child), whole=whole)
    elif types.is_dictionary(kind):
        yield from _leaves(array.dictionary, whole=whole)
    else:
        yield array


def _cut_to_used(array: pa.Array, child: pa.Array) -> pa.Array:
    if len(array) == 0:
        return child.slice(0, 0)
    first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return child.slice(first, last - first)


def _is_view(kind: pa.DataType) -> bool:
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _view_sizes(array: pa.Array) -> npt.NDArray[np.int32]:
    """Return the size of each view, of null slots too."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(0, np.int32)
    return np.frombuffer(buffer, np.int32, 4 * len(array), _VIEW_BYTES * array.offset)[::4]


def _null_bytes(kind: pa.DataType, rows: int) -> int:
    """Return about how many bytes so many nulls of a stored type take."""
    if types.is_struct(kind):
        return rows // 8 + sum(_null_bytes(field.type, rows) for field in kind)
    if types.is_nested(kind) or types.is_string(kind) or types.is_binary(kind):
        return _OFFSET_BYTES * rows
    return int(rows * kind.bit_width // 8)
