"""Records of a batch as columns.

    length | attributes i8 | time delta | offset delta | key length | key | value length | value |
    headers | (name length | name | value length | value) ...

Everything but the attributes is a varint in zigzag form; a length of -1 is null. Up to
`LOOP_ROWS` records, and records with headers, are read in a loop. Of the others a loop finds where
each begins, and the fields of all of them are read at once by numpy. Records of equal sizes need no
loop at all: they differ in length only where the offset delta takes one more byte, at 64 and 8192.
"""

from __future__ import annotations

import itertools
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.kafka.batches import BatchHead
from lakebed.kafka.codes import INVALID_RECORD, INVALID_TIMESTAMP, Refusal
from lakebed.kafka.headers import Header, escape_headers

LOOP_ROWS: Final = 64
_HEADERS_MAX: Final = 1_000
_VARINT_MAX: Final = 10
_LENGTH_BYTES_MAX: Final = 5
_TIME_MS_MAX: Final = 2**53
_BINARY: Final = pa.binary()

_Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


class Columns(NamedTuple):
    """Records as columns: lists of a few, Arrow arrays of many."""

    times_us: _Ints
    keys: Any
    """None if no record has a key."""
    headers: list[dict[str, bytes | None] | None] | None
    values: Any

    @property
    def rows(self) -> int:
        """How many records there are."""
        return len(self.values)


def decode(head: BatchHead, data: bytes) -> Columns:
    """Return the records of a batch, or raise `Refusal` if they are malformed."""
    try:
        if head.records > LOOP_ROWS:
            columns = _decode_many(head, data)
            if columns is not None:
                return columns
        return _decode_few(head, data)
    except (IndexError, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise _format_error(str(error)) from error


def _format_error(why: str) -> Refusal:
    return Refusal(INVALID_RECORD, f"the records are malformed: {why}")


# A loop


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = data[position]
    position += 1
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), position
    value &= 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint is too long")


