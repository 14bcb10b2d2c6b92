"""Clients that do not follow the protocol, do not read, or vanish: the server serves the others.

After each of them a client that behaves is served, the server's log tells what was wrong where it
was the client's fault, nothing failed in an unforeseen way, and nothing was written.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lakebed.errors import (
    FencedError,
    LakebedError,
    ProtocolError,
    QuotaExceededError,
    RecordTooLargeError,
    RejectedError,
    SequenceGapError,
)
from lakebed.serve.calls import CALLS, STREAMS
from lakebed.serve.protocol import MESSAGE_BYTES_MAX, pack, unpack, unpack_error
from tests.serve.support import (
    ServerProcess,
    check_serves,
    eventually,
    line_of,
    python,
    raw_socket,
)

REQUEST_BYTES_MAX = 1 << 20
STREAMS_MAX = 40
RAW = pa.schema([pa.field("value", pa.binary())])
TOPIC = "victim"
MIB = 1 << 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run a server with small limits."""
    folder = tmp_path_factory.mktemp("bad") / "log"
    settings = (f"request_bytes_max={REQUEST_BYTES_MAX}", f"connections_max={STREAMS_MAX}")
    with ServerProcess(folder, *settings, toml="[lake]\niceberg = false\n") as server:
        with server.open() as log:
            log.create_topic(TOPIC)
            log.create_topic("typed", schema=pa.schema([pa.field("number", pa.int64())]))
            log.create_topic("large")
            batch = pa.record_batch({"value": pa.array([bytes(64 << 10)] * 12, pa.binary())})
            for _ in range(86):
                log.append_batch("large", batch)  # 64 MiB in all
        yield server


@pytest.fixture
def server(running: ServerProcess) -> Iterator[ServerProcess]:
    """Give the server, and see afterwards that nothing came of what was done to it."""
    before = len(running.said)
    with running.open() as log:
        ends = [log.offsets(topic) for topic in (TOPIC, "typed")]
    yield running
    assert running.alive
    check_serves(running)
    assert "unforeseen" not in running.said[before:], running.said[before:]
    assert "Traceback" not in running.said[before:], running.said[before:]
    with running.open() as log:
        assert [log.offsets(topic) for topic in (TOPIC, "typed")] == ends


class Raw:
    """A client that says whatever it likes."""

    def __init__(self, server: ServerProcess) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.client = fl.connect(f"grpc://127.0.0.1:{server.port}", generic_options=options)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def action(self, name: str, body: bytes) -> Any:
        """Make a call with any body; give the reply or the error."""
        try:
            (reply,) = self.client.do_action(fl.Action(name, body))
            return unpack(reply.body.to_pybytes())
        except pa.ArrowException as error:
            return error_of(error)

    def ticket(self, ticket: bytes) -> Any:
        """Show any ticket; give the table or the error."""
        try:
            return self.client.do_get(fl.Ticket(ticket)).read_all()
        except pa.ArrowException as error:
            return error_of(error)

    def put(
        self,
        metadata: bytes | None,
        batch: pa.RecordBatch | None = None,
        *,
        topic: str = TOPIC,
        path: fl.FlightDescriptor | None = None,
    ) -> Any:
        """Put one message; give its answer, or the error that ended the stream."""
        batch = some() if batch is None else batch
        descriptor = fl.FlightDescriptor.for_path(topic) if path is None else path
        try:
            writer, reader = self.client.do_put(descriptor, batch.schema)
            try:
                with contextlib.suppress(pa.ArrowException):  # the stream's end tells more
                    if metadata is None:
                        writer.write_batch(batch)
                    else:
                        writer.write_with_metadata(batch, metadata)
                    writer.done_writing()
                acks = reader.read()
            finally:
                writer.close()
        except pa.ArrowException as error:
            return error_of(error)
        assert acks is not None
        ((_, answer),) = unpack(acks.to_pybytes())
        return answer


