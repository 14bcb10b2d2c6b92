"""Kafka connections of the crowd: one Produce request with one record in flight each."""

from __future__ import annotations

import os
import socket
import struct

from crc32c import crc32c

from bench.peers import RECORD_BYTES

_PARTITIONS = 4
_TOPIC = b"events"
_ERROR_AT = 4 + 4 + 4 + 2 + len(_TOPIC) + 4 + 4
"""Where the answer to one partition has its error code, from the frame's length on."""


def _frame(key: int, version: int, body: bytes) -> bytes:
    data = struct.pack(">hhih", key, version, 1, -1) + body
    return struct.pack(">i", len(data)) + data


def _batch(value: bytes, producer: int, epoch: int, sequence: int) -> bytes:
    """Return a record batch of one record without a key."""
    size = len(value)
    record = b"\0\0\0\1" + bytes((size << 1 & 0x7F | 0x80, size << 1 >> 7)) + value + b"\0"
    length = len(record)
    records = bytes((length << 1 & 0x7F | 0x80, length << 1 >> 7)) + record
    time_ms = 1_700_000_000_000
    checked = struct.pack(">hiqqqhii", 0, 0, time_ms, time_ms, producer, epoch, sequence, 1)
    checked += records
    head = struct.pack(">qiibI", 0, 9 + len(checked), 0, 2, crc32c(checked))
    return head + checked


class KafkaProduce:
    """Produce, version 7; acknowledged when the record is on disk."""

    is_idempotent = False

    def __init__(self, connection: socket.socket, number: int) -> None:
        self._partition = number % _PARTITIONS
        self._value = os.urandom(RECORD_BYTES)
        self._identity = (-1, -1)
        self._sequence = -1
        if self.is_idempotent:
            connection.sendall(_frame(22, 0, struct.pack(">hi", -1, 60_000)))
            answer = connection.recv(65_536)
            _, producer, epoch = struct.unpack_from(">hqh", answer, 12)
            self._identity, self._sequence = (producer, epoch), 0
        self._request = self._build()

    def record(self) -> bytes:
        """Return the next request."""
        if not self.is_idempotent:
            return self._request
        request = self._build()
        self._sequence += 1
        return request

    def _build(self) -> bytes:
        batch = _batch(self._value, *self._identity, self._sequence)
        body = struct.pack(">hhi", -1, -1, 60_000) + struct.pack(">ih", 1, len(_TOPIC)) + _TOPIC
        body += struct.pack(">iii", 1, self._partition, len(batch)) + batch
        return _frame(0, 7, body)


class IdempotentProduce(KafkaProduce):
    """The same, under a producer id with sequence numbers."""

    is_idempotent = True


def count_answers(buffer: bytes) -> tuple[int, bytes]:
    """Return how many whole answers there are, and what is left behind them."""
    count = at = 0
    while len(buffer) - at >= 4:
        (length,) = struct.unpack_from(">i", buffer, at)
        if len(buffer) - at - 4 < length:
            break
        (code,) = struct.unpack_from(">h", buffer, at + _ERROR_AT)
        if code:
            raise RuntimeError(f"the server refused a record: error code {code}")
        at += 4 + length
        count += 1
    return count, buffer[at:]
