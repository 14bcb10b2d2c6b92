"""Clients that do not follow the protocol lose their connection, and no other client notices."""

from __future__ import annotations

import random
import struct

import pytest

from lakebed.kafka import apis
from tests.kafka.raw import connect, frame, is_closed, read_answer
from tests.serve.support import ServerProcess

METADATA_1 = frame(apis.METADATA, 1, struct.pack(">i", 0))


def check_serves(server: ServerProcess) -> None:
    with connect(server.kafka_port) as connection:
        connection.sendall(METADATA_1)
        assert read_answer(connection)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1) + bytes(8),
        struct.pack(">i", 0) + bytes(8),
        struct.pack(">i", 2**31 - 1) + bytes(8),
        struct.pack(">ih", 500 * 1024 * 1024, apis.PRODUCE) + bytes(8),
        struct.pack(">ih", 9 * 1024 * 1024, apis.METADATA) + bytes(8),
        frame(999, 0, b""),
        frame(apis.METADATA, 99, b""),
        frame(apis.METADATA, 1, struct.pack(">i", 2**31 - 1)),
        frame(apis.METADATA, 12, b"\0\xff\xff\xff\xff\x0f"),
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    ],
)
def test_a_bad_frame_closes_its_connection(server: ServerProcess, data: bytes) -> None:
    with connect(server.kafka_port) as connection:
        connection.sendall(data)
        assert is_closed(connection)
    check_serves(server)


def test_random_frames_never_stop_the_server(server: ServerProcess) -> None:
    chance = random.Random(7)
    for _ in range(300):
        with connect(server.kafka_port) as connection:
            key, version = chance.choice([0, 1, 2, 3, 8, 9, 10, 11, 14, 18, 19, 22, 32, 60]), 0
            version = chance.randint(0, 13)
            connection.sendall(frame(key, version, chance.randbytes(chance.randint(0, 200))))
    assert server.alive
    check_serves(server)
    assert "Traceback" not in server.said


def test_half_a_frame_holds_up_nobody(server: ServerProcess) -> None:
    with connect(server.kafka_port) as half:
        half.sendall(METADATA_1[:7])
        check_serves(server)
        half.sendall(METADATA_1[7:])
        assert read_answer(half)


def test_answers_come_in_the_order_of_requests(server: ServerProcess) -> None:
    with connect(server.kafka_port) as connection:
        requests = [frame(apis.METADATA, 1, struct.pack(">i", 0), each) for each in range(100)]
        connection.sendall(b"".join(requests))
        found = [struct.unpack_from(">i", read_answer(connection))[0] for _ in requests]
    assert found == list(range(100))


def test_old_versions_of_produce_are_answered_with_an_error(server: ServerProcess) -> None:
    """librdkafka would not compress if they were not offered."""
    body = struct.pack(">hi", 1, 1000) + struct.pack(">ih", 1, 1) + b"t"
    body += struct.pack(">iii", 1, 0, 4) + b"abcd"
    with connect(server.kafka_port) as connection:
        connection.sendall(frame(apis.PRODUCE, 2, body))
        answer = read_answer(connection)
    assert struct.unpack_from(">iih1siihqqi", answer) == (1, 1, 1, b"t", 1, 0, 35, -1, -1, 0)


def test_connections_beyond_the_limit_do_not_stop_those_within(tmp_path: object) -> None:
    with ServerProcess(tmp_path / "log", "connections_max=20", kafka_port=0) as server:  # type: ignore[operator]
        crowd = [connect(server.kafka_port) for _ in range(60)]
        try:
            check_serves(server)
        finally:
            for each in crowd:
                each.close()
        check_serves(server)
