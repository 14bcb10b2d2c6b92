"""Many connections, each with one record on its way at a time: in a process of its own.

What is measured shares two cores with this, so this does little: one thread, sockets that do not
block, and of each protocol only what one record needs. Of gRPC that is an HTTP/2 stream with a
message in a frame; a thousand Flight clients of pyarrow need more of the two cores than the server.

    python -m bench.crowd KIND PORT CONNECTIONS SECONDS

It prints `ready` when all connections have had a record acknowledged, begins when a line comes,
and prints its figures as JSON.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from bench import rabbit
from bench.crowd_kafka import IdempotentProduce, KafkaProduce, count_answers
from bench.peers import RECORD_BYTES
from lakebed.topic.schema import storage_schema

_WARM_SECONDS = 1.0
"""At the beginning, and not counted."""
_PATIENCE_SECONDS = 60.0
_RECV_BYTES = 65_536
_PARTITIONS = 4


class Caller(ABC):
    """One connection: what it sends for its next record, and whether that is acknowledged."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_at = 0.0
        self._number = 0
        self._buffer = b""

    def send(self) -> None:
        """Send the next record."""
        self._number += 1
        self.sent_at = time.perf_counter()
        # A record is far smaller than a socket's buffer, which is empty: the last one was answered.
        self.socket.sendall(self.record(self._number))

    def receive(self) -> int:
        """Take what came; return how many acknowledgements were in it."""
        data = self.socket.recv(_RECV_BYTES)
        if not data:
            raise ConnectionError("the server hung up")
        self._buffer += data
        return self.acknowledged()

    @abstractmethod
    def record(self, number: int) -> bytes:
        """Return a record as it travels."""

    @abstractmethod
    def acknowledged(self) -> int:
        """Count the acknowledgements in what came, and drop them from it."""


# Arrow Flight: HTTP/2 frames (RFC 9113) with messages of gRPC, which are protocol buffers

_DATA, _SETTINGS, _RST, _PING, _GOAWAY, _HEADERS = 0x0, 0x4, 0x3, 0x6, 0x7, 0x1
_ACK, _END_STREAM, _END_HEADERS = 0x1, 0x1, 0x4
_STREAM = 1
_WINDOW = (1 << 31) - 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes((number & 0x7F | 0x80,)), number >> 7
    return out + bytes((number,))


