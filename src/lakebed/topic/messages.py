"""Decodes many small record batch messages of one schema in a single pass.

An Arrow reader costs several microseconds for each message, however small it is. Messages that one
writer made of one schema differ only in their numbers: how many rows and nulls a column has, and
where its buffers lie. These stand in the same places of every message's metadata, so numpy reads
them from all messages at once, and each column's buffers are gathered with one copy.

    FF FF FF FF | metadata length, u32 | flatbuffer `Message` | zeros | buffers

Layout: `Message` and `RecordBatch` of Arrow's Message.fbs. A message that differs from the first
one in anything but these numbers, or has a type that no topic stores, is `Unusual`: the caller
decodes it with Arrow.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

Integers = npt.NDArray[np.int64]

_PREFIX_BYTES: Final = 8
_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_LONG: Final = struct.Struct("<Q")
_INTEGER: Final = struct.Struct("<I")
_SIGNED: Final = struct.Struct("<i")
_SHORT: Final = struct.Struct("<H")


class Unusual(Exception):  # noqa: N818  # a case to handle differently, not a fault
    """The messages cannot be decoded in one pass."""


class _Skeleton(NamedTuple):
    """Positions of the numbers in the metadata of a message."""

    size: int
    """Bytes in front of the buffers."""
    nodes: tuple[int, int]
    """First byte, and how many: rows and nulls of each column, nested ones after their parent."""
    buffers: tuple[int, int]
    """First byte, and how many: position and length of each buffer."""
    numbers: tuple[tuple[int, int], ...]
    """Ranges of bytes in which messages may differ."""


def decode_messages(
    messages: Sequence[memoryview], schema: pa.Schema
) -> tuple[pa.RecordBatch, Integers]:
    """Return the rows of all messages in their order, and how many each message has.

    Raises `Unusual` if they cannot be decoded in one pass.
    """
    try:
        skeleton = _skeleton(messages[0])
    except (struct.error, IndexError, OverflowError) as error:
        raise Unusual("metadata") from error
    decoder = _Decoder(messages, skeleton)
    arrays = [decoder.array(field.type, decoder.rows) for field in schema]
    decoder.check_finished()
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    batch.validate()
    return batch, decoder.rows


def _skeleton(message: memoryview) -> _Skeleton:
    continuation, length = struct.unpack_from("<II", message)
    if continuation != _CONTINUATION:
        raise Unusual("prefix")
    root = _PREFIX_BYTES + _INTEGER.unpack_from(message, _PREFIX_BYTES)[0]
    if message[_field(message, root, 1)] != _RECORD_BATCH:
        raise Unusual("kind")
    body_length = _field(message, root, 3)
    header = _target(message, _field(message, root, 2))
    if _field_or_zero(message, header, 3):
        raise Unusual("compression")
    rows = _field(message, header, 0)
    nodes = _vector(message, _field(message, header, 1))
    buffers = _vector(message, _field(message, header, 2))
    numbers = (
        (body_length, body_length + 8),
        (rows, rows + 8),
        (nodes[0], nodes[0] + 16 * nodes[1]),
        (buffers[0], buffers[0] + 16 * buffers[1]),
    )
    size = _PREFIX_BYTES + length
    if max(end for _, end in numbers) > size or size > len(message):
        raise Unusual("metadata")
    return _Skeleton(size, nodes, buffers, numbers)


def _field(message: memoryview, table: int, field: int) -> int:
    position = _field_or_zero(message, table, field)
    if not position:
        raise Unusual("a field is left out")
    return position


def _field_or_zero(message: memoryview, table: int, field: int) -> int:
    """Return the position of a field of a flatbuffer table; 0 if it has its default."""
    fields = table - _SIGNED.unpack_from(message, table)[0]
    entry = 4 + 2 * field
    if _SHORT.unpack_from(message, fields)[0] < entry + 2:
        return 0
    distance: int = _SHORT.unpack_from(message, fields + entry)[0]
    return table + distance if distance else 0


def _target(message: memoryview, position: int) -> int:
    distance: int = _INTEGER.unpack_from(message, position)[0]
    return position + distance


def _vector(message: memoryview, position: int) -> tuple[int, int]:
    start = _target(message, position)
    return start + 4, _INTEGER.unpack_from(message, start)[0]


class _Decoder:
    """Reads columns in the order of the metadata: validity, offsets, data, then children."""

    def __init__(self, messages: Sequence[memoryview], skeleton: _Skeleton) -> None:
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self._data = np.frombuffer(b"".join(messages), np.uint8)
        if lengths.min() < skeleton.size or len(self._data) > np.iinfo(np.int32).max:
            raise Unusual("length")
        starts = lengths.cumsum() - lengths
        metadata = self._metadata(starts, skeleton.size)
        _check_alike(metadata, skeleton)
        self._nodes = _numbers(metadata, *skeleton.nodes)
        self._places = _numbers(metadata, *skeleton.buffers)
        if not skeleton.nodes[1] or self._nodes.min() < 0 or self._places.min(initial=0) < 0:
            raise Unusual("negative")
        self._starts = starts + skeleton.size
        room = (lengths - skeleton.size)[:, np.newaxis]
        positions, sizes = self._places[:, :, 0], self._places[:, :, 1]
        if ((positions > room) | (sizes > room - positions)).any():
            raise Unusual("a buffer is not within its message")
        self.rows: Integers = self._nodes[:, 0, 0]
        """How many rows each message has: as many as its first column."""
        self._node = 0
        self._buffer = 0

    def check_finished(self) -> None:
        """Refuse messages with more columns than the schema."""
        if (self._node, self._buffer) != (self._nodes.shape[1], self._places.shape[1]):
            raise Unusual("columns")

    def array(self, kind: pa.DataType, expected: Integers) -> pa.Array:
        """Decode the next column; `expected` is how many rows each message must have in it."""
        if self._node >= self._nodes.shape[1]:
            raise Unusual("columns")
        counts, nulls = self._nodes[:, self._node, 0], self._nodes[:, self._node, 1]
        self._node += 1
        if not np.array_equal(counts, expected):
            raise Unusual("rows")
        rows = int(counts.sum())
        if (nulls > counts).any():
            raise Unusual("nulls")
        if int(nulls.sum()) == rows:  # no value at all: no need to look
            self._skip(kind)
            return pa.nulls(rows, kind)
        validity = self._validity(counts, nulls)
        if types.is_struct(kind):
            children = [self.array(field.type, counts) for field in kind]
            return pa.Array.from_buffers(kind, rows, [validity], children=children)
        if types.is_list(kind) or types.is_map(kind):
            offsets, _, lasts = self._offsets(counts)
            child = self.array(_child(kind), lasts)
            return pa.Array.from_buffers(kind, rows, [validity, offsets], children=[child])
        if types.is_binary(kind) or types.is_string(kind):
            offsets, firsts, lasts = self._offsets(counts)
            data = self._gather(lasts - firsts, firsts)
            return pa.Array.from_buffers(kind, rows, [validity, offsets, data])
        if types.is_boolean(kind):
            bits = self._bits(counts)
            return pa.Array.from_buffers(kind, rows, [validity, _pack_bits(bits)])
        if _is_fixed(kind):
            data = self._gather(counts * (kind.bit_width // 8))
            return pa.Array.from_buffers(kind, rows, [validity, data])
        raise Unusual(str(kind))

    def _skip(self, kind: pa.DataType) -> None:
        """Pass over the buffers of the column just begun, and over its children."""
        nodes, buffers = _layout(kind)
        self._node += nodes - 1
        self._buffer += buffers

    def _next_buffer(self) -> tuple[Integers, Integers]:
        """Return the start (in the joined data) and the length of the next buffer."""
        if self._buffer >= self._places.shape[1]:
            raise Unusual("columns")
        places = self._places[:, self._buffer]
        self._buffer += 1
        return self._starts + places[:, 0], places[:, 1]

    def _gather(self, wanted: Integers, skipped: Integers | None = None) -> pa.Buffer:
        """Copy the next buffer of every message together: `wanted` bytes after `skipped` ones."""
        starts, lengths = self._next_buffer()
        needed = wanted if skipped is None else wanted + skipped
        if (needed > lengths).any():
            raise Unusual("a buffer is too short")
        return self._copy(starts if skipped is None else starts + skipped, wanted)

    def _copy(self, starts: Integers, lengths: Integers) -> pa.Buffer:
        """Copy ranges of the joined data together."""
        used = lengths > 0
        if not used.all():
            starts, lengths = starts[used], lengths[used]
        if not len(starts):
            return pa.py_buffer(b"")
        length = int(lengths[0])
        if (lengths == length).all():
            rows = self._spread(starts, length)
            if rows is not None:
                return pa.py_buffer(rows.copy())  # a view would hold all of the data
        return self._copy_ragged(starts, lengths)

    def _spread(self, starts: Integers, length: int) -> npt.NDArray[np.uint8] | None:
        """Return ranges of one length as the rows of a view; None if they are not evenly spaced."""
        steps = np.diff(starts)
        step = int(steps[0]) if len(steps) else length
        if (steps != step).any():
            return None
        shape, strides = (len(starts), length), (step, 1)
        return np.lib.stride_tricks.as_strided(self._data[int(starts[0]) :], shape, strides)

    def _metadata(self, starts: Integers, size: int) -> npt.NDArray[np.uint8]:
        """Return the metadata of every message as a row."""
        rows = self._spread(starts, size)
        if rows is not None:
            return rows
        copied = self._copy_ragged(starts, np.full(len(starts), size))
        return np.frombuffer(copied, np.uint8).reshape(len(starts), size)

    def _copy_ragged(self, starts: Integers, lengths: Integers) -> pa.Buffer:
        """Copy ranges of different lengths together.

        They are the even values of a binary array, and what lies between them the odd ones.
        """
        edges = np.empty(2 * len(starts), np.int32)
        edges[::2] = starts
        edges[1::2] = starts + lengths
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(self._data)]
        pieces = pa.Array.from_buffers(pa.binary(), len(edges) - 1, buffers)
        taken = pieces.take(pa.array(np.arange(0, len(edges), 2, dtype=np.int64)))
        return taken.buffers()[2].slice(0, int(lengths.sum()))

    def _offsets(self, counts: Integers) -> tuple[pa.Buffer, Integers, Integers]:
        """Return the offsets of all rows, and the first and last offset within each message."""
        held = counts + (counts > 0)
        gathered = np.frombuffer(self._gather(4 * held), np.int32)
        firsts, lasts = np.zeros(len(counts), np.int64), np.zeros(len(counts), np.int64)
        ends = held.cumsum()
        used = held > 0
        firsts[used] = gathered[(ends - held)[used]]
        lasts[used] = gathered[ends[used] - 1]
        steps = np.diff(gathered)
        within = np.ones(len(steps), np.bool_)
        within[ends[used][:-1] - 1] = False  # from one message to the next
        steps = steps[within]
        if steps.min(initial=0) < 0 or firsts.min(initial=0) < 0:
            raise Unusual("offsets")
        offsets = np.zeros(len(steps) + 1, np.int32)
        np.cumsum(steps, out=offsets[1:])
        return pa.py_buffer(offsets), firsts, lasts

    def _validity(self, counts: Integers, nulls: Integers) -> pa.Buffer | None:
        if nulls.any():
            return _pack_bits(self._bits(counts, absent_if=nulls == 0))
        self._next_buffer()
        return None

    def _bits(self, counts: Integers, absent_if: npt.NDArray[np.bool_] | None = None) -> Any:
        """Return the next buffer's bits, one for each row; 1 in messages that have no buffer."""
        starts, lengths = self._next_buffer()
        absent = (lengths == 0) & (False if absent_if is None else absent_if)
        if (((counts + 7) // 8 > lengths) & ~absent).any():
            raise Unusual("a buffer is too short")
        message = np.repeat(np.arange(len(counts)), counts)
        row = np.arange(len(message)) - np.repeat(counts.cumsum() - counts, counts)
        position = np.where(absent[message], 0, starts[message] + (row >> 3))
        bits = (self._data[position] >> (row & 7)) & 1
        bits[absent[message]] = 1
        return bits


def _check_alike(metadata: npt.NDArray[np.uint8], skeleton: _Skeleton) -> None:
    start = 0
    for end, following in (*sorted(skeleton.numbers), (skeleton.size, skeleton.size)):
        if (metadata[:, start:end] != metadata[0, start:end]).any():
            raise Unusual("messages differ")
        start = following


def _numbers(metadata: npt.NDArray[np.uint8], start: int, count: int) -> Integers:
    """Return `count` pairs of integers for each message."""
    taken = np.ascontiguousarray(metadata[:, start : start + 16 * count])
    pairs: Integers = taken.view("<i8").reshape(len(metadata), count, 2)
    return pairs


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(types.is_primitive(kind) or types.is_decimal128(kind))


def _pack_bits(bits: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


@functools.lru_cache(maxsize=1024)
def _layout(kind: pa.DataType) -> tuple[int, int]:
    """Return how many nodes and buffers a column of this type has."""
    if types.is_struct(kind):
        children = [_layout(field.type) for field in kind]
    elif types.is_list(kind) or types.is_map(kind):
        children = [(0, 1), _layout(_child(kind))]
    elif types.is_binary(kind) or types.is_string(kind):
        children = [(0, 2)]
    elif _is_fixed(kind):
        children = [(0, 1)]
    else:
        raise Unusual(str(kind))
    return 1 + sum(nodes for nodes, _ in children), 1 + sum(buffers for _, buffers in children)


@functools.lru_cache(maxsize=1024)
def _child(kind: pa.DataType) -> pa.DataType:
    if types.is_map(kind):
        return pa.struct([kind.key_field, kind.item_field])
    return kind.value_type
