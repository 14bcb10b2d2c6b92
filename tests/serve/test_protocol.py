"""What crosses the wire: everything comes out as it went in, and nothing else comes in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakebed
from lakebed import errors
from lakebed.api.reads import Bounds
from lakebed.errors import (
    InvalidArgumentError,
    LakebedError,
    ProtocolError,
    ServerUnavailableError,
)
from lakebed.host.table_files import TableFiles
from lakebed.limits import SCHEMA_BYTES_MAX
from lakebed.operations.description import MESSAGE_BYTES_MAX
from lakebed.operations.results import REPORTS
from lakebed.operations.table import OPERATIONS
from lakebed.reports.access import DenialInfo
from lakebed.reports.derived import DerivedFile
from lakebed.reports.maintenance import CleanupFailure
from lakebed.serve.calls import check_parameters
from lakebed.serve.gets import Ticket
from lakebed.serve.guard import Principal
from lakebed.serve.puts import AckPool, PutStream
from lakebed.topic.survivors import pack_survivors
from lakebed.wire.protocol import pack, pack_error, unpack, unpack_error, unpack_request
from tests.engine.support import PRICE, inner, quiet
from tests.waiting import until

ERROR = ProtocolError("nothing", at=1)


def crossed(value: Any) -> Any:
    return unpack(pack(value))


# Values


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        2**64 - 1,
        1.5,
        math.inf,
        "é\0\U0001f600",
        b"\xff\0",
        (),
        (1, ("a", (b"b",))),
        {"a": {1: None}, (1, "x"): 2},
        datetime(2024, 2, 29, 12, 30, 1, 999_999, tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        PRICE,
        pa.schema([pa.field("x", pa.map_(pa.string(), pa.int8()))], metadata={"k": "v"}),
    ],
)
def test_a_value_comes_out_as_it_went_in(value: Any) -> None:
    assert crossed(value) == value
    assert type(crossed(value)) is type(value)


def test_lists_and_sets_come_out_as_tuples_and_times_in_utc() -> None:
    assert crossed([1, [2, {3, 1}]]) == (1, (2, (1, 3)))
    there = datetime(2024, 1, 1, 3, tzinfo=timezone(timedelta(hours=3)))
    assert crossed(there) == crossed(datetime(2024, 1, 1)) == datetime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("value", [object(), 2**64, "\ud800", {"a": 1j}, len])
def test_what_has_no_form_on_the_wire_is_refused_where_it_is(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be sent"):
        pack([value])


# Reports


def reports_of(value: Any) -> Iterator[Any]:
    """Find every report in a value."""
    if dataclasses.is_dataclass(value):
        yield value
        for each in dataclasses.fields(value):
            yield from reports_of(getattr(value, each.name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from reports_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from reports_of(inner)


def compaction_of(log: lakebed.Log) -> list[Any]:
    """Compact a topic in the way of others; return the plan and the report."""
    log.create_topic("states", config={"cleanup": "compact"})
    log.append_batch("states", [{"key": b"k", "value": b"old"}, {"key": b"k", "value": b"new"}])
    log.checkpoint()
    plan = log.plan_compaction("states")
    bits = pack_survivors(np.array([1], dtype=np.int64), base=0, end=2)
    return [plan, log.rewrite_segments("states", 0, plan.partitions[0].segments, bits)]


def everything_that_is_told(log: lakebed.Log, copy: Path) -> list[Any]:
    """Make a log tell one of each of its reports."""
    log.create_topic("orders", 2, PRICE)
    log.append_batch("orders", [{"value": {"item": "tea", "price": 1}}] * 10)
    first = log.checkpoint()
    log.append("orders", {"item": "rum", "price": 2})
    log.commit_offsets("g", {("orders", 0): 1})
    told = [first, log.lake.sync(), log.retain(), log.lake.gc(now=True)]
    told += [log.stats(), log.describe_topic("orders"), log.describe_group("g")]
    told += [log.segments("orders", 0), log.table("orders").plan()]
    told += [log.lake.tables(), log.lake.history("orders")]
    told += compaction_of(log)
    told += derived_of(log)
    told.append(log.commit_together([], name="query", number=1))
    log.access.create_token("alice", roles=["admin"])
    log.access.allow("clerk", "read", "orders*")
    told += [log.backup(copy)]
    return [*told, log.access.tokens(), log.access.rules(), log.access.grants()]


def derived_of(log: lakebed.Log) -> list[Any]:
    """Make a derived table with a file in it; return what is told of it."""
    table = log.derived.create("totals", pa.schema([("id", pa.int64())]), key=["id"], buckets=1)
    rows = pa.table([[7], [0]], schema=table.schema)
    done = TableFiles({}).write(f"{log.derived.place('totals')}/a.parquet", table.schema, [rows])
    file = DerivedFile(done.location, 0, "data", done.rows, done.bytes)
    committed = log.derived.commit("totals", writer="w", number=1, added=[file], expected=0)
    return [table, committed, log.derived.files("totals")]


def test_every_report_comes_out_as_the_log_gave_it(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        told = list(reports_of(everything_that_is_told(log, tmp_path / "copy")))
    (tmp_path / "store").mkdir()
    with lakebed.open(f"file://{tmp_path}/store", folder=tmp_path / "shipped") as log:
        told += reports_of([log.stats().shipping])
    with lakebed.open(f"file://{tmp_path}/store", replica=True) as log:
        told += reports_of([log.stats().replica])
    told.append(CleanupFailure("orders", 2, "a file is damaged", failing=True))
    told.append(DenialInfo("reader", "read", "secret-*"))
    assert {type(each).__name__ for each in told} == set(REPORTS)
    for report in told:
        came = crossed(report)
        assert came == report
        assert repr(came) == repr(report)


def test_a_failure_of_a_sync_crosses_with_its_report() -> None:
    report = REPORTS["SyncReport"](errors={"t": errors.CorruptionError("bad", at=7)})
    came = crossed(report)
    assert came.failures == report.failures
    assert type(came.errors["t"]) is errors.CorruptionError


def test_a_field_that_is_not_known_here_is_left_out_of_a_report() -> None:
    fields = {"principal": "a", "role": "b", "since": 5}
    newer = msgpack.packb(msgpack.ExtType(1, pack(["GrantInfo", fields])))
    assert unpack(newer) == REPORTS["GrantInfo"]("a", "b")


@pytest.mark.parametrize(
    "given",
    [
        ["Log", {}],
        ["os.system", {"command": "true"}],
        ["GrantInfo", {"principal": "a"}],
        ["GrantInfo", {"principal": "a", "role": 5}],
        ["GrantInfo", {1: "a"}],
        ["GrantInfo", [1]],
        ["GrantInfo"],
        [["GrantInfo"], {}],
        {"GrantInfo": {}},
        7,
        None,
    ],
)
def test_what_is_no_report_is_refused(given: Any) -> None:
    with pytest.raises(ProtocolError, match="not a report"):
        unpack(msgpack.packb(msgpack.ExtType(1, pack(given))))


# Errors


def kinds(kind: type[LakebedError] = LakebedError) -> list[type[LakebedError]]:
    """Return the errors that callers know, each before those below it."""
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return [kind, *(found for each in below for found in kinds(each))]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_comes_out_with_class_message_and_facts(kind: type[LakebedError]) -> None:
    error = kind("it is so", topic="t", partition=3, path=Path("x"), ratio=0.5, missing=None)
    for came in (unpack_error(pack_error(error)), crossed([error])[0]):
        assert type(came) is kind
        assert (came.message, came.code, came.retriable) == ("it is so", kind.code, kind.retriable)
        assert came.facts == {**error.facts, "path": "x"}
        assert str(came) == str(error)


def test_an_error_of_a_newer_server_keeps_what_it_says() -> None:
    sent = msgpack.packb({"code": "moon", "message": "it is full", "facts": {"phase": 3}})
    came = unpack_error(sent)
    assert type(came) is LakebedError
    assert (came.message, came.facts["unknown_code"], came.facts["phase"]) == (
        "it is full",
        "moon",
        3,
    )


# What arrives from anybody


def extension(code: int, data: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(code, data))
    return packed


def nested(depth: int) -> bytes:
    data = b"\xc0"
    for _ in range(depth):
        data = extension(1, data)
    return data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\xc0\xc0",
        b"\xa1\xff",
        b"\x81\x80\x80",
        extension(9, b"x"),
        extension(2, b"no schema"),
        extension(2, b"\0" * (SCHEMA_BYTES_MAX + 1)),
        extension(3, b"noon"),
        extension(3, b"9" * 100),
        extension(3, b"9" * 10_000),
        nested(20_000),
    ],
    ids=lambda data: f"{data[:6].hex()}-{len(data)}",
)
def test_what_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        unpack(data)
    assert len(str(caught.value)) < 500


def test_a_message_that_is_too_large_is_not_looked_at() -> None:
    with pytest.raises(ProtocolError, match="too large"):
        unpack(b"\xc0" * (MESSAGE_BYTES_MAX + 1))


SEEDS = [
    pack({"call": "read", "topic": "t", "partition": 0, "offset": "earliest", "wait_ms": 5}),
    pack({"call": "fetch", "places": [("t", 0, 5)], "ids": {"t": 1}, "turn": 0}),
    pack({"call": "scan", "topic": "t", "columns": ["offset"], "start": {0: 1}}),
    pack([1, "producer", 1, 1, 1, 0, [(0, 2, 0)]]),
    pack([1, "transaction", 1, 1, 1, 0, [(0, 2)]]),
    pack([1, "record", b"value", b"key", {"h": b"1"}, 0, 5]),
    pack([1, "write", None]),
    pack({"name": "t", "partitions": 3, "schema": PRICE, "config": {"cleanup": "compact"}}),
    pack(REPORTS["GrantInfo"]("a", "b")),
    pack([LakebedError("m", a=1), datetime(2024, 1, 1, tzinfo=UTC)]),
]


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """Return a message with some bytes replaced, left out or put in."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


