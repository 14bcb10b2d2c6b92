"""A Flight client without Arrow: it puts any bytes into the messages of a stream.

pyarrow's client writes only what Arrow can represent. A hostile client need not use it, so these
tests write `FlightData` themselves:

    FlightData { 1: FlightDescriptor, 2: data_header, 3: app_metadata, 1000: data_body }
    FlightDescriptor { 1: type (1 is a path), 3: path }
    PutResult { 1: app_metadata }
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import grpc
import pyarrow as pa

from lakebed.wire.protocol import unpack, unpack_error
from tests.serve.support import ServerProcess
from tests.waiting import PATIENCE_SECONDS

_PUT = "/arrow.flight.protocol.FlightService/DoPut"
_CONTINUATION = b"\xff\xff\xff\xff"
_INFORMATION = "grpc-status-details-bin", "x-arrow-status-detail-bin"


class Message(NamedTuple):
    """An IPC message: its flatbuffer, and the buffers behind it."""

    header: bytes
    body: bytes = b""
    metadata: bytes = b""


def split(encapsulated: bytes) -> Message:
    """Take an encapsulated IPC message apart."""
    assert encapsulated[:4] == _CONTINUATION
    (size,) = struct.unpack_from("<i", encapsulated, 4)
    return Message(encapsulated[8 : 8 + size], encapsulated[8 + size :])


def messages(batch: pa.RecordBatch) -> list[Message]:
    """Return the messages of a stream of one batch: its schema, its dictionaries, the batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return [
        split(message.serialize().to_pybytes())
        for message in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]


def flight_data(message: Message, topic: str | None = None) -> bytes:
    """Encode a message; the first one of a stream names its topic."""
    descriptor = b"" if topic is None else _field(1, b"\x08\x01" + _field(3, topic.encode()))
    header, body = _field(2, message.header), _field(1000, message.body)
    return descriptor + header + (message.metadata and _field(3, message.metadata)) + body


def put(server: ServerProcess, topic: str, sent: Sequence[Message], *, token: str = "") -> Any:
    """Put messages as one stream; return the answers, or the error that ended it."""
    headers = [("authorization", f"Bearer {token}")] if token else None
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", options) as channel:
        call = channel.stream_stream(_PUT)  # bytes in, bytes out
        try:
            replies = list(call(_requests(topic, sent), timeout=PATIENCE_SECONDS, metadata=headers))
        except grpc.RpcError as error:
            return _error_of(error)
    return [answer for reply in replies for answer in unpack(_only_field(reply))]


def _requests(topic: str, sent: Sequence[Message]) -> Iterator[bytes]:
    for index, message in enumerate(sent):
        yield flight_data(message, None if index else topic)


def _error_of(error: Any) -> Any:
    """Return the error that the server meant; gRPC's own if it did not mean one."""
    for name, value in error.trailing_metadata() or ():
        if name in _INFORMATION and isinstance(value, bytes):
            start = value.find(b"\x83\xa4code")  # msgpack: a map of three, beginning with `code`
            if start >= 0:
                return unpack_error(value[start:])
    return error


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _only_field(message: bytes) -> bytes:
    """Return the one field of a message."""
    position, size, shift = 1, 0, 0
    while True:
        byte = message[position]
        position += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return message[position : position + size]
