"""Records of a topic as batches for Fetch, encoded in columns.

A few records, and records with headers, are written in a loop. Of many, the varints are computed by
numpy, and Arrow joins heads, keys and values of all records at once: the buffer of the joined
column is the records section of the batch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.kafka.batches import build_batch
from lakebed.kafka.decoding import LOOP_ROWS
from lakebed.kafka.headers import restore_headers

_BINARY: Final = pa.binary()
_Ints = npt.NDArray[np.int64]


def encode_rows(batch: pa.RecordBatch, following: int) -> bytes:
    """Return rows of a raw topic, as its readers get them, as one batch.

    `following` is the offset after what was read: offsets below it that have no row were removed by
    compaction, and the reader continues after them.
    """
    offsets = np.asarray(batch.column("offset"))
    times = np.asarray(batch.column("timestamp").cast(pa.int64())) // 1000
    base = int(offsets[0])
    deltas, moments = offsets - base, times - times[0]
    headers = batch.column("headers")
    if batch.num_rows <= LOOP_ROWS or headers.null_count < len(headers):
        records: Any = _encode_few(batch, deltas, moments)
    else:
        records = _encode_many(batch, deltas, moments)
    return build_batch(
        records,
        count=batch.num_rows,
        base_offset=base,
        last_offset_delta=following - 1 - base,
        base_time_ms=int(times[0]),
        max_time_ms=int(times.max()),
    )


def empty_batch(offset: int, following: int) -> bytes:
    """Return a batch without records that leads a reader over a hole in the offsets."""
    return build_batch(
        b"",
        count=0,
        base_offset=offset,
        last_offset_delta=following - 1 - offset,
        base_time_ms=-1,
        max_time_ms=-1,
    )


# A loop


def _put_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_field(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
    else:
        _put_varint(out, len(value))
        out += value


def _encode_few(batch: pa.RecordBatch, deltas: _Ints, moments: _Ints) -> bytes:
    whole = bytearray()
    rows = zip(
        deltas.tolist(),
        moments.tolist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        batch.column("headers").to_pylist(),
        strict=True,
    )
    for delta, moment, key, value, headers in rows:
        out = bytearray(1)
        _put_varint(out, moment)
        _put_varint(out, delta)
        _put_field(out, key)
        _put_field(out, value)
        pairs = restore_headers(headers or ())
        _put_varint(out, len(pairs))
        for name, data in pairs:
            _put_field(out, name.encode())
            _put_field(out, data)
        _put_varint(whole, len(out))
        whole += out
    return bytes(whole)


# Many at once


def _encode_many(batch: pa.RecordBatch, deltas: _Ints, moments: _Ints) -> memoryview:
    keys, values = batch.column("key"), batch.column("value")
    key_lengths, value_lengths = _lengths(keys), _lengths(values)
    inner = [_varints(moments), _varints(deltas), _varints(key_lengths)]
    middle = _varints(value_lengths)
    bodies = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + 2
    for _, sizes in (*inner, middle):
        bodies += sizes
    attributes = np.zeros((len(deltas), 1), np.uint8), np.ones(len(deltas), np.int64)
    head = _column([_varints(bodies), attributes, *inner])
    no_headers = (np.zeros((len(deltas), 1), np.uint8), np.ones(len(deltas), np.int64))
    joined = pc.binary_join_element_wise(
        head,
        keys.fill_null(b"") if keys.null_count else keys,
        _column([middle]),
        values.fill_null(b"") if values.null_count else values,
        _column([no_headers]),
        pa.scalar(b"", _BINARY),
    )
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.combine_chunks()
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)
    first, last = int(ends[joined.offset]), int(ends[joined.offset + len(joined)])
    return memoryview(data)[first:last]


def _lengths(array: pa.Array) -> _Ints:
    lengths: _Ints = np.asarray(pc.binary_length(array).fill_null(-1), np.int64)
    return lengths


def _varints(values: _Ints) -> tuple[npt.NDArray[np.uint8], _Ints]:
    """Return numbers as varints: a row of bytes each, and how many of these count."""
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    columns = []
    sizes = np.ones(len(values), np.int64)
    while True:
        more = left > np.uint64(0x7F)
        low = (left & np.uint64(0x7F)).astype(np.uint8)
        columns.append(np.where(more, low | np.uint8(0x80), low))
        if not more.any():
            break
        sizes += more
        left = left >> np.uint64(7)
    return np.stack(columns, axis=1), sizes


def _column(fields: list[tuple[npt.NDArray[np.uint8], _Ints]]) -> pa.Array:
    """Return the bytes of some fields of each row, one after another, as a binary column."""
    matrix = np.concatenate([rows for rows, _ in fields], axis=1)
    counts = np.concatenate(
        [np.arange(rows.shape[1])[None, :] < sizes[:, None] for rows, sizes in fields], axis=1
    )
    ends = np.zeros(len(matrix) + 1, np.int32)
    np.cumsum(counts.sum(axis=1), out=ends[1:])
    data = np.ascontiguousarray(matrix[counts])
    return pa.Array.from_buffers(
        _BINARY, len(matrix), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
