"""Key filters: which row groups cannot hold a key, without decoding their keys.

Each row group's `key` column has a bloom filter in Parquet's format, made by the Parquet library.
It is in the segment's tail, under the tail's checksum. The footer does not name it, the
segment's index does: other readers shall not use it, because DuckDB up to 1.5 hashes a key of bytes
as it would print them, and then does not find it. A filter has two parts.

1. A Thrift header in the compact protocol: the length of the second part in bytes, and the only
   algorithm (split block), hash (XXH64) and compression (none) that there are. A header that says
   anything else is of a filter that is not understood here, which is as good as none.

       15 <length, zigzag varint>  1c 1c 00 00  1c 1c 00 00  1c 1c 00 00  00

2. Blocks of 32 bytes. A key is hashed with XXH64, seed 0, over its bytes. The upper half of the
   hash chooses the block: `(upper * blocks) >> 32`. A block is eight little-endian words of 32
   bits, and in each of them the key has one bit: that of number `(lower * salt[word] mod 2**32) >>
   27`. A key is absent for certain if one of its eight bits is 0.

A filter of 128 KiB stands for 65,536 different keys and errs for fewer than one key in a hundred.
One for fewer keys is folded by the Parquet library until it is as small as that allows.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed import limits

FALSE_POSITIVES_MAX: Final = 0.01
"""The share of absent keys for which a filter may say that they could be there."""

_OPTIONS: Final = {"ndv": limits.ROW_GROUP_RECORDS, "fpp": FALSE_POSITIVES_MAX}
"""Room for a key in every record of a row group; the library folds filters that hold fewer."""

_BLOCK_BYTES: Final = 32
_SALT: Final = (
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)
_HEADER: Final = re.compile(rb"\x15([\x80-\xff]{0,4}[\x00-\x7f])(?:\x1c\x1c\x00\x00){3}\x00")
HEADER_BYTES_MAX: Final = 19


def filter_of(keys: pa.ChunkedArray) -> bytes:
    """Make the filter of a row group's keys, as the Parquet library would write it; empty if none.

    The library makes filters only while it writes a column, so it writes one, into memory.
    """
    if keys.null_count == len(keys):
        return b""
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"key": keys}),
        sink,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        row_group_size=len(keys),
        bloom_filter_options={"key": _OPTIONS},
    )
    written = sink.getvalue()
    column = pq.read_metadata(pa.BufferReader(written)).row_group(0).column(0)
    start = column.bloom_filter_offset
    return bytes(written[start : start + column.bloom_filter_length])


class Probe(NamedTuple):
    """A key as every filter is asked for it: its hash is worked out once."""

    key: bytes
    upper: int
    bits: int
    """Its bits of a block, the block taken as one little-endian number."""


def probe(key: bytes) -> Probe:
    """Hash a key."""
    hashed = xxh64(key)
    lower = hashed & 0xFFFFFFFF
    bits = 0
    for word, salt in enumerate(_SALT):
        bits |= 1 << (32 * word + ((lower * salt & 0xFFFFFFFF) >> 27))
    return Probe(key, hashed >> 32, bits)


def blocks_of(stored: bytes) -> bytes | None:
    """Return the blocks of a filter as it is in the file, or None if it is not understood."""
    match = _HEADER.match(stored)
    if match is None:
        return None
    blocks = stored[match.end() :]
    whole = len(blocks) == _zigzag(match[1]) and blocks and not len(blocks) % _BLOCK_BYTES
    return blocks if whole else None


def may_hold(blocks: bytes, wanted: Probe) -> bool:
    """Return whether a key may be among those of a filter; False is certain."""
    start = (wanted.upper * (len(blocks) // _BLOCK_BYTES) >> 32) * _BLOCK_BYTES
    block = int.from_bytes(blocks[start : start + _BLOCK_BYTES], "little")
    return block & wanted.bits == wanted.bits


def _zigzag(varint: bytes) -> int:
    value = 0
    for position, byte in enumerate(varint):
        value |= (byte & 0x7F) << (7 * position)
    return (value >> 1) ^ -(value & 1)


# XXH64, seed 0. A single key is hashed for a lookup, so that plain Python is quick enough.

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_PRIME_1: Final = 0x9E3779B185EBCA87
_PRIME_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME_3: Final = 0x165667B19E3779F9
_PRIME_4: Final = 0x85EBCA77C2B2AE63
_PRIME_5: Final = 0x27D4EB2F165667C5
_LANES: Final = (_PRIME_1 + _PRIME_2 & _MASK, _PRIME_2, 0, -_PRIME_1 & _MASK)


def xxh64(data: bytes) -> int:
    """Return the XXH64 hash of some bytes, with seed 0."""
    length, position = len(data), 0
    hashed = _PRIME_5
    if length >= 32:
        lanes = list(_LANES)
        for position in range(0, length - 31, 32):
            words = struct.unpack_from("<4Q", data, position)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        position += 32
        turned = zip(lanes, (1, 7, 12, 18), strict=True)
        hashed = sum(_rotate_left(lane, by) for lane, by in turned) & _MASK
        for lane in lanes:
            hashed = ((hashed ^ _round(0, lane)) * _PRIME_1 + _PRIME_4) & _MASK
    return _avalanche(_rest(hashed + length & _MASK, data, position))


def _rest(hashed: int, data: bytes, position: int) -> int:
    """Take in the bytes behind the last stripe of 32."""
    while position + 8 <= len(data):
        hashed ^= _round(0, int.from_bytes(data[position : position + 8], "little"))
        hashed = (_rotate_left(hashed, 27) * _PRIME_1 + _PRIME_4) & _MASK
        position += 8
    if position + 4 <= len(data):
        hashed ^= int.from_bytes(data[position : position + 4], "little") * _PRIME_1 & _MASK
        hashed = (_rotate_left(hashed, 23) * _PRIME_2 + _PRIME_3) & _MASK
        position += 4
    for byte in data[position:]:
        hashed ^= byte * _PRIME_5 & _MASK
        hashed = _rotate_left(hashed, 11) * _PRIME_1 & _MASK
    return hashed


def _avalanche(hashed: int) -> int:
    hashed = (hashed ^ hashed >> 33) * _PRIME_2 & _MASK
    hashed = (hashed ^ hashed >> 29) * _PRIME_3 & _MASK
    return hashed ^ hashed >> 32


def _round(lane: int, word: int) -> int:
    return _rotate_left((lane + word * _PRIME_2) & _MASK, 31) * _PRIME_1 & _MASK


def _rotate_left(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK
