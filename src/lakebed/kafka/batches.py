"""Record batches (magic 2): what Produce brings and Fetch returns.

    base offset i64 | length i32 | leader epoch i32 | magic i8 | CRC-32C u32 | attributes i16 |
    last offset delta i32 | base time i64 | max time i64 | producer i64 | producer epoch i16 |
    base sequence i32 | records i32 | records, perhaps compressed

`length` counts what follows it, and the checksum covers what follows itself. Bits 0 to 2 of the
attributes are the codec, bit 3 says that the broker has set the time, bit 4 that the batch belongs
to a transaction, bit 5 that it is a control batch.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import crc32c

from lakebed.kafka.codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
    Refusal,
)

HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_CHECKED_FROM: Final = 21
"""Where that begins which the checksum covers."""
_LENGTH_FROM: Final = 12
_MAGIC_AT: Final = 16
_MAGIC: Final = 2
_CODEC: Final = 0x07
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


class BatchHead(NamedTuple):
    """The head of a record batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_time_ms: int
    max_time_ms: int
    producer: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def codec(self) -> int:
        """How the records are compressed; 0 if they are not."""
        return self.attributes & _CODEC

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)


def read_head(data: bytes) -> BatchHead:
    """Return the head of the one batch that a partition of a Produce request has.

    Everything that can be checked without its records is checked: `Refusal` says what is wrong.
    """
    if len(data) > _MAGIC_AT and data[_MAGIC_AT] != _MAGIC:
        raise Refusal(UNSUPPORTED_FOR_MESSAGE_FORMAT, f"magic {data[_MAGIC_AT]} is not supported")
    if len(data) < HEAD.size:
        raise Refusal(CORRUPT_MESSAGE, "a batch is shorter than its head")
    head = BatchHead._make(HEAD.unpack_from(data))
    if head.length != len(data) - _LENGTH_FROM:
        if 0 < head.length < len(data) - _LENGTH_FROM:
            raise Refusal(INVALID_RECORD, "a partition may have one batch in a request")
        raise Refusal(CORRUPT_MESSAGE, "the length of a batch is wrong")
    if crc32c.crc32c(memoryview(data)[_CHECKED_FROM:]) != head.checksum:
        raise Refusal(CORRUPT_MESSAGE, "the checksum of a batch is wrong")
    if head.attributes & _CONTROL:
        raise Refusal(INVALID_RECORD, "a client may not write a control batch")
    if head.records < 1 or head.last_offset_delta != head.records - 1:
        raise Refusal(INVALID_RECORD, "the count of records does not fit their offsets")
    return head


def build_batch(
    records: bytes | memoryview,
    *,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_time_ms: int,
    max_time_ms: int,
) -> bytes:
    """Return a batch of encoded records, uncompressed."""
    head = HEAD.pack(
        base_offset,
        HEAD.size - _LENGTH_FROM + len(records),
        0,
        _MAGIC,
        0,
        0,
        last_offset_delta,
        base_time_ms,
        max_time_ms,
        -1,
        -1,
        -1,
        count,
    )
    checksum = crc32c.crc32c(records, crc32c.crc32c(head[_CHECKED_FROM:]))
    return b"".join(
        (head[: _CHECKED_FROM - 4], checksum.to_bytes(4, "big"), head[_CHECKED_FROM:], records)
    )
