"""Arrow data and predicates that crash Arrow, sent to a real server: it refuses them and serves on.

After each of them the process lives, a client that behaves is served, nothing failed in an
unforeseen way, and nothing was written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pytest

import lakebed
from lakebed.errors import (
    EntryTooLargeError,
    InvalidArgumentError,
    LakebedError,
    ProtocolError,
    RecordTooLargeError,
    SchemaMismatchError,
)
from lakebed.limits import MIB
from lakebed.wire.predicates import _ONE, _TWO, MANY, MATCHES
from lakebed.wire.protocol import pack, unpack
from tests.serve import hostile, raw_grpc
from tests.serve.raw import TOPIC, Raw, run_small, unharmed
from tests.serve.support import ServerProcess

NESTED = "nested"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run a server with small limits, and a topic of nested values."""
    for server in run_small(tmp_path_factory.mktemp("hostile") / "log"):
        with server.open() as log:
            log.create_topic(NESTED, schema=hostile.NESTED)
            log.create_topic("short", config={"record_bytes_max": 1024})
        yield server


@pytest.fixture
def server(running: ServerProcess) -> Iterator[ServerProcess]:
    """Return the server, and see afterwards that nothing came of what was done to it."""
    with running.open() as log:
        before = log.offsets(NESTED), log.offsets("short")
    yield from unharmed(running)
    with running.open() as log:
        assert (log.offsets(NESTED), log.offsets("short")) == before


def both_ways(server: ServerProcess, topic: str, batch: pa.RecordBatch) -> list[Any]:
    """Put a batch by pyarrow's client and by gRPC alone; return both answers."""
    with Raw(server) as raw:
        first = raw.put(None, batch, topic=topic)
    answers = raw_grpc.put(server, topic, raw_grpc.messages(batch))
    return [first, answers[0][1] if isinstance(answers, list) else answers]


def value_of(**fields: pa.Array) -> pa.RecordBatch:
    """Return a batch of a typed topic."""
    value = pa.StructArray.from_arrays(list(fields.values()), list(fields))
    return pa.record_batch([value], names=["value"])