def _field(number: int, data: bytes) -> bytes:
    """Return a field of a protocol buffer that is bytes, text or a message."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _text(data: bytes) -> bytes:
    """Return text as it is in a header: not compressed."""
    return bytes((len(data),)) + data


def _message(data: bytes) -> bytes:
    """Return a message of gRPC in a frame."""
    return _frame(_DATA, 0, _STREAM, b"\0" + len(data).to_bytes(4, "big") + data)


def _ipc(encapsulated: pa.Buffer) -> tuple[bytes, bytes]:
    """Take an IPC message apart into its header and its body."""
    data = encapsulated.to_pybytes()
    end = 8 + int.from_bytes(data[4:8], "little")
    return data[8:end], data[end:]


class Flight(Caller):
    """A put stream that sends metadata alone: the kind `record`."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port)
        self._value = os.urandom(RECORD_BYTES)
        self._partition = number % _PARTITIONS
        settings = (4).to_bytes(2, "big") + _WINDOW.to_bytes(4, "big")  # INITIAL_WINDOW_SIZE
        headers = b"\x83\x86"  # :method POST, :scheme http
        headers += b"\x04" + _text(b"/arrow.flight.protocol.FlightService/DoPut")
        headers += b"\x01" + _text(b"127.0.0.1")
        headers += b"\x00" + _text(b"content-type") + _text(b"application/grpc")
        headers += b"\x00" + _text(b"te") + _text(b"trailers")
        schema, _ = _ipc(storage_schema(pa.binary()).serialize())
        descriptor = b"\x08\x01" + _field(3, b"events")  # type PATH, path
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(0x8, 0, 0, (_WINDOW - 65_535).to_bytes(4, "big"))  # WINDOW_UPDATE
            + _frame(_HEADERS, _END_HEADERS, _STREAM, headers)
            + _message(_field(1, descriptor) + _field(2, schema))
        )

    def record(self, number: int) -> bytes:
        """Return a record as metadata."""
        given = [number, "record", self._value, None, None, self._partition, None]
        return _message(_field(3, msgpack.packb(given)))

    def acknowledged(self) -> int:
        """Count the acknowledgements; answer what HTTP/2 wants answered."""
        count, at, data = 0, 0, self._buffer
        while len(data) - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at - 9 < size:
                break
            kind, flags = data[at + 3], data[at + 4]
            payload = data[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == _DATA:
                count += _acks(payload)
            elif kind == _PING and not flags & _ACK:
                self.socket.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _SETTINGS and not flags & _ACK:
                self.socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind in (_RST, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
                raise ConnectionError(f"the server ended the stream: {payload!r}")
        self._buffer = data[at:]
        return count


def _acks(payload: bytes) -> int:
    """Count the acknowledgements in a message; the server writes each in a frame of its own."""
    if not payload:
        return 0
    at = 6  # behind the head of gRPC and the tag of the field
    while payload[at] & 0x80:
        at += 1
    answers = msgpack.unpackb(payload[at + 1 :])
    for _, answer in answers:
        if not isinstance(answer, list):
            raise RuntimeError(f"the server refused a record: {answer!r}")
    return len(answers)


# WebSocket (RFC 6455): one text frame for a record, one for its acknowledgement


class Socket(Caller):
    """A WebSocket of the gateway that writes JSON records."""

    def __init__(self, port: int, _number: int) -> None:
        super().__init__(port)
        self._frame = _masked(json.dumps({"value": "v" * RECORD_BYTES}).encode())
        self.socket.sendall(
            b"GET /v1/topics/events/writer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(_RECV_BYTES)
        if b" 101 " not in answer[:20]:
            raise ConnectionError(f"the server did not upgrade: {answer!r}")

    def record(self, _number: int) -> bytes:
        """Return the frame."""
        return self._frame

    def acknowledged(self) -> int:
        """Count the frames; each is short."""
        count, at, data = 0, 0, self._buffer
        while len(data) - at >= 2 and len(data) - at >= 2 + data[at + 1]:
            size = data[at + 1]
            if size > 125 or b"offset" not in data[at + 2 : at + 2 + size]:
                raise RuntimeError(f"the server refused a record: {data!r}")
            at += 2 + size
            count += 1
        self._buffer = data[at:]
        return count


def _masked(payload: bytes) -> bytes:
    mask = os.urandom(4)
    size = len(payload)
    head = bytes((0x81, 0x80 | size)) if size < 126 else b"\x81\xfe" + size.to_bytes(2, "big")
    return head + mask + bytes(each ^ mask[at & 3] for at, each in enumerate(payload))


# Peers


class RedisAdd(Caller):
    """XADD of one record."""

    def __init__(self, port: int, _number: int) -> None:
        super().__init__(port)
        words = (b"XADD", b"log", b"*", b"v", os.urandom(RECORD_BYTES))
        self._command = b"*5\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in words)

    def record(self, _number: int) -> bytes:
        """Return the command."""
        return self._command

    def acknowledged(self) -> int:
        """Count the ids: a line with their length, and they."""
        count = self._buffer.count(b"\r\n") // 2
        if count:
            if self._buffer[:1] != b"$":
                raise RuntimeError(f"Redis refused a record: {self._buffer!r}")
            self._buffer = b""
        return count


class NatsPublish(Caller):
    """A publish of one record to a stream, with an inbox for its answer."""

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port)
        inbox = b"_INBOX.%d.%d" % (os.getpid(), number)
        self._command = b"PUB log %b %d\r\n%b\r\n" % (inbox, RECORD_BYTES, b"v" * RECORD_BYTES)
        self.socket.sendall(b'CONNECT {"verbose":false}\r\nSUB %b 1\r\n' % inbox)

    def record(self, _number: int) -> bytes:
        """Return the command."""
        return self._command

    def acknowledged(self) -> int:
        """Count the answers; answer a ping."""
        if b"PING\r\n" in self._buffer:
            self.socket.sendall(b"PONG\r\n")
            self._buffer = self._buffer.replace(b"PING\r\n", b"")
        if b"error" in self._buffer or b"-ERR" in self._buffer:
            raise RuntimeError(f"NATS refused a record: {self._buffer!r}")
        count = self._buffer.count(b"}\r\n") if b"MSG " in self._buffer else 0
        if count:
            self._buffer = b""
        return count


class AmqpPublish(Caller):
    """A publish of one record to a queue of RabbitMQ, confirmed."""

    queue = ""

    def __init__(self, port: int, _number: int) -> None:
        super().__init__(port)
        rabbit.Connection(port, self.socket)
        self._command = rabbit.publisher(self.queue)(b"v" * RECORD_BYTES)

    def record(self, _number: int) -> bytes:
        """Return the frames."""
        return self._command

    def acknowledged(self) -> int:
        """Count the confirmations."""
        frames, self._buffer = rabbit.split(self._buffer)
        return sum(1 for frame in frames if rabbit.confirmed(*frame))


class ToQuorum(AmqpPublish):
    """To a quorum queue."""

    queue = "quorum"


class ToStream(AmqpPublish):
    """To a stream."""

    queue = "stream"


class Kafka(Caller):
    """A Kafka producer with one record in flight."""

    produce: type[KafkaProduce] = KafkaProduce

    def __init__(self, port: int, number: int) -> None:
        super().__init__(port)
        self._requests = self.produce(self.socket, number)

    def record(self, _number: int) -> bytes:
        """Return a Produce request."""
        return self._requests.record()

    def acknowledged(self) -> int:
        """Count the answers."""
        count, self._buffer = count_answers(self._buffer)
        return count


class IdempotentKafka(Kafka):
    """The same with an idempotent producer."""

    produce = IdempotentProduce


# The crowd


def in_a_process(kind: str, port: int, count: int, seconds: float) -> Mapping[str, float]:
    """Run the connections in a process of their own; return what it found."""
    command = [sys.executable, "-m", "bench.crowd", kind, *map(str, (port, count, seconds))]
    done = subprocess.run(command, input="begin\n", capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


_KINDS: dict[str, Any] = {
    "socket": Socket,
    "record": Flight,
    "redis": RedisAdd,
    "nats": NatsPublish,
    "rabbit-quorum": ToQuorum,
    "rabbit-stream": ToStream,
    "kafka": Kafka,
    "kafka-idempotent": IdempotentKafka,
}


def crowd(kind: str, port: int, count: int, seconds: float) -> dict[str, float]:
    """Keep a record of each connection on its way; return the rate and the latencies in ms.

    And how much of a core was spent here.
    """
    selector = selectors.DefaultSelector()
    callers: list[Caller] = [_KINDS[kind](port, number) for number in range(count)]
    for caller in callers:
        selector.register(caller.socket, selectors.EVENT_READ, caller)
        caller.send()
    waiting = len(callers)
    while waiting:
        for key, _ in _ready(selector):
            waiting -= key.data.receive()
    print("ready", flush=True)
    sys.stdin.readline()
    for caller in callers:
        caller.send()
    spent = time.process_time()
    warm = time.perf_counter() + _WARM_SECONDS
    end = warm + seconds
    took: list[float] = []
    now = 0.0
    while now < end:
        for key, _ in _ready(selector):
            caller = key.data
            if caller.receive():
                now = time.perf_counter()
                if now > warm:
                    took.append(now - caller.sent_at)
                caller.send()
    ms = 1000 * np.array(took)
    return {
        "rate": len(took) / (now - warm),
        "p50_ms": float(np.percentile(ms, 50)),
        "p99_ms": float(np.percentile(ms, 99)),
        "max_ms": float(ms.max()),
        "own_cpu": (time.process_time() - spent) / (_WARM_SECONDS + seconds),
    }


def _ready(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    found = selector.select(_PATIENCE_SECONDS)
    if not found:
        raise TimeoutError("the server does not answer")
    return found


if __name__ == "__main__":
    _kind, _port, _count, _seconds = sys.argv[1:]
    print(json.dumps(crowd(_kind, int(_port), int(_count), float(_seconds))))
    sys.stdout.flush()
    os._exit(0)  # a thousand connections need not be closed one by one
