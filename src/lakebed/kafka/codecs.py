"""Compression of record batches, by pyarrow, with a bound on what comes out.

gzip, lz4 and zstd are read as streams that stop at the bound. Snappy has no stream, but says how
long its output is. Java frames it in blocks (xerial), librdkafka does not: both are read.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from lakebed.kafka.codes import (
    CORRUPT_MESSAGE,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
    Refusal,
)

_STREAMS: Final = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY: Final = 2
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = 16


def decompress(codec: int, data: bytes, bytes_max: int) -> bytes:
    """Return the decompressed records of a batch.

    Raises:
        Refusal: they have more than `bytes_max` bytes, or cannot be decompressed.
    """
    if codec == 0:
        return data
    try:
        if codec == _SNAPPY:
            return _unsnap(data, bytes_max)
        if codec not in _STREAMS:
            raise Refusal(UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec} is not known")
        with pa.CompressedInputStream(pa.BufferReader(data), _STREAMS[codec]) as stream:
            content: bytes = stream.read(bytes_max + 1)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise Refusal(CORRUPT_MESSAGE, f"the records cannot be decompressed: {error}") from error
    if len(content) > bytes_max:
        raise _too_large(bytes_max)
    return content


def _unsnap(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _unsnap_block(data, bytes_max)
    blocks: list[bytes] = []
    left, position = bytes_max, _XERIAL_HEAD
    while position < len(data):
        if position + 4 > len(data):
            raise Refusal(CORRUPT_MESSAGE, "a snappy block is cut short")
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if length < 0 or position + length > len(data):
            raise Refusal(CORRUPT_MESSAGE, "a snappy block is cut short")
        block = _unsnap_block(data[position : position + length], left)
        blocks.append(block)
        left -= len(block)
        position += length
    return b"".join(blocks)


def _unsnap_block(data: bytes, bytes_max: int) -> bytes:
    length = shift = 0
    for byte in data[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if length > bytes_max:
        raise _too_large(bytes_max)
    content: bytes = pa.Codec("snappy").decompress(data, decompressed_size=length, asbytes=True)
    return content


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(MESSAGE_TOO_LARGE, f"the records take more than {bytes_max} bytes")
