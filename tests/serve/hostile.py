"""Batches that no well-behaved program sends: Arrow's own validation lets most of them pass."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

MAP = pa.map_(pa.string(), pa.binary())
NESTED = pa.schema(
    [
        ("name", pa.string()),
        ("words", pa.list_(pa.string())),
        ("tags", MAP),
        ("lists", pa.list_(MAP)),
    ]
)
"""The schema of a typed topic that takes each of these shapes."""
GARBAGE = struct.pack("<i", 0x7FFFFFF0)


def views(
    kind: pa.DataType, length: int = 40, rows: int = 2000, null_size: int = -79_000
) -> pa.Array:
    """Return an array whose last slot is null and has a view with a size of the caller's choice."""
    data = b"A" * length * rows
    slots = b"".join(
        struct.pack("<i4sii", length, b"AAAA", 0, length * row) for row in range(rows)
    ) + struct.pack("<i4sii", null_size, bytes(4), 0, 0)
    valid = ((1 << rows) - 1).to_bytes((rows + 8) // 8, "little")
    return _array(kind, rows + 1, [valid, slots, data])


def same_view(kind: pa.DataType, length: int, rows: int) -> pa.Array:
    """Return an array whose rows are all one view of the same bytes."""
    data = b"A" * length
    return _array(kind, rows, [None, struct.pack("<i4sii", length, b"AAAA", 0, 0) * rows, data])


def same_word(length: int, rows: int, kind: pa.DataType) -> pa.DictionaryArray:
    """Return a dictionary of one long value, to which every row refers."""
    indices = _array(pa.int8(), rows, [None, bytes(rows)])
    return pa.DictionaryArray.from_arrays(indices, pa.array(["A" * length], pa.string()).cast(kind))


def in_list(values: pa.Array) -> pa.Array:
    """Return one list of all values."""
    return _listed(pa.list_(values.type), [0, len(values)], values)


def in_map(keys: pa.Array, items: pa.Array) -> pa.Array:
    """Return one map of all keys and items."""
    entries = _entries(keys, items)
    return _listed(pa.map_(keys.type, items.type), [0, len(keys)], entries)


def zero_width(count: int) -> pa.Array:
    """Return one list of so many values that have no bytes."""
    values = pa.Array.from_buffers(pa.binary(0), count, [None, pa.py_buffer(b"")])
    return _listed(pa.list_(pa.binary(0)), [0, count], values)


def _entries(keys: pa.Array, items: pa.Array) -> pa.Array:
    fields = [pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
    return pa.StructArray.from_arrays([keys, items], fields=fields)


def _listed(kind: pa.DataType, offsets: Sequence[int], values: pa.Array) -> pa.Array:
    buffers = [None, pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets))]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[values])


def _array(kind: pa.DataType, rows: int, buffers: Sequence[bytes | None]) -> pa.Array:
    parts = [None if data is None else pa.py_buffer(data) for data in buffers]
    return pa.Array.from_buffers(kind, rows, parts)
