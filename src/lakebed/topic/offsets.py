"""Lists and maps of length zero, whose offsets may be anything: they get offsets that can be read.

Arrow lets such an array have no offset, or any, and its validation does not look at it; `nbytes`
reads it all the same. Once stored, an array like that could end every process that reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types


def own_offsets(array: pa.Array) -> pa.Array:
    """Return the array, with new lists and maps in place of those that lack an offset."""
    if _has_lists(array.type) and any(map(_lacks_offset, _lists(array))):
        return _with_offsets(array)
    return array


@functools.lru_cache(maxsize=1024)
def _has_lists(kind: pa.DataType) -> bool:
    if types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        return True
    return types.is_struct(kind) and any(_has_lists(field.type) for field in kind)


def _lists(array: pa.Array) -> Iterator[pa.Array]:
    """List the lists and maps within an array."""
    kind = array.type
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _lists(array.field(index))
    elif types.is_map(kind):
        yield array
        yield from _lists(array.keys)
        yield from _lists(array.items)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield array
        yield from _lists(array.values)


def _lacks_offset(listed: pa.Array) -> bool:
    """Return True if a list or map of length zero does not have the one offset 0."""
    if len(listed):
        return False
    offsets = listed.buffers()[1]
    width = 8 if types.is_large_list(listed.type) else 4
    return offsets is None or offsets.size < width or any(offsets[:width].to_pybytes())


def _with_offsets(array: pa.Array) -> pa.Array:
    """Return the same array, with new ones in place of lists and maps of length zero."""
    kind = array.type
    if types.is_struct(kind):
        children = [_with_offsets(array.field(index)) for index in range(kind.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        entries = [_with_offsets(array.keys), _with_offsets(array.items)]
        return _with_values(array, pa.StructArray.from_arrays(entries, fields=fields))
    if types.is_list(kind) or types.is_large_list(kind):
        return _with_values(array, _with_offsets(array.values))
    return array


def _with_values(array: pa.Array, values: pa.Array) -> pa.Array:
    if len(array) == 0:
        return pa.nulls(0, array.type)
    return pa.Array.from_buffers(
        array.type, len(array), array.buffers()[:2], array.null_count, array.offset, [values]
    )
