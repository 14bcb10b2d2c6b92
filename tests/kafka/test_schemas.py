"""Messages are read and written as kio's own code does it, and hostile lengths cost nothing."""

from __future__ import annotations

import contextlib
import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.index import api_key_map, schema_name_map
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer

from lakebed.kafka import apis
from lakebed.kafka.handlers import OFFERED
from lakebed.kafka.schemas import BadRequestError, KafkaFrame, answer_writer, request_reader
from lakebed.kafka.services import address_for_clients
from lakebed.kafka.wire import KafkaRequest, read_request, write_answer


def head(key: int, version: int, *, flexible: bool = True) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1) + (b"\0" if flexible else b"")


def test_a_request_is_read_as_kio_writes_it() -> None:
    buffer = io.BytesIO()
    topics = (MetadataRequestTopic(topic_id=None, name=TopicName("orders")),)
    entity_writer(MetadataRequest)(
        buffer,
        MetadataRequest(
            topics=topics,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        ),
    )
    request = read_request(head(apis.METADATA, 12) + buffer.getvalue(), OFFERED)
    assert (request.key, request.version, request.correlation) == (3, 12, 7)
    assert request.body.topics[0].name == "orders"
    assert request.body.allow_auto_topic_creation is False


def test_an_answer_is_written_as_kio_reads_it() -> None:
    answer = {
        "brokers": [{"node_id": 1, "host": "here", "port": 9092}],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [{"name": "t", "topic_id": b"i" * 16, "partitions": [{"partition_index": 3}]}],
    }
    data = bytes(write_answer(KafkaRequest(apis.METADATA, 12, 7, "", ()), answer))
    found, size = entity_reader(MetadataResponse)(data, 9)
    assert size == len(data) - 9
    assert (found.brokers[0].host, found.topics[0].partitions[0].partition_index) == ("here", 3)


@pytest.mark.parametrize("key", list(OFFERED), ids=lambda key: api_key_map[key])
def test_every_version_that_is_offered_has_a_reader_and_an_empty_answer(key: int) -> None:
    api = OFFERED[key]
    for version in schema_name_map[api.name]:
        if api.least <= version <= api.most:
            request_reader(key, version)
            write, _ = answer_writer(key, version)
            write(bytearray(), {})


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">i", 2**31 - 1) + b"\0\1a",
        struct.pack(">i", 1000) + b"\0\1a",
        struct.pack(">i", 1) + b"\x7f\xffa",
        struct.pack(">i", 1) + b"\xff\xff",
        b"",
    ],
)
def test_lengths_that_a_request_does_not_have_are_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        read_request(head(apis.METADATA, 1, flexible=False) + body, OFFERED)


def test_a_compact_array_of_billions_is_refused() -> None:
    with pytest.raises(BadRequestError):
        read_request(head(apis.METADATA, 12) + b"\xff\xff\xff\xff\x0f" + b"abc", OFFERED)


@given(st.sampled_from(sorted(OFFERED)), st.integers(-1, 20), st.binary(max_size=200))
def test_a_request_of_any_bytes_is_read_or_refused(key: int, version: int, body: bytes) -> None:
    with contextlib.suppress(BadRequestError):
        read_request(head(key, version) + body, OFFERED)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0() -> None:
    request = read_request(head(apis.API_VERSIONS, 99), OFFERED)
    data = write_answer(request, {"error_code": 35, "api_keys": [{"api_key": 3}]})
    assert struct.unpack_from(">iihihhh", data) == (len(data) - 4, 7, 35, 1, 3, 0, 0)


def test_elements_of_all_arrays_are_limited() -> None:
    frame = KafkaFrame(bytes(1 << 20))
    with pytest.raises(BadRequestError):
        for _ in range(200):
            frame.count(1000, 0)


@pytest.mark.parametrize(
    ("setting", "name", "local", "expected"),
    [
        ("broker:9", "tls", ("10.0.0.1", 1), ("broker", 9)),
        ("[::1]:9", None, ("10.0.0.1", 1), ("::1", 9)),
        ("", "tls", ("10.0.0.1", 1), ("tls", 1)),
        ("", None, ("10.0.0.1", 1), ("10.0.0.1", 1)),
        ("", None, ("::ffff:10.0.0.1", 1, 0, 0), ("10.0.0.1", 1)),
        ("", None, ("fe80::1%eth0", 1, 0, 2), ("fe80::1", 1)),
    ],
)
def test_the_advertised_address(setting: str, name: Any, local: Any, expected: Any) -> None:
    assert address_for_clients(setting, name, local) == expected