WIRE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.sampled_from(["t", "read", "producer", "transaction", "record", "write", "earliest"]),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | spoiled())
def test_any_bytes_are_a_value_or_a_protocol_error(data: bytes) -> None:
    try:
        unpack(data)
    except ProtocolError as error:
        assert len(str(error)) < 500
    assert isinstance(unpack_error(data), LakebedError)


TICKET_FIELDS = ("topic", "columns", "where", "places", "partition", "turn", "until")


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=100)
    | spoiled()
    | st.dictionaries(st.sampled_from(TICKET_FIELDS), WIRE, max_size=5).flatmap(
        lambda fields: st.sampled_from(["read", "fetch", "scan", "range", "as_of", "nope"]).map(
            lambda call: pack({**fields, "call": call})
        )
    )
)
def test_any_ticket_is_one_or_a_typed_error(data: bytes) -> None:
    for use in (
        Ticket.topics,
        Ticket.columns,
        Ticket.where,
        Ticket.places,
        lambda ticket: ticket.whole("turn"),
    ):
        try:
            use(Ticket(data))
        except (ProtocolError, InvalidArgumentError) as error:
            assert len(str(error)) < 1000


@pytest.mark.parametrize("extension", [1, 4])
def test_a_request_holds_no_reports_and_no_errors(extension: int) -> None:
    inner = {1: pack(["GrantInfo", {"principal": "a", "role": "b"}]), 4: pack_error(ERROR)}
    value = msgpack.ExtType(extension, inner[extension])
    unpack(pack([value]))
    with pytest.raises(ProtocolError, match="something unknown"):
        unpack_request(pack([value]))
    with pytest.raises(ProtocolError, match="something unknown"):
        Ticket(pack({"call": "scan", "topic": "t", "where": value}))


