"""Which partition each record of a batch goes to.

Records with a key go where Kafka's default partitioner would send them: murmur2 of the key, made
positive, modulo the number of partitions. Records without a key are spread evenly, in contiguous
runs. Everything is computed for the whole batch at once; only a few keys, or a few very long ones
among many, are hashed one by one.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import PartitionNotFoundError

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF

_FACTOR: Final = np.uint32(_M)
_POSITIVE: Final = np.int32(0x7FFFFFFF)
_TAIL_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)

_FEW: Final = 32
"""So few keys are hashed one by one: numpy's cost per call would be more than the work."""

_FEW_LONG: Final = 64
"""So few keys that are longer than all others leave the common steps, for the same reason."""

_SHORT_BYTES: Final = 128
"""Up to this length a single key is hashed without numpy."""

_CHUNK_WORDS: Final = 65_536
"""What a long key takes of memory while it is hashed."""

_Words = npt.NDArray[np.uint32]
_Ints = npt.NDArray[np.int32]
Part = tuple[int, int]
"""A partition, and how many of the batch's next rows are for it."""


class Routed(NamedTuple):
    """A batch whose rows are sorted by partition.

    `parts` says in the order of the rows which partition takes how many. `order` gives for each row
    the row of the original batch that it was, or is None if no row moved.
    """

    batch: pa.RecordBatch
    parts: list[Part]
    order: npt.NDArray[np.intp] | None


def route(batch: pa.RecordBatch, count: int, *, partition: int | None, start: int) -> Routed:
    """Arrange a storage batch for `count` partitions.

    All goes to `partition` if one is given. Otherwise keys decide, and records without one are
    spread over the partitions beginning at `start`, which the caller moves on for each batch.
    """
    if partition is not None:
        return Routed(batch, _all_to(partition, batch.num_rows, count), None)
    keys = batch.column("key")
    if keys.null_count == len(keys):
        return Routed(batch, spread(len(keys), count, start), None)
    partitions = partitions_of(keys, count)
    if keys.null_count:
        _spread_keyless(partitions, count, start)
    return Routed(*split(batch, partitions))


def _all_to(partition: int, rows: int, count: int) -> list[Part]:
    if not 0 <= partition < count:
        raise PartitionNotFoundError(
            "the partition does not exist", partition=partition, partitions=count
        )
    return [(partition, rows)] if rows else []


def _spread_keyless(partitions: npt.NDArray[np.int32], count: int, start: int) -> None:
    keyless = np.flatnonzero(partitions < 0)
    chosen, rows = zip(*spread(len(keyless), count, start), strict=True)
    partitions[keyless] = np.repeat(np.array(chosen, np.int32), rows)


def spread(rows: int, count: int, start: int) -> list[Part]:
    """Cut rows into contiguous runs of about equal length, for `start` and the partitions after it.

    Fewer rows than partitions are runs of one row.
    """
    if rows == 1:
        return [(start % count, 1)]
    runs = min(rows, count)
    if runs == 0:
        return []
    length, longer = divmod(rows, runs)
    return [((start + run) % count, length + (run < longer)) for run in range(runs)]


def split(
    batch: pa.RecordBatch, partitions: npt.NDArray[np.int32]
) -> tuple[pa.RecordBatch, list[Part], npt.NDArray[np.intp] | None]:
    """Bring each partition's rows together, in their original order, partitions ascending."""
    if len(partitions) == 0:
        return batch, [], None
    if len(partitions) == 1 or bool((partitions == partitions[0]).all()):
        return batch, [(int(partitions[0]), len(partitions))], None
    rows = np.bincount(partitions)
    used = np.flatnonzero(rows)
    parts = list(zip(used.tolist(), rows[used].tolist(), strict=True))
    if bool((partitions[:-1] <= partitions[1:]).all()):
        return batch, parts, None
    order = _narrow(partitions, len(rows)).argsort(kind="stable")
    return batch.take(pa.array(order)), parts, order


def _narrow(partitions: npt.NDArray[np.int32], count: int) -> npt.NDArray[Any]:
    """Return the partitions in the smallest type: numpy sorts up to 16 bits by radix."""
    return partitions.astype(np.min_scalar_type(count))


def partitions_of(keys: pa.Array, count: int) -> npt.NDArray[np.int32]:
    """Return each key's partition of `count`, and -1 where there is no key."""
    partitions = (murmur2(keys) & _POSITIVE) % np.int32(count)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = -1
    return partitions


def murmur2(keys: pa.Array) -> npt.NDArray[np.int32]:
    """Hash each key of a binary array as Kafka does; where there is no key, the hash is any number.

    The first words of all keys are mixed in together, then the second words of those that have
    one, and so on. Memory is a copy of the keys' bytes and some numbers per key.
    """
    if keys.type != pa.binary():
        keys = keys.cast(pa.binary())
    if len(keys) <= _FEW:
        hashes = [hash_of(key or b"") for key in keys.to_pylist()]
        return np.array(hashes, np.uint32).view(np.int32)
    return _hash_all(*_bytes_of(keys)).view(np.int32)