def _keyed(value: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([value, pa.array([b"k"] * len(value))], names=["value", "key"])


VIEW_BATCHES = {
    "value": (TOPIC, _keyed(hostile.views(pa.binary_view()))),
    "text": (TOPIC, _keyed(hostile.views(pa.string_view()))),
    "smallest": (TOPIC, _keyed(hostile.views(pa.binary_view(), null_size=-(2**31)))),
    "little": (TOPIC, _keyed(hostile.views(pa.binary_view(), null_size=-1))),
    "field": (NESTED, value_of(name=hostile.views(pa.string_view()))),
    "list": (NESTED, value_of(words=hostile.in_list(hostile.views(pa.string_view())))),
    "map": (
        NESTED,
        value_of(
            tags=hostile.in_map(pa.array(["k"] * 2001), hostile.views(pa.binary_view())),
        ),
    ),
    "headers": (
        TOPIC,
        pa.record_batch(
            [
                pa.array([b"v"]),
                hostile.in_map(pa.array(["k"] * 2001), hostile.views(pa.binary_view())),
            ],
            names=["value", "headers"],
        ),
    ),
}


@pytest.mark.parametrize("name", VIEW_BATCHES)
def test_a_view_of_negative_size_in_a_null_slot_is_refused(
    server: ServerProcess, name: str
) -> None:
    """Arrow's validation passes it, and its cast would write behind the memory it reserved."""
    topic, batch = VIEW_BATCHES[name]
    batch.validate(full=True)
    for answer in both_ways(server, topic, batch):
        assert isinstance(answer, ProtocolError)
        assert "negative" in str(answer)


def _claiming(rows: int, offsets_bytes: int) -> list[raw_grpc.Message]:
    """Return a batch whose header tells of more rows than its offsets have."""
    honest = pa.record_batch([pa.array([b""] * 77_777, pa.binary())], names=["value"])
    schema, message = raw_grpc.messages(honest)
    header = message.header
    for was, now in ((77_777, rows), (77_778 * 4, offsets_bytes)):
        assert struct.pack("<q", was) in header
        header = header.replace(struct.pack("<q", was), struct.pack("<q", now))
    return [schema, raw_grpc.Message(header, bytes(64))]


def test_a_batch_that_claims_more_rows_than_it_has_is_refused(server: ServerProcess) -> None:
    """Its size is counted without reading the offsets that are not there."""
    answers = raw_grpc.put(server, TOPIC, _claiming(400_000_000, 8))
    ((_, answer),) = answers
    assert isinstance(answer, ProtocolError)


@pytest.mark.parametrize("word", [0x7FFFFFF0, -1])
def test_a_batch_without_rows_is_answered_without_looking_at_its_columns(
    server: ServerProcess, word: int
) -> None:
    """Its offsets are garbage, which validation may pass; there is nothing to write."""
    headers = pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary()))
    honest = pa.record_batch([pa.array([b"v"]), headers], names=["value", "headers"])
    schema, message = raw_grpc.messages(honest)
    header = message.header.replace(struct.pack("<q", 1), struct.pack("<q", 0))
    body = struct.pack("<i", word) * (len(message.body) // 4)
    ((_, answer),) = raw_grpc.put(server, TOPIC, [schema, raw_grpc.Message(header, body)])
    assert answer == ()


@pytest.mark.parametrize("offsets_bytes", [4, 0], ids=["garbage", "missing"])
def test_offsets_of_a_map_without_entries_within_a_list_are_replaced(
    running: ServerProcess, offsets_bytes: int
) -> None:
    """Arrow passes the map of length zero below the row, and would crash in every read of it."""
    maps = 77_777
    honest = value_of(lists=hostile.in_list(pa.array([[]] * maps, hostile.MAP)))
    schema, message = raw_grpc.messages(honest)
    header = message.header
    for was, now in ((maps, 0), ((maps + 1) * 4, offsets_bytes)):
        assert struct.pack("<q", was) in header
        header = header.replace(struct.pack("<q", was), struct.pack("<q", now))
    start, offsets, _ = message.body.partition(struct.pack("<ii", 0, maps))
    assert offsets
    body = start + bytes(8) + hostile.GARBAGE * ((len(message.body) - len(start) - 8) // 4)
    answers = raw_grpc.put(running, NESTED, [schema, raw_grpc.Message(header, body)])
    ((_, ((_, partition, offset, _, _),)),) = answers
    with running.open() as log:
        read = log.read(NESTED, partition, offset).column("value")
        assert read.to_pylist() == [{"name": None, "words": None, "tags": None, "lists": []}]
        log.checkpoint()
        assert log.table(NESTED).scan().read_all().num_rows > 0
    assert running.alive


BOMBS = {
    "words": lambda: hostile.same_word(MIB // 2, 3_000, pa.binary()),
    "large words": lambda: hostile.same_word(MIB // 2, 100_000, pa.large_string()),
    "views": lambda: hostile.same_view(pa.binary_view(), MIB // 2, 3_000),
    "words of views": lambda: hostile.same_word(MIB // 2, 3_000, pa.string_view()),
}


@pytest.mark.parametrize("name", BOMBS)
def test_values_that_many_rows_share_are_counted_before_they_are_written_out(
    server: ServerProcess, name: str
) -> None:
    """Half a megabyte would become gigabytes; it is refused at the cost of a small message."""
    value = BOMBS[name]()
    before = server.resident_bytes
    for answer in both_ways(server, TOPIC, pa.record_batch([value], names=["value"])):
        assert isinstance(answer, EntryTooLargeError)
    for answer in both_ways(server, "short", pa.record_batch([value], names=["value"])):
        assert isinstance(answer, RecordTooLargeError)
    for answer in both_ways(server, NESTED, value_of(name=value.cast(_text(value.type)))):
        assert isinstance(answer, EntryTooLargeError)
    assert server.resident_bytes - before < 200 * MIB


def _text(kind: pa.DataType) -> pa.DataType:
    """Return the type of text that has the same layout."""
    if pa.types.is_dictionary(kind):
        return kind if "string" in str(kind) else pa.dictionary(pa.int8(), pa.string())
    return pa.string_view()


def test_values_without_bytes_are_counted_too(server: ServerProcess) -> None:
    """Two thousand million values of zero width fit into a message of a few hundred bytes."""
    batch = value_of(words=hostile.zero_width(2**31 - 1))
    schema = pa.schema([("words", pa.list_(pa.binary()))])
    with server.open() as log:
        log.get_or_create_topic("zero", schema=schema)
    before = server.resident_bytes
    for answer in both_ways(server, "zero", batch):
        assert isinstance(answer, EntryTooLargeError)
    assert server.resident_bytes - before < 200 * MIB


EXOTIC = {
    "union": pa.UnionArray.from_dense(
        pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([b"v"])]
    ),
    "run ends": pa.RunEndEncodedArray.from_arrays([1], [b"v"]),
    "list view": pa.array([[b"v"]], pa.list_view(pa.binary())),
    "fixed list": pa.array([[b"v"]], pa.list_(pa.binary(), 1)),
    "extension": pa.array([b"v" * 16], pa.uuid()),
    "nested words": pa.DictionaryArray.from_arrays([0], pa.array([{"a": 1}])),
}


@pytest.mark.parametrize("name", EXOTIC)
def test_a_type_that_no_topic_holds_is_refused_by_its_name(
    server: ServerProcess, name: str
) -> None:
    """Also in a column that would be dropped, and within a struct."""
    array = EXOTIC[name]
    value = pa.array([b"v"])
    for topic, batch in (
        (TOPIC, pa.record_batch([array], names=["value"])),
        (TOPIC, pa.record_batch([value, array], names=["value", "partition"])),
        (NESTED, value_of(name=array)),
    ):
        for answer in both_ways(server, topic, batch):
            assert isinstance(answer, SchemaMismatchError)
            assert str(array.type) in str(answer)


def _renamed(batch: pa.RecordBatch, was: bytes) -> list[raw_grpc.Message]:
    """Return a batch in whose schema a text is not UTF-8."""
    schema, message = raw_grpc.messages(batch)
    assert was in schema.header
    return [raw_grpc.Message(schema.header.replace(was, b"\xff" * len(was))), message]


ODD_TEXTS = {
    "column": (pa.record_batch([pa.array([b"v"])], names=["UVWXYZ"]), b"UVWXYZ"),
    "field": (value_of(UVWXYZ=pa.array(["v"])), b"UVWXYZ"),
    "zone": (
        pa.record_batch(
            [pa.array([b"v"]), pa.array([0], pa.timestamp("us", "UVW/XYZ"))],
            names=["value", "timestamp"],
        ),
        b"UVW/XYZ",
    ),
}


@pytest.mark.parametrize("name", ODD_TEXTS)
def test_a_name_or_a_time_zone_that_is_not_text_is_refused(
    server: ServerProcess, name: str
) -> None:
    for topic in (TOPIC, NESTED):
        ((_, answer),) = raw_grpc.put(server, topic, _renamed(*ODD_TEXTS[name]))
        assert isinstance(answer, ProtocolError)
        assert "UTF-8" in str(answer)


def test_a_schema_with_a_name_that_is_not_text_is_refused(server: ServerProcess) -> None:
    schema = pa.schema([("UVWXYZ", pa.int64())])
    body = pack({"name": "odd", "schema": schema}).replace(b"UVWXYZ", b"\xff" * 6)
    with Raw(server) as raw:
        answer = raw.action("create_topic", body)
    assert isinstance(answer, ProtocolError)
    assert "UTF-8" in str(answer)


# Predicates

TYPED: dict[str, Any] = {
    **dict.fromkeys(("int8", "int64", "uint64", "date32[day]", "date64[ms]"), 1),
    **dict.fromkeys(("time32[s]", "time64[us]", "timestamp[us]", "duration[s]"), 1),
    **dict.fromkeys(("string", "large_string", "string_view"), "a"),
    **dict.fromkeys(("binary", "large_binary", "binary_view"), b"a"),
    **dict.fromkeys(("decimal128(20, 4)", "decimal256(50, 4)"), "1.5"),
    **dict.fromkeys(("float", "double"), 1.5),
    "bool": True,
    "fixed_size_binary[4]": b"abcd",
    "timestamp[us, tz=UTC]": 1,
}
OPERANDS = [
    *(["value", value, kind] for kind, value in TYPED.items()),
    *(["value", None, kind] for kind in TYPED),
    *(["field", name] for name in ("key", "timestamp", "offset")),
]
NULLS = [["value", None, "large_string"], ["value", None, "large_binary"]]


def predicates(null: list[Any]) -> Iterator[list[Any]]:
    """List the predicates of every function with this null, beside every other operand."""
    for function in (*_TWO.split(), *MANY):
        for operand in OPERANDS:
            yield [function, operand, null]
            yield [function, null, operand]
    for function in _ONE.split():
        yield [function, null]
    for function in MATCHES:
        yield [function, null, "a", True]
    for kind, value in TYPED.items():
        yield ["cast", null, kind, True]
        yield ["is_in", null, kind, [value, None], True]
        yield ["is_in", ["field", "key"], kind, [None], False]
    yield ["is_null", null, True]


@pytest.mark.parametrize("null", NULLS, ids=lambda null: null[2])
def test_a_null_of_any_type_in_a_predicate_selects_nothing_or_is_refused(
    server: ServerProcess, null: list[Any]
) -> None:
    """Arrow's process ends when it casts a null of these two types."""
    selected = refused = 0
    with Raw(server) as raw:
        for where in predicates(null):
            answer = raw.ticket(pack({"call": "scan", "topic": TOPIC, "where": where}))
            if isinstance(answer, LakebedError):
                refused += 1
            else:
                assert isinstance(answer, pa.Table)
                selected += 1
    assert selected > 100
    assert refused > 100


def test_a_comparison_with_a_null_selects_nothing(server: ServerProcess) -> None:
    with server.open() as log:
        log.append("good", b"v", b"k")
    for null in NULLS:
        where = ["equal", ["field", "key"], null]
        with Raw(server) as raw:
            answer = raw.ticket(pack({"call": "scan", "topic": "good", "where": where}))
        assert isinstance(answer, pa.Table)
        assert answer.num_rows == 0


@pytest.mark.parametrize("function", MATCHES)
def test_a_pattern_that_is_not_text_is_refused(server: ServerProcess, function: str) -> None:
    where = [function, ["field", "key"], b"\xff", False]
    with Raw(server) as raw:
        answer = raw.ticket(pack({"call": "scan", "topic": TOPIC, "where": where}))
    assert isinstance(answer, ProtocolError)
    assert "UTF-8" in str(answer)


def test_the_client_refuses_by_the_same_words_as_an_embedded_log(
    server: ServerProcess, tmp_path: Path
) -> None:
    """A predicate that would end this process is refused before Arrow sees it."""
    odd = [
        pc.field("value") == pa.scalar(None, pa.large_string()),
        pc.field("key") != pa.scalar(None, pa.large_binary()),
        pc.starts_with(pc.field("key"), b"\xff"),
    ]
    with lakebed.open(tmp_path / "embedded") as embedded, server.open() as served:
        embedded.create_topic("good")
        for where in odd:
            said = []
            for log in (embedded, served):
                with pytest.raises(InvalidArgumentError) as caught:
                    log.table("good").scan(where=where).read_all()
                said.append(caught.value.message)
            assert said[0] == said[1]


def test_a_flight_stream_continues_after_a_refused_batch(server: ServerProcess) -> None:
    """A refusal is the answer to its batch; the next one is written."""
    bad = pa.record_batch([hostile.views(pa.binary_view())], names=["value"])
    good = pa.record_batch([pa.array([b"v", None], pa.binary_view())], names=["value"])
    keyed = good.append_column("key", pa.array([b"k", b"k"]))
    bad = bad.append_column("key", pa.array([b"k"] * bad.num_rows))
    with Raw(server) as raw:
        descriptor = fl.FlightDescriptor.for_path("good")
        writer, reader = raw.client.do_put(descriptor, keyed.schema)
        with writer:
            for batch, refused in ((bad, True), (keyed, False)):
                writer.write_batch(batch)
                ((_, answer),) = unpack(reader.read().to_pybytes())
                assert isinstance(answer, ProtocolError) == refused