def test_a_request_holds_schemas_and_times_and_is_not_too_large() -> None:
    given = (PRICE, datetime(2024, 2, 29, tzinfo=UTC))
    assert unpack_request(pack(given)) == given
    with pytest.raises(ProtocolError, match="too large"):
        unpack_request(b"\xc0" * (MESSAGE_BYTES_MAX + 1))


def test_a_ticket_asks_for_no_more_than_a_server_gives() -> None:
    def bounds(records: int, size: int) -> Bounds:
        ticket = {"call": "read", "topic": "t", "max_records": records, "max_bytes": size}
        return Ticket(pack(ticket)).bounds()

    assert bounds(5, 6) == Bounds(5, 6)
    assert bounds(2**60, 2**60) == Bounds(1_000_000, 64 << 20)
    with pytest.raises(InvalidArgumentError, match="max_bytes"):
        bounds(1, 0)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(OPERATIONS)), WIRE | st.dictionaries(st.text(max_size=12), WIRE))
def test_any_request_has_the_parameters_of_its_call_or_is_refused(name: str, request: Any) -> None:
    try:
        request = check_parameters(OPERATIONS[name], crossed(request))
    except ProtocolError:
        return
    assert set(request) <= set(OPERATIONS[name].request)


@pytest.mark.parametrize(
    ("name", "request_", "place"),
    [
        ("forget_producer", {"producer": 1, "epoch": -1}, "$.epoch"),
        ("forget_producer", {"producer": 1}, "epoch"),
        ("forget_producer", {"producer": True, "epoch": 1}, "$.producer"),
        ("heartbeat", {"group": "g", "member": "m", "held": (("t", "0"),)}, "$.held[0][1]"),
        ("commit_offsets", {"group": "g", "offsets": (({}, 0, 1),)}, "$.offsets[0][0]"),
        ("commit_offsets", {"group": "g", "offsets": (("t", 0),)}, "$.offsets[0]"),
        (
            "commit_transaction",
            {"producer": 1, "epoch": 1, "offsets": (("g", "", 1, -1, 0),)},
            "$.offsets[0][3]",
        ),
        ("join", (), "object"),
    ],
)
def test_what_does_not_fit_in_a_request_is_named(name: str, request_: Any, place: str) -> None:
    with pytest.raises(ProtocolError, match="does not fit") as caught:
        check_parameters(OPERATIONS[name], request_)
    assert place in str(caught.value.facts["reason"])
    assert caught.value.facts["call"] == name


