"""Requests and answers as frames: headers, versions, and the exceptions that ApiVersions needs.

    request:  length i32 | key i16 | version i16 | correlation i32 | client id | tags | body
    answer:   length i32 | correlation i32 | tags | body

Tags are there if the version of the message is a flexible one; the answer to ApiVersions never has
them, since a client that asks for it does not know the server yet. An ApiVersions request of an
unknown version is answered in version 0 with UNSUPPORTED_VERSION, and any other one closes the
connection, as in Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lakebed.kafka import apis
from lakebed.kafka.codes import UNSUPPORTED_VERSION
from lakebed.kafka.schemas import (
    BadRequestError,
    KafkaFrame,
    answer_writer,
    read_varint,
    request_reader,
)

_HEAD: Final = struct.Struct(">hhih")
_LENGTH: Final = struct.Struct(">i")
_PRODUCE_LEAST: Final = 3
_NO_TRANSACTION: Final = b"\xff\xff"


class KafkaRequest(NamedTuple):
    """One parsed request."""

    key: int
    version: int
    correlation: int
    client: str
    body: Any
    """None if the version is not served; then the answer says so."""


def read_request(data: bytes, offered: Mapping[int, apis.Api]) -> KafkaRequest:
    """Parse a request.

    Raises:
        BadRequestError: it is malformed, or of an API or version that is not served.
    """
    try:
        return _read(data, offered)
    except (IndexError, struct.error, ValueError, OverflowError) as error:
        raise BadRequestError("a request ends early") from error


def _read(data: bytes, offered: Mapping[int, apis.Api]) -> KafkaRequest:
    key, version, correlation, length = _HEAD.unpack_from(data)
    api = offered.get(key)
    if api is None:
        raise BadRequestError(f"API {key} is not served")
    if not api.least <= version <= api.most:
        if key == apis.API_VERSIONS:
            return KafkaRequest(key, version, correlation, "", None)
        raise BadRequestError(f"{api.name} has no version {version} here")
    position = _HEAD.size
    client = ""
    if length > 0:
        client, position = (
            data[position : position + length].decode("utf8", "replace"),
            position + length,
        )
    frame = KafkaFrame(data)
    if key == apis.PRODUCE and version < _PRODUCE_LEAST:
        # The same as version 3, but for the name of a transaction in front.
        frame.data = data[:position] + _NO_TRANSACTION + data[position:]
        read, _ = request_reader(key, _PRODUCE_LEAST)
    else:
        read, flexible = request_reader(key, version)
        if flexible:
            position = _skip_tags(frame, position)
    body, _ = read(frame, position)
    return KafkaRequest(key, version, correlation, client, body)


def _skip_tags(frame: KafkaFrame, position: int) -> int:
    count, position = read_varint(frame.data, position)
    for _ in range(frame.count(count, position)):
        _, position = read_varint(frame.data, position)
        size, position = read_varint(frame.data, position)
        position += size
    return position


def write_answer(request: KafkaRequest, answer: Mapping[str, Any]) -> bytearray:
    """Return the frame of an answer."""
    version = request.version
    if request.key == apis.API_VERSIONS:
        if request.body is None:
            version = 0
        write, _ = answer_writer(request.key, version)
        has_tags = False
    else:
        write, has_tags = answer_writer(request.key, version)
    out = bytearray(_LENGTH.size)
    out += _LENGTH.pack(request.correlation)
    if has_tags:
        out.append(0)
    write(out, answer)
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return out


def write_old_produce(request: KafkaRequest) -> bytearray:
    """Return the answer to a Produce request of version 0 to 2, whose records are not taken."""
    out = bytearray(_LENGTH.size)
    out += _LENGTH.pack(request.correlation)
    out += _LENGTH.pack(len(request.body.topic_data))
    for topic in request.body.topic_data:
        name = topic.name.encode()
        out += struct.pack(">h", len(name)) + name + _LENGTH.pack(len(topic.partition_data))
        for partition in topic.partition_data:
            out += struct.pack(">ihq", partition.index, UNSUPPORTED_VERSION, -1)
            if request.version >= 2:
                out += struct.pack(">q", -1)
    if request.version >= 1:
        out += _LENGTH.pack(0)
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return out