def error_of(error: BaseException) -> LakebedError:
    """Give the error that the server meant; it has to have meant one."""
    info = getattr(error, "extra_info", None)
    assert info, f"the server failed: {error}"
    return unpack_error(info)


def some(count: int = 1) -> pa.RecordBatch:
    """Give a batch as it should be."""
    return pa.record_batch([pa.array([b"v"] * count, pa.binary())], schema=RAW)


GARBAGE = [
    b"",
    b"\xc1",
    b"\x81",
    b"\xdf\xff\xff\xff\xff",  # a map of four thousand million entries
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\x91" * 5000,  # a list in a list in a list
    b"\xc7\x03\x7f\x00\x00\x00",  # an extension that nobody knows
    b"\xc7\x03\x02\x00\x00\x00",  # no schema
    b"\xc7\x03\x03abc",  # no time
    b"\xc7\x03\x01\x00\x00\x00",  # no report
    b"\xc7\x15\x03" + b"9" * 21,  # a time after the end of time
    msgpack.packb([1, 2, 3]),
    msgpack.packb("text"),
    msgpack.packb(None),
    msgpack.packb({"call": ["read"]}),
    msgpack.packb({1: 2, None: 3}),
    msgpack.packb({"call": "read"})[:-1],
    msgpack.packb({"call": "nothing", "topic": TOPIC}),
    random.Random(1).randbytes(4000),
]
ODD = [None, True, -1, 2**63, -(2**63), 2**64 - 1, 1.5, float("nan"), "", "x" * 100_000, b"\xff"]
ODD += ["\x00", "../../etc", "__audit", [], [[]], [1], [["a"]], [None], {}, {"a": {}}, {1: 2}]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_a_ticket_or_a_request_is_refused(server: ServerProcess, body: bytes) -> None:
    """Whatever bytes come, the answer is an error that says so."""
    with Raw(server) as raw:
        assert isinstance(raw.ticket(body), ProtocolError)
        if body:  # an empty request is one without parameters
            assert isinstance(raw.action("describe_topic", body), ProtocolError)
        assert isinstance(raw.action("no_such_call", body), ProtocolError)
        if body:
            assert isinstance(raw.put(body), ProtocolError)
    assert "does not follow the protocol" in server.said


def test_a_request_or_ticket_that_is_too_large_is_refused(server: ServerProcess) -> None:
    """Before it is taken apart."""
    with Raw(server) as raw:
        huge = pack({"name": "x" * MESSAGE_BYTES_MAX})
        assert isinstance(raw.action("describe_topic", huge), ProtocolError)
        assert isinstance(raw.ticket(huge), ProtocolError)


