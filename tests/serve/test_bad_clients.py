"""Clients that do not follow the protocol: each is refused by an error that says why.

After each of them a client that behaves is served, nothing failed in an unforeseen way, and nothing
was written.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pytest

from lakebed.errors import (
    FencedError,
    LakebedError,
    ProtocolError,
    RecordTooLargeError,
    RejectedError,
    SequenceGapError,
)
from lakebed.operations.description import MESSAGE_BYTES_MAX
from lakebed.operations.routes import STREAMS
from lakebed.operations.table import OPERATIONS
from lakebed.wire.protocol import pack, unpack
from tests.serve.raw import RAW, REQUEST_BYTES_MAX, TOPIC, Raw, error_of, run_small, some, unharmed
from tests.serve.support import ServerProcess


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run a server with small limits."""
    yield from run_small(tmp_path_factory.mktemp("bad") / "log")


@pytest.fixture
def server(running: ServerProcess) -> Iterator[ServerProcess]:
    """Return the server, and see afterwards that nothing came of what was done to it."""
    yield from unharmed(running)


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
ODD: list[Any] = [
    None,
    True,
    -1,
    2**63,
    -(2**63),
    2**64 - 1,
    1.5,
    float("nan"),
    "",
    "x" * 100_000,
    b"\xff",
]
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
    """Return requests in which one parameter, or all, are odd."""
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


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_odd_parameters_of_a_call_are_refused(server: ServerProcess, name: str) -> None:
    """Parameters of a wrong type, out of range or absurd give a typed error or do no harm."""
    rng = random.Random(name)
    with Raw(server) as raw:
        for request in _odd_requests(dict(OPERATIONS[name].request), rng):
            if name in ("create_token", "allow", "grant") and _would_close(request):
                continue
            with contextlib.suppress(OverflowError):  # of what msgpack itself does not take
                body = msgpack.packb(request)
                got = raw.action(name, body)
                assert not isinstance(got, LakebedError) or isinstance(got, RejectedError), got


def _would_close(request: dict[str, Any]) -> bool:
    """Return whether a request could succeed, and so shut everybody out."""
    values = [value for name, value in request.items() if name != "force"]
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
                if parameter == "wait_ms" and (odd is None or (type(odd) is int and odd > 0)):
                    continue  # to wait for long is not odd
                if name == "follow":
                    _begin_follow(raw, {**good, parameter: odd})
                    continue
                got = raw.ticket(msgpack.packb({**good, parameter: odd}))
                assert isinstance(got, pa.Table | RejectedError), (parameter, odd, got)


def _begin_follow(raw: Raw, ticket: dict[str, Any]) -> None:
    """Begin an endless stream, and abandon it."""
    try:
        raw.client.do_get(fl.Ticket(msgpack.packb(ticket))).cancel()
    except pa.ArrowException as error:
        assert isinstance(error_of(error), RejectedError)


def test_a_hostile_predicate_is_refused(server: ServerProcess) -> None:
    """Neither depth nor spoiled bytes of Arrow's own form reach what would trust them."""
    (buffer,) = (pc.field("value") == b"x").__reduce__()[1]
    chance = random.Random(5)
    hostile: list[Any] = [chance.randbytes(chance.randrange(300)) for _ in range(20)]
    for _ in range(50):
        spoiled = bytearray(buffer.to_pybytes())
        spoiled[chance.randrange(len(spoiled))] ^= 1 << chance.randrange(8)
        hostile.append(bytes(spoiled))
    for depth in (65, 300, 400):
        tree: Any = ["is_valid", ["field", "value"]]
        for _ in range(depth):
            tree = ["invert", tree]
        hostile.append(tree)
    hostile.append(["or_kleene", *[["is_valid", ["field", "value"]]] * 100_000])
    with Raw(server) as raw:
        for where in hostile:
            for call in ({"call": "scan"}, {"call": "as_of", "offset": 0}):
                got = raw.ticket(msgpack.packb({**call, "topic": TOPIC, "where": where}))
                assert isinstance(got, ProtocolError), got
        deep = b"\x84\xa4call\xa4scan\xa5topic\xa1t\xa1x\xc0\xa5where" + b"\x92\xa6invert" * 100_000
        assert isinstance(raw.ticket(deep + b"\xc0"), ProtocolError)


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
            as_admin = fl.FlightCallOptions(
                headers=[(b"authorization", b"Bearer " + admin.encode())]
            )
            as_other = fl.FlightCallOptions(
                headers=[(b"authorization", b"Bearer " + other.encode())]
            )
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
    """Return batches that are not what they say, with the topic that they go to."""

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