def hash_of(key: bytes) -> int:
    """Hash one key: an unsigned number of 32 bits."""
    length = len(key)
    h = _SEED ^ length
    if length > _SHORT_BYTES:
        h = _fold_long(h, np.frombuffer(key, "<u4", length >> 2))
    else:
        for k in struct.unpack_from(f"<{length >> 2}I", key):
            k = k * _M & _MASK
            h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if length & 3:
        h = (h ^ int.from_bytes(key[length & ~3 :], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


def _fold_long(h: int, words: _Words) -> int:
    for first in range(0, len(words), _CHUNK_WORDS):
        chunk = words[first : first + _CHUNK_WORDS] * _FACTOR
        _mix_shifted(chunk, 24)
        for k in chunk.tolist():
            h = (h * _M & _MASK) ^ k
    return h


def _bytes_of(keys: pa.Array) -> tuple[_Words, _Ints]:
    """Copy the keys' bytes, with zeros behind them, and return where each begins and the last ends.

    The zeros let every key be read in whole words, and the copy begins on a word's boundary.
    """
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(keys) + 1, 4 * keys.offset)
    first, last = int(offsets[0]), int(offsets[-1])
    size = last - first
    data = np.empty(size // 4 + 2, "<u4")
    data[-2:] = 0
    if size:
        data.view(np.uint8)[:size] = np.frombuffer(data_buffer, np.uint8, size, first)
    return data, offsets - np.int32(first)


def _hash_all(data: _Words, offsets: _Ints) -> _Words:
    lengths = np.diff(offsets)
    hashes = lengths.view(np.uint32) ^ np.uint32(_SEED)
    long = _fold_words(hashes, _KeyReader(data, offsets[:-1]), lengths >> 2)
    _fold_tails(hashes, data, offsets[1:], lengths & 3)
    _mix_shifted(hashes, 13)
    hashes ^= hashes >> 15
    for row in long:
        key = data.view(np.uint8)[offsets[row] : offsets[row + 1]]
        hashes[row] = hash_of(key.tobytes())
    return hashes


def _fold_words(hashes: _Words, reader: _KeyReader, words: _Ints) -> npt.NDArray[np.intp]:
    """Mix each key's whole words into its hash, and return the rows left out because they are long.

    A key that is through goes along with its hash held still, until half of them are; then the
    others go on alone.
    """
    going = words > 0
    count = np.count_nonzero(going)
    done = 0
    while 2 * count >= len(words) and count > _FEW_LONG:
        word = reader.next()
        if count == len(words):
            hashes *= _FACTOR
        else:
            # Multiplying by one and adding nothing is quicker than choosing rows.
            ones = np.negative(going.astype(np.uint32))
            word &= ones
            ones &= _FACTOR - 1
            ones += 1
            hashes *= ones
        hashes ^= word
        done += 1
        going = words > done
        count = np.count_nonzero(going)
    rows = np.flatnonzero(going)
    if count <= _FEW_LONG:
        return rows
    rest = hashes[rows]
    long = _fold_words(rest, reader.only(rows), words[rows] - np.int32(done))
    hashes[rows] = rest
    return rows[long]


def _fold_tails(hashes: _Words, data: _Words, ends: _Ints, rest: _Ints) -> None:
    """Mix in the one to three bytes behind a key's last whole word."""
    if rest.any():
        tails = _KeyReader(data, ends - rest).next_unmixed()
        tails &= _TAIL_MASKS[rest]
        tails ^= hashes
        tails *= _FACTOR
        np.copyto(hashes, tails, where=rest > 0)


class _KeyReader:
    """Reads the next four bytes of many keys at once, wherever each stands.

    Numpy is quick only with words at multiples of four, so a word is put together from the two it
    overlaps, of which the second serves again for the next. All steps work in place: temporary
    arrays of this size would cost more than the arithmetic.
    """

    def __init__(self, data: _Words, starts: _Ints) -> None:
        self._data = data
        self._right = ((starts & 3) << 3).view(np.uint32)
        self._left = 31 - self._right
        self._at = (starts >> 2).astype(np.intp)
        self._low = data.take(self._at)
        self._high = np.empty_like(self._low)

    def next_unmixed(self) -> _Words:
        """Return each key's next word, valid until the next call; after the data, the last word."""
        self._at += 1
        word, self._low = self._low, self._high
        self._data.take(self._at, out=self._low, mode="clip")
        word >>= self._right
        # A shift by 32 is not defined, so a key that begins on a boundary is shifted in two steps.
        high = self._low << 1
        high <<= self._left
        word |= high
        self._high = word
        return word

    def next(self) -> _Words:
        """Return each key's next word, ready to be mixed into its hash."""
        word = self.next_unmixed()
        word *= _FACTOR
        _mix_shifted(word, 24)
        return word

    def only(self, rows: npt.NDArray[np.intp]) -> _KeyReader:
        """Return a reader that continues with some of the keys."""
        reader = object.__new__(_KeyReader)
        reader._data = self._data
        reader._right, reader._left = self._right[rows], self._left[rows]
        reader._at, reader._low = self._at[rows], self._low[rows]
        reader._high = np.empty_like(reader._low)
        return reader


def _mix_shifted(words: _Words, bits: int) -> None:
    words ^= words >> bits
    words *= _FACTOR