def _odd_requests(parameters: dict[str, Any], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Give requests in which one parameter, or all, are odd."""
    plausible = {name: rng.choice([1, TOPIC, [], True]) for name in parameters}
    for name in parameters:
        for odd in ODD:
            yield {**plausible, name: odd}
    for _ in range(10):
        yield {name: rng.choice(ODD) for name in parameters}
    yield {}
    yield {"unheard": 1}


HARMLESS = frozenset(["hello", "wake", "register_producer", "begin_transaction"])
"""Calls that are as good with odd parameters as with any."""


@pytest.mark.parametrize("name", sorted(CALLS))
def test_odd_parameters_of_a_call_are_refused(server: ServerProcess, name: str) -> None:
    """Parameters of a wrong type, out of range or absurd give a typed error or do no harm."""
    rng = random.Random(name)
    with Raw(server) as raw:
        for request in _odd_requests(dict(CALLS[name].parameters), rng):
            if name in ("create_token", "allow", "grant") and _would_close(request):
                continue
            with contextlib.suppress(OverflowError):  # of what msgpack itself does not take
                body = msgpack.packb(request)
                got = raw.action(name, body)
                assert not isinstance(got, LakebedError) or isinstance(got, RejectedError), got


def _would_close(request: dict[str, Any]) -> bool:
    """Tell whether a request could succeed, and so shut everybody out."""
    values = [*request.values()]
    return not any(type(each) in (float, type(None), bytes, dict, bool) for each in values)


TICKETS: dict[str, list[str]] = {
    "read": ["topic", "partition", "offset", "max_records", "max_bytes", "columns", "wait_ms"],
    "range": ["topic", "partition", "offset", "until", "columns"],
    "follow": ["topic", "partition", "offset", "columns"],
    "fetch": ["places", "ids", "turn", "max_records", "max_bytes", "columns", "group", "member"],
    "scan": ["topic", "columns", "where", "partitions", "start", "until"],
    "record": ["topic", "key"],
    "latest": ["topic", "columns"],
    "as_of": ["topic", "offset", "time", "columns", "where"],
}


@pytest.mark.parametrize("name", sorted(STREAMS.keys() - {"put"}))
def test_odd_parameters_of_a_ticket_are_refused(server: ServerProcess, name: str) -> None:
    """As those of a call."""
    good: dict[str, Any] = {
        "call": name,
        "topic": TOPIC,
        "places": [(TOPIC, 0, 0)],
        "max_records": 10,
        "max_bytes": 1000,
        "offset": 0,
    }
    with Raw(server) as raw:
        for parameter in TICKETS[name]:
            for odd in (*ODD, [(TOPIC, -1, 0)], [(TOPIC, 0, 2**70 % 2**63)]):
                if parameter == "wait_ms" and type(odd) is int and odd > 0:
                    continue  # to wait for long is not odd
                if name == "follow":
                    _begin_follow(raw, {**good, parameter: odd})
                    continue
                got = raw.ticket(msgpack.packb({**good, parameter: odd}))
                assert isinstance(got, pa.Table | RejectedError), (parameter, odd, got)


def _begin_follow(raw: Raw, ticket: dict[str, Any]) -> None:
    """Begin a stream that never ends by itself, and let it go."""
    try:
        raw.client.do_get(fl.Ticket(msgpack.packb(ticket))).cancel()
    except pa.ArrowException as error:
        assert isinstance(error_of(error), RejectedError)


def test_a_put_that_is_no_put_is_refused(server: ServerProcess) -> None:
    """Unknown kinds, missing numbers, wrong runs, and streams into nothing."""
    with Raw(server) as raw:
        for message in (
            [1],
            ["1", "write", None],
            [1, "unheard"],
            [1, "write"],
            [1, "write", None, None],
            [1, None, None],
            [1, "record", b"v"],
            [1, "producer", 1, 1],
            [1, "producer", 1, 1, 1, 1, None],
            [1, "producer", "1", 1, 1, 1, []],
            [1, "producer", None, None, None, None, None],
            [1, "transaction", 1, 1, 1, 1, [(0, 1, 0)]],
        ):
            got = raw.put(msgpack.packb(message))
            assert isinstance(got, RejectedError), (message, got)
        assert isinstance(raw.put(None, topic="absent"), LakebedError)
        assert isinstance(raw.put(None, topic="__audit"), LakebedError)
        for path in (
            fl.FlightDescriptor.for_command(b"x"),
            fl.FlightDescriptor.for_path(TOPIC, TOPIC),
        ):
            assert isinstance(raw.put(None, path=path), ProtocolError)


def test_odd_records_are_refused(server: ServerProcess) -> None:
    """Of a single record that is sent without a batch."""
    with Raw(server) as raw:
        for position in range(5):
            for odd in ODD:
                record: list[Any] = [b"v", None, None, None, None]
                fine = position == 0 and odd in (b"\xff", None)  # a value, a tombstone
                fine = fine or (position in (1, 3, 4) and odd is None)
                fine = fine or (position == 2 and not odd)
                fine = fine or (position == 1 and isinstance(odd, str | bytes))
                if fine or (position == 4 and isinstance(odd, int)):
                    continue
                record[position] = odd
                if position == 0 and isinstance(odd, str):
                    continue  # text is a value
                got = raw.put(msgpack.packb([1, "record", *record]))
                assert isinstance(got, RejectedError), (position, odd, got)


def _topic_id(server: ServerProcess) -> int:
    with server.open() as log:
        return log.describe_topic(TOPIC).id


def test_runs_that_are_not_the_batch_are_refused(server: ServerProcess) -> None:
    """Rows that are missing, too many, of no partition, or out of sequence."""
    topic = _topic_id(server)
    with Raw(server) as raw:
        producer, epoch = raw.action("register_producer", b"")
        for runs in (
            [],
            [(0, 1, 0)],
            [(0, 3, 0)],
            [(0, 2)],
            [(0, 1, 0), (0, 1, 1)],
            [(0, 2, 0), (1, 0, 0)],
            [(-1, 2, 0)],
            [(7, 2, 0)],
            [(0, 2, -1)],
            [(0, 2, 2**63)],
            [(2**40, 2, 0)],
            [(0, 2, 5)],
        ):
            message = pack([1, "producer", producer, epoch, topic, 0, runs])
            got = raw.put(message, some(2))
            assert isinstance(got, RejectedError), (runs, got)
            assert runs != [(0, 2, 5)] or isinstance(got, SequenceGapError), got
        for head in ((producer + 1000, epoch), (producer, epoch + 1), (-1, -1), (2**62, 0)):
            got = raw.put(pack([1, "producer", *head, topic, 0, [(0, 2, 0)]]), some(2))
            assert isinstance(got, RejectedError), (head, got)
        wrong = pack([1, "producer", producer, epoch, topic + 1, 0, [(0, 2, 0)]])
        assert isinstance(raw.put(wrong, some(2)), RejectedError)
        for schema in (1, -1, 2**40):
            message = pack([1, "producer", producer, epoch, topic, schema, [(0, 2, 0)]])
            assert isinstance(raw.put(message, some(2)), RejectedError)


def test_somebody_elses_producer_cannot_be_used(tmp_path: Path) -> None:
    """Its id is easily guessed; it belongs to whoever it was given to."""
    with ServerProcess(tmp_path / "log", toml="[lake]\niceberg = false\n") as server:
        with server.open() as log:
            topic = log.create_topic(TOPIC).id
            admin = str(log.access.create_token("admin", roles=["admin"]))
        with server.open(token=admin) as log:
            other = str(log.access.create_token("other", roles=["writer"]))
            raw = Raw(server)
            as_admin = fl.FlightCallOptions(headers=[(b"authorization", b"Bearer " + admin.encode())])
            as_other = fl.FlightCallOptions(headers=[(b"authorization", b"Bearer " + other.encode())])
            (reply,) = raw.client.do_action(fl.Action("register_producer", pack({})), as_admin)
            producer, epoch = unpack(reply.body.to_pybytes())
            descriptor = fl.FlightDescriptor.for_path(TOPIC)
            writer, reader = raw.client.do_put(descriptor, RAW, as_other)
            message = pack([1, "producer", producer, epoch, topic, 0, [(0, 1, 0)]])
            writer.write_with_metadata(some(), message)
            writer.done_writing()
            ((_, answer),) = unpack(reader.read().to_pybytes())
            assert isinstance(answer, FencedError)
            writer.close()
            with pytest.raises(fl.FlightServerError) as caught:
                request = pack({"producer": producer, "epoch": epoch})
                list(raw.client.do_action(fl.Action("forget_producer", request), as_other))
            assert isinstance(error_of(caught.value), FencedError)
            assert log.offsets(TOPIC) == {0: (0, 0)}
            raw.client.close()


def _invalid() -> dict[str, tuple[str, pa.RecordBatch]]:
    """Give batches that are not what they say, with the topic that they go to."""
    def with_offsets(*given: int) -> pa.Array:
        # What Arrow itself looks at here is the first and the last one.
        packed = pa.py_buffer(b"".join(n.to_bytes(4, "little", signed=True) for n in given))
        buffers = [None, packed, pa.py_buffer(b"abc")]
        return pa.Array.from_buffers(pa.binary(), len(given) - 1, buffers)

    beyond = with_offsets(0, 1_000_000, 3)
    negative = with_offsets(0, -1_000_000, 3)
    length = pa.py_buffer((1).to_bytes(4, "little"))
    no_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(bytes(4) + bytes(length)), pa.py_buffer(b"\xff")]
    )
    ones = pa.array([1], pa.int64())
    index = pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), pa.array([b"a"]), safe=False)
    return {
        "beyond": (TOPIC, pa.record_batch([beyond], ["value"])),
        "negative": (TOPIC, pa.record_batch([negative], ["value"])),
        "no text": ("typed", pa.record_batch([no_text], ["number"])),
        "another type": (TOPIC, pa.record_batch([ones], ["value"])),
        "no such column": (TOPIC, pa.record_batch([pa.array([b"v"]), ones], ["value", "x"])),
        "no value": (TOPIC, pa.record_batch([pa.array([b"v"])], ["key"])),
        "dictionary": (TOPIC, pa.record_batch([index], ["value"])),
        "text for numbers": ("typed", pa.record_batch([pa.array(["1"])], ["number"])),
    }


@pytest.mark.parametrize("name", _invalid())
def test_data_that_is_not_what_it_says_is_refused(server: ServerProcess, name: str) -> None:
    """Offsets out of bounds, text that is none, wrong columns and types are never written."""
    topic, batch = _invalid()[name]
    with Raw(server) as raw:
        for metadata in (None, pack([1, "write", None])):
            got = raw.put(metadata, batch, topic=topic)
            assert isinstance(got, RejectedError), got


def test_messages_beyond_the_limit_are_refused(server: ServerProcess) -> None:
    """And so is a record beyond the topic's own limit."""
    with Raw(server) as raw:
        batch = pa.record_batch([pa.array([bytes(REQUEST_BYTES_MAX)], pa.binary())], schema=RAW)
        assert isinstance(raw.put(None, batch), ProtocolError)
        metadata = msgpack.packb([1, "record", bytes(REQUEST_BYTES_MAX), None, None, None, None])
        assert isinstance(raw.put(metadata), ProtocolError)
    with server.open() as log:
        log.get_or_create_topic("small", config={"record_bytes_max": 100})
    with Raw(server) as raw:
        batch = pa.record_batch([pa.array([bytes(101)], pa.binary())], schema=RAW)
        assert isinstance(raw.put(None, batch, topic="small"), RecordTooLargeError)


# Clients that do not read


def test_a_client_that_does_not_read_its_acknowledgements_holds_up_nobody(
    server: ServerProcess,
) -> None:
    """Others get theirs, however many such clients there are; their writes are not lost."""
    with server.open() as log:
        log.get_or_create_topic("silent")
    before = server.resident_bytes
    url = f"grpc://127.0.0.1:{server.port}"
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(python(_NEVER_READING, url)) for _ in range(3)]
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
for number in range(1_000_000):
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
            for _ in range(count):
                if isinstance(_idle(raw, stack), QuotaExceededError):
                    return False
            return True

    eventually(free, "streams of clients that are gone are still counted")


def _idle(raw: Raw, stack: contextlib.ExitStack) -> LakebedError | None:
    """Open a put stream, and see that it is served; give the error if it is not."""
    writer, reader = raw.client.do_put(fl.FlightDescriptor.for_path("good"), RAW)
    try:
        writer.write_batch(some(0))
        assert reader.read() is not None or writer.close()
    except pa.ArrowException as error:
        with contextlib.suppress(pa.ArrowException):
            writer.close()
        return error_of(error)
    stack.callback(writer.close)
    return None


def test_more_streams_than_allowed_are_refused_and_the_others_served(
    server: ServerProcess,
) -> None:
    """Idle streams use up their number, not the server: calls go on, and so do those that are in."""
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
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass


