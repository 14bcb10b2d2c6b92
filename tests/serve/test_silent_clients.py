"""Clients that do not read, say nothing, or vanish: the server serves the others.

After each of them a client that behaves is served, and nothing is left of it.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lakebed.errors import LakebedError, QuotaExceededError
from lakebed.wire.protocol import pack
from tests.serve.raw import RAW, STREAMS_MAX, Raw, error_of, run_small, some, unharmed
from tests.serve.support import ServerProcess, check_serves, line_of, python, raw_socket
from tests.waiting import until

MIB = 1 << 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run a server with small limits."""
    yield from run_small(tmp_path_factory.mktemp("bad") / "log")


@pytest.fixture
def server(running: ServerProcess) -> Iterator[ServerProcess]:
    """Return the server, and see afterwards that nothing came of what was done to it."""
    yield from unharmed(running)


def test_a_client_that_does_not_read_its_acknowledgements_holds_up_nobody(
    server: ServerProcess,
) -> None:
    """Others get theirs, however many such clients there are; their writes are not lost."""
    with server.open() as log:
        log.get_or_create_topic("silent")
    before = server.resident_bytes
    url = f"grpc://127.0.0.1:{server.port}"
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(python(_NEVER_READING, url, 1_000_000)) for _ in range(3)]
        for process in processes:
            assert line_of(process) == "begun"
        with server.open() as log:
            for number in range(50):
                log.append("good", b"%d" % number)
        assert server.resident_bytes - before < 200 * MIB


_NEVER_READING = """
import sys
import msgpack, pyarrow as pa, pyarrow.flight as fl
client = fl.connect(sys.argv[1])
schema = pa.schema([pa.field("value", pa.binary())])
writer, reader = client.do_put(fl.FlightDescriptor.for_path("silent"), schema)
batch = pa.record_batch([pa.array([b"v"], pa.binary())], schema=schema)
writer.write_batch(batch)
refused = msgpack.packb([1, "unheard of " + "x" * 200])
for number in range(int(sys.argv[2])):
    if number == 5000:
        print("begun", flush=True)
    writer.write_with_metadata(batch, refused)
"""


def test_a_client_that_does_not_read_what_it_asked_for_costs_little_memory(
    server: ServerProcess,
) -> None:
    """A stream is read from the log as its client takes it."""
    ticket = fl.Ticket(pack({"call": "range", "topic": "large", "partition": 0, "offset": 0}))
    with Raw(server) as raw:
        raw.client.do_get(ticket).read_all()  # so that what is cached is in memory
        before = server.resident_bytes
        readers = [raw.client.do_get(ticket) for _ in range(8)]
        for reader in readers:
            reader.read_chunk()
        check_serves(server)
        check_serves(server)
        # All that these ask for is 512 MiB.
        assert server.resident_bytes - before < 300 * MIB
        for reader in readers:
            reader.cancel()


# Clients that vanish

_VANISHING = """
import sys
import pyarrow as pa, pyarrow.flight as fl
import msgpack
url, kind = sys.argv[1:]
client = fl.connect(url)
if kind == "put":
    schema = pa.schema([pa.field("value", pa.binary())])
    writer, reader = client.do_put(fl.FlightDescriptor.for_path("vanish"), schema)
    batch = pa.record_batch([pa.array([bytes(1000)] * 100, pa.binary())], schema=schema)
    writer.write_batch(batch)
    reader.read()
    print("begun", flush=True)
    while True:
        writer.write_batch(batch)
ticket = {"call": kind, "topic": "large", "partition": 0, "offset": 0}
reader = client.do_get(fl.Ticket(msgpack.packb(ticket)))
reader.read_chunk()
print("begun", flush=True)
while True:
    pass
"""


@pytest.mark.parametrize("kind", ["put", "range", "follow"])
def test_a_client_that_is_killed_leaves_nothing_behind(server: ServerProcess, kind: str) -> None:
    """What it had sent is written or not, whole batches; its streams are given back."""
    with server.open() as log:
        log.get_or_create_topic("vanish")
    with contextlib.ExitStack() as stack:
        url = f"grpc://127.0.0.1:{server.port}"
        for _ in range(2):
            process = stack.enter_context(python(_VANISHING, url, kind))
            assert line_of(process) == "begun"
    with server.open() as log:
        assert log.offsets("vanish")[0][1] % 100 == 0
    _wait_for_room(server, STREAMS_MAX)


def _wait_for_room(server: ServerProcess, count: int) -> None:
    """See that so many streams can be opened: that none is held by nobody."""

    def free() -> bool:
        with Raw(server) as raw, contextlib.ExitStack() as stack:
            outcomes = (_idle(raw, stack) for _ in range(count))
            return not any(isinstance(each, QuotaExceededError) for each in outcomes)

    until(free, "streams of clients that are gone are still counted")


def _idle(raw: Raw, stack: contextlib.ExitStack) -> LakebedError | None:
    """Open a put stream, and see that it is served; return the error if it is not."""
    try:
        writer, reader = raw.client.do_put(fl.FlightDescriptor.for_path("good"), RAW)
    except pa.ArrowException as error:  # it may be refused before its first message is out
        return error_of(error)
    try:
        writer.write_batch(some(0))
        assert reader.read() is not None or writer.close()
    except pa.ArrowException as error:
        with contextlib.suppress(pa.ArrowException):
            writer.close()
        return error_of(error)
    stack.callback(writer.close)
    return None


def test_a_client_that_does_not_end_its_stream_does_not_keep_a_server_from_ending(
    tmp_path: Path,
) -> None:
    """It is told that the server stops, and waited for no longer than `stop_timeout_ms`."""
    toml = "[lake]\niceberg = false\n"
    with ServerProcess(tmp_path / "log", "stop_timeout_ms=200", toml=toml) as server:
        check_serves(server)
        with Raw(server) as raw, contextlib.ExitStack() as stack:
            assert _idle(raw, stack) is None
            assert server.stop() == 0
            server.start()
            check_serves(server)
            stack.pop_all()  # the stream is gone with the server that had it
    assert "calls did not end in time" in server.said


def test_more_streams_than_allowed_are_refused_and_the_others_served(
    server: ServerProcess,
) -> None:
    """Idle streams use up their number, not the server: calls go on, and the streams in it too."""
    _wait_for_room(server, STREAMS_MAX)
    with Raw(server) as raw, contextlib.ExitStack() as stack:
        outcomes = [_idle(raw, stack) for _ in range(STREAMS_MAX + 5)]
        refused = [each for each in outcomes if each is not None]
        assert len(refused) == 5
        assert all(isinstance(each, QuotaExceededError) for each in refused), refused
        assert raw.action("topics", b"")
    _wait_for_room(server, STREAMS_MAX)


def test_hundreds_of_connections_that_say_nothing_hold_up_nobody(server: ServerProcess) -> None:
    """Half-open connections, and those that begin to speak and stop in the middle."""
    with contextlib.ExitStack() as stack:
        for number in range(200):
            connection = stack.enter_context(raw_socket(server))
            if number % 2:
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\xff")
        check_serves(server)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        random.Random(2).randbytes(100_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.Random(3).randbytes(100_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 1000,
    ],
    ids=["http", "tls", "random", "random after the preface", "settings"],
)
def test_garbage_on_the_port_is_dropped(server: ServerProcess, data: bytes) -> None:
    """Bytes that are not gRPC end their connection, and nothing else."""
    with raw_socket(server) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
        except OSError as error:  # the server may be quicker to hang up
            assert not isinstance(error, TimeoutError)
    check_serves(server)
