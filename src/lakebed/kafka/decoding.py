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
        raise _malformed(str(error)) from error


def _malformed(why: str) -> Refusal:
    return Refusal(INVALID_RECORD, f"the records are malformed: {why}")


# A loop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a varint is too long")


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise ValueError("a field is longer than its record")
    return data[at : at + length], at + length


def _decode_few(head: BatchHead, data: bytes) -> Columns:
    times, keys, values = [], [], []
    headers: list[dict[str, bytes | None] | None] = []
    at = 0
    for row in range(head.records):
        length, at = _varint(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise ValueError("a record is longer than its batch")
        delta, at = _varint(data, at + 1)
        offset, at = _varint(data, at)
        if offset != row:
            raise ValueError("offsets are not consecutive")
        key, at = _field(data, at, end)
        value, at = _field(data, at, end)
        count, at = _varint(data, at)
        if count:
            found, at = _headers(data, at, end, count)
            headers.append(escape_headers(found))
        else:
            headers.append(None)
        if at != end:
            raise ValueError("a record has another length than it says")
        times.append(head.base_time_ms + delta)
        keys.append(key)
        values.append(value)
    if at != len(data):
        raise ValueError("bytes follow the last record")
    has_headers = headers.count(None) < len(headers)
    return Columns(
        _microseconds(times),
        keys if keys.count(None) < len(keys) else None,
        headers if has_headers else None,
        values,
    )


def _headers(data: bytes, at: int, end: int, count: int) -> tuple[list[Header], int]:
    if not 0 <= count <= _HEADERS_MAX:
        raise ValueError("a record has too many headers")
    headers: list[Header] = []
    for _ in range(count):
        name, at = _field(data, at, end)
        if name is None:
            raise ValueError("a header has no name")
        value, at = _field(data, at, end)
        headers.append((name.decode(), value))
    return headers, at


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
    deltas, at = _varints(padded, starts + 1)
    offsets, at = _varints(padded, at)
    if not np.array_equal(offsets, np.arange(head.records)):
        raise ValueError("offsets are not consecutive")
    key_lengths, at = _varints(padded, at)
    keys_at, at = at, _skip(at, key_lengths, ends)
    value_lengths, at = _varints(padded, at)
    values_at, at = at, _skip(at, value_lengths, ends)
    counts, at = _varints(padded, at)
    if (counts != 0).any():
        return None
    if not np.array_equal(at, ends):
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
    starts, ends, at, size = [], [], 0, len(data)
    for _ in range(head.records):
        length, at = _varint(data, at)
        starts.append(at)
        at += length
        if length < 1 or at > size:
            raise ValueError("a record is longer than its batch")
        ends.append(at)
    if at != size:
        raise ValueError("bytes follow the last record")
    return np.array(starts, np.int64), np.array(ends, np.int64)


_STRETCHES: Final = (0, 64, 8192, 1 << 20)
"""Rows at which the offset delta takes one more byte."""


def _equal_records(head: BatchHead, data: bytes) -> tuple[_Ints, _Ints] | None:
    """Return where records of equal sizes begin and end; None if their sizes differ."""
    starts, ends = [], []
    at, raw = 0, np.frombuffer(data, np.uint8)
    for first, behind in itertools.pairwise(_STRETCHES):
        rows = min(behind, head.records) - first
        if rows <= 0:
            break
        length, body = _varint(data, at)
        size = body - at + length
        if length < 1 or at + rows * size > len(data):
            return None
        matrix = raw[at : at + rows * size].reshape(rows, size)
        if not (matrix[:, : body - at] == matrix[0, : body - at]).all():
            return None
        begin = at + np.arange(rows, dtype=np.int64) * size
        starts.append(begin + (body - at))
        ends.append(begin + size)
        at += rows * size
    if at != len(data) or head.records > _STRETCHES[-1]:
        return None
    return np.concatenate(starts), np.concatenate(ends)


def _varints(data: _Bytes, at: _Ints) -> tuple[_Ints, _Ints]:
    """Read a varint at each position; return the values and where they end."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    at = at + 1
    more = byte >= 0x80
    shift = 7
    while more.any():
        if shift > 63:
            raise ValueError("a varint is too long")
        byte = np.where(more, data[np.minimum(at, len(data) - 1)], 0).astype(np.uint8)
        value |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at = at + more
        more = byte >= 0x80
        shift += 7
    signed = (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)
    return signed, at


def _skip(at: _Ints, lengths: _Ints, ends: _Ints) -> _Ints:
    """Return where fields of these lengths end, which must be within their records."""
    following: _Ints = at + np.maximum(lengths, 0)
    if (lengths < -1).any() or (lengths > ends).any() or (following > ends).any():
        raise ValueError("a field is longer than its record")
    return following


def _gather(buffer: pa.Buffer, at: _Ints, lengths: _Ints) -> pa.Array:
    """Return fields of a buffer as one array: Arrow copies those between which there are gaps."""
    count = len(at)
    bounds = np.empty(2 * count, np.int32)
    bounds[::2] = at
    bounds[1::2] = at + np.maximum(lengths, 0)
    both = pa.Array.from_buffers(_BINARY, 2 * count - 1, [None, pa.py_buffer(bounds), buffer])
    taken = both.take(pa.array(np.arange(0, 2 * count, 2)))
    nulls = lengths < 0
    if not nulls.any():
        return taken
    valid = pa.array(~nulls).buffers()[1]
    _, offsets, values = taken.buffers()
    return pa.Array.from_buffers(_BINARY, count, [valid, offsets, values])