MESSAGES = (
    st.tuples(st.integers(0, 2**31), st.sampled_from(["producer", "transaction"])).flatmap(
        lambda head: st.tuples(
            *(st.integers(-2, 3) | st.integers(-(2**63), 2**64 - 1),) * 4,
            st.lists(st.tuples(*(st.integers(-1, 3) | st.just(2**64 - 1),) * 3), max_size=3)
            | st.just([(0, 2, 0)])
            | st.just([(0, 2)])
            | WIRE,
        ).map(lambda rest: pack([*head, *rest]))
    )
    | st.tuples(WIRE, WIRE, WIRE, WIRE, WIRE).map(lambda rest: pack([1, "record", *rest]))
    | st.lists(WIRE, max_size=7).map(pack)
    | WIRE.map(lambda partition: pack([1, "write", partition]))
    | spoiled()
    | st.none()
)
BATCHES = [
    pa.record_batch({"value": [b"a", b"b"]}),
    pa.record_batch({"value": ["a"], "nope": [1]}),
    pa.record_batch({"value": pa.array([], pa.binary())}),
    pa.record_batch({}),
    None,
]


def test_any_put_message_is_answered_once_or_ends_the_stream() -> None:
    with quiet() as log:
        log.create_topic("t")
        pool = AckPool()
        written: list[bytes] = []

        @settings(max_examples=300, deadline=None)
        @given(MESSAGES, st.sampled_from(BATCHES))
        def put(message: bytes | None, batch: pa.RecordBatch | None) -> None:
            written.clear()
            stream = PutStream(
                log=inner(log),
                principal=Principal("alice", "", "peer"),
                topic="t",
                pool=pool,
                write=lambda buffer: written.append(buffer.to_pybytes()),
                admit=lambda _: nullcontext(),
            )
            try:
                stream.take(batch, message)
            except ProtocolError:
                stream.finish()
                assert written == []
                return
            stream.finish()
            ((number, answer),) = unpack(written[0])
            assert type(number) is int
            assert isinstance(answer, tuple | LakebedError)

        put()
        pool.close()
        until(lambda: pool._threads == 0)
        log.append("t", b"it goes on")


def test_a_put_to_a_log_that_is_being_closed_is_told_to_come_back() -> None:
    pool = AckPool()
    written: list[bytes] = []
    with quiet() as log:
        log.create_topic("t")
        stream = PutStream(
            log=inner(log),
            principal=Principal("alice", "", "peer"),
            topic="t",
            pool=pool,
            write=lambda buffer: written.append(buffer.to_pybytes()),
            admit=lambda _: nullcontext(),
        )
    stream.take(BATCHES[0], pack([7, "write", None]))
    stream.finish()
    pool.close()
    ((number, answer),) = unpack(written[0])
    assert number == 7
    assert isinstance(answer, ServerUnavailableError)
    until(lambda: pool._threads == 0)