def _field(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise ValueError("a field is longer than its record")
    return data[position : position + length], position + length


def _decode_few(head: BatchHead, data: bytes) -> Columns:
    times, keys, values = [], [], []
    headers: list[dict[str, bytes | None] | None] = []
    position = 0
    for row in range(head.records):
        length, position = _varint(data, position)
        end = position + length
        if length < 0 or end > len(data):
            raise ValueError("a record is longer than its batch")
        delta, position = _varint(data, position + 1)
        offset, position = _varint(data, position)
        if offset != row:
            raise ValueError("offsets are not consecutive")
        key, position = _field(data, position, end)
        value, position = _field(data, position, end)
        count, position = _varint(data, position)
        if count:
            record_headers, position = _headers(data, position, end, count)
            headers.append(escape_headers(record_headers))
        else:
            headers.append(None)
        if position != end:
            raise ValueError("a record has another length than it says")
        times.append(head.base_time_ms + delta)
        keys.append(key)
        values.append(value)
    if position != len(data):
        raise ValueError("bytes follow the last record")
    has_headers = headers.count(None) < len(headers)
    return Columns(
        _microseconds(times),
        keys if keys.count(None) < len(keys) else None,
        headers if has_headers else None,
        values,
    )


def _headers(data: bytes, position: int, end: int, count: int) -> tuple[list[Header], int]:
    if not 0 <= count <= _HEADERS_MAX:
        raise ValueError("a record has too many headers")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _field(data, position, end)
        if name is None:
            raise ValueError("a header has no name")
        value, position = _field(data, position, end)
        headers.append((name.decode(), value))
    return headers, position


def _microseconds(times_ms: Any) -> _Ints:
    times = np.asarray(times_ms)
    if times.dtype != np.int64 or (np.abs(times) > _TIME_MS_MAX).any():
        raise Refusal(INVALID_TIMESTAMP, "a timestamp is out of range")
    micros: _Ints = times * 1000
    return micros


# Many at once


def _decode_many(head: BatchHead, data: bytes) -> Columns | None:
    """Read records without headers; None if one has headers."""
    starts, ends = _equal_records(head, data) or _records(head, data)
    padded = np.zeros(len(data) + _VARINT_MAX, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    deltas, positions = _varints(padded, starts + 1)
    offsets, positions = _varints(padded, positions)
    if not np.array_equal(offsets, np.arange(head.records)):
        raise ValueError("offsets are not consecutive")
    key_lengths, positions = _varints(padded, positions)
    keys_at, positions = positions, _skip(positions, key_lengths, ends)
    value_lengths, positions = _varints(padded, positions)
    values_at, positions = positions, _skip(positions, value_lengths, ends)
    counts, positions = _varints(padded, positions)
    if (counts != 0).any():
        return None
    if not np.array_equal(positions, ends):
        raise ValueError("a record has another length than it says")
    buffer = pa.py_buffer(data)
    return Columns(
        _microseconds(head.base_time_ms + deltas),
        None if (key_lengths < 0).all() else _gather(buffer, keys_at, key_lengths),
        None,
        _gather(buffer, values_at, value_lengths),
    )


def _records(head: BatchHead, data: bytes) -> tuple[_Ints, _Ints]:
    """Return where the bodies of records begin and end."""
    starts, ends, position, size = [], [], 0, len(data)
    for _ in range(head.records):
        length, position = _varint(data, position)
        starts.append(position)
        position += length
        if length < 1 or position > size:
            raise ValueError("a record is longer than its batch")
        ends.append(position)
    if position != size:
        raise ValueError("bytes follow the last record")
    return np.array(starts, np.int64), np.array(ends, np.int64)


_STRETCHES: Final = (0, 64, 8192, 1 << 20)
"""Rows at which the offset delta takes one more byte."""


def _equal_records(head: BatchHead, data: bytes) -> tuple[_Ints, _Ints] | None:
    """Return where records of equal sizes begin and end; None if their sizes differ."""
    starts, ends = [], []
    position, raw = 0, np.frombuffer(data, np.uint8)
    for first, behind in itertools.pairwise(_STRETCHES):
        rows = min(behind, head.records) - first
        if rows <= 0:
            break
        length, body = _varint(data, position)
        size = body - position + length
        if length < 1 or position + rows * size > len(data):
            return None
        matrix = raw[position : position + rows * size].reshape(rows, size)
        if not (matrix[:, : body - position] == matrix[0, : body - position]).all():
            return None
        begin = position + np.arange(rows, dtype=np.int64) * size
        starts.append(begin + (body - position))
        ends.append(begin + size)
        position += rows * size
    if position != len(data) or head.records > _STRETCHES[-1]:
        return None
    return np.concatenate(starts), np.concatenate(ends)


def _varints(data: _Bytes, positions: _Ints) -> tuple[_Ints, _Ints]:
    """Read a varint at each position; return the values and where they end."""
    byte = data[positions]
    value = (byte & 0x7F).astype(np.uint64)
    positions = positions + 1
    more = byte >= 0x80
    shift = 7
    while more.any():
        if shift > 63:
            raise ValueError("a varint is too long")
        byte = np.where(more, data[np.minimum(positions, len(data) - 1)], 0).astype(np.uint8)
        value |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        positions = positions + more
        more = byte >= 0x80
        shift += 7
    signed = (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)
    return signed, positions


def _skip(positions: _Ints, lengths: _Ints, ends: _Ints) -> _Ints:
    """Return where fields of these lengths end, which must be within their records."""
    following: _Ints = positions + np.maximum(lengths, 0)
    if (lengths < -1).any() or (lengths > ends).any() or (following > ends).any():
        raise ValueError("a field is longer than its record")
    return following


def _gather(buffer: pa.Buffer, starts: _Ints, lengths: _Ints) -> pa.Array:
    """Return fields of a buffer as one array: Arrow copies those between which there are gaps."""
    count = len(starts)
    bounds = np.empty(2 * count, np.int32)
    bounds[::2] = starts
    bounds[1::2] = starts + np.maximum(lengths, 0)
    both = pa.Array.from_buffers(_BINARY, 2 * count - 1, [None, pa.py_buffer(bounds), buffer])
    taken = both.take(pa.array(np.arange(0, 2 * count, 2)))
    nulls = lengths < 0
    if not nulls.any():
        return taken
    valid = pa.array(~nulls).buffers()[1]
    _, offsets, values = taken.buffers()
    return pa.Array.from_buffers(_BINARY, count, [valid, offsets, values])
