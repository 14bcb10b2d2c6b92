"""A Kafka client of raw bytes, which can also send what no client sends."""

from __future__ import annotations

import socket
import struct

from lakebed.kafka.schemas import BadRequestError
from tests.waiting import PATIENCE_SECONDS


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)


def frame(key: int, version: int, body: bytes, correlation: int = 1) -> bytes:
    data = struct.pack(">hhih", key, version, correlation, -1) + body
    return struct.pack(">i", len(data)) + data


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError("the server has closed the connection")
        data += more
    return data


def read_answer(connection: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", read_exactly(connection, 4))
    return read_exactly(connection, length)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server closes the connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


__all__ = ["BadRequestError", "connect", "frame", "is_closed", "read_answer", "read_exactly"]
