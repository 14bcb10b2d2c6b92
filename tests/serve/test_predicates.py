"""Predicates of a served log: they give the rows that they give embedded, or a typed error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakebed
from lakebed import Log, ServeConfig, limits
from lakebed.api.table import Table
from lakebed.client.connection import Connection
from lakebed.client.log import RemoteLog
from lakebed.client.table import RemoteTable
from lakebed.errors import InvalidArgumentError, ProtocolError
from lakebed.serve.gets import Ticket
from lakebed.serve.server import Server
from lakebed.wire import expressions
from lakebed.wire.expressions import pack_predicate
from lakebed.wire.filters import filter_expression, filter_tree
from lakebed.wire.predicates import FUNCTIONS, unpack_predicate
from lakebed.wire.protocol import pack, unpack
from tests.serve.inside import connection_of, quotas_of
from tests.waiting import until

SCHEMA = pa.schema(
    [
        ("small", pa.int32()),
        ("whole", pa.int64()),
        ("single", pa.float32()),
        ("real", pa.float64()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("local", pa.timestamp("us")),
        ("money", pa.decimal128(20, 4)),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
    ]
)
START = datetime(2024, 2, 29, 12, tzinfo=UTC)


def row(number: int) -> dict[str, Any] | None:
    if number % 10 == 9:
        return None
    value: dict[str, Any] = {
        "small": number % 100,
        "whole": number - 20,
        "single": number / 4,
        "real": math.nan if number % 7 == 0 else number / 8,
        "text": f"Text-{number % 5}",
        "bytes": b"\xff%d" % (number % 5),
        "flag": number % 2 == 0,
        "day": date(2024, 1, 1 + number % 28),
        "local": datetime(2024, 1, 1 + number % 28, number % 24),
        "money": Decimal(number) / 4,
        "place": {"city": f"city-{number % 3}", "zip": number},
    }
    return value if number % 11 else dict.fromkeys(value)


def field(*names: str) -> Any:
    return pc.field("value", *names)


whole, text, stamp = field("whole"), field("text"), pc.field("timestamp")
NOW_US = int(START.timestamp()) * 1_000_000
PREDICATES: dict[str, pc.Expression] = {
    "equal": whole == 3,
    "not equal": whole != 3,
    "less": whole < 3,
    "less or equal": whole <= 3,
    "greater": whole > 3,
    "greater or equal": whole >= 3,
    "and": (whole > -5) & (text == "Text-1"),
    "or": (whole > 15) | field("flag"),
    "not": ~(whole > 3),
    "a chain of ors": reduce(lambda a, b: a | b, [whole == number for number in range(200)]),
    "a mixed chain": reduce(
        lambda a, n: (a & (whole != n)) if n % 2 else (a | (whole == n)), range(30), whole > 5
    ),
    "null": whole.is_null(),
    "null, by the function": pc.is_null(field("real"), nan_is_null=True),
    "null or not a number": field("real").is_null(nan_is_null=True),
    "valid": field("place").is_valid(),
    "not a number": field("real").is_nan(),
    "in numbers": whole.isin([1, 2, 3, 1000]),
    "in numbers and null": whole.isin(pa.array([1, None], pa.int64())),
    "in numbers, nulls skipped": pc.is_in(whole, value_set=pa.array([1, None]), skip_nulls=True),
    "in nothing": whole.isin(pa.array([], pa.int64())),
    "in texts": text.isin(["Text-1", "Text-2"]),
    "in keys": pc.field("key").isin([b"k1", b"k2"]),
    "in days": field("day").isin(pa.array([date(2024, 1, 3)], pa.date32())),
    "in money": field("money").isin(pa.array([Decimal("1.5000")], pa.decimal128(20, 4))),
    "in times": stamp.isin(pa.array([NOW_US + 3], pa.timestamp("us", "UTC"))),
    "added": whole + 1 == 4,
    "subtracted": whole - 1 == 4,
    "multiplied": whole * 2 == 4,
    "divided": whole / 2 == 4,
    "unchecked": pc.divide(pc.multiply(pc.subtract(pc.add(whole, 1), 2), 3), 3) == 1,
    "negated": pc.negate(whole) > 3,
    "negated and checked": pc.negate_checked(whole) > 3,
    "begins": pc.starts_with(text, "Text-1"),
    "begins in any case": pc.starts_with(text, "tEXT-1", ignore_case=True),
    "ends": pc.ends_with(text, "-2"),
    "contains": pc.match_substring(text, "xt-3"),
    "lower": pc.utf8_lower(text) == "text-1",
    "upper": pc.utf8_upper(text) == "TEXT-1",
    "cast": field("small").cast(pa.int64()) * 1000 > 5000,
    "cast, unsafe": field("real").cast(pa.int32(), safe=False) == 1,
    "int8": field("small") == pa.scalar(5, pa.int8()),
    "uint32": field("small") > pa.scalar(5, pa.uint32()),
    "float": field("single") == pa.scalar(0.75, pa.float32()),
    "double": field("real") <= 0.5,
    "infinite": field("real") < math.inf,
    "text": text == "Text-1",
    "large text": text == pa.scalar("Text-1", pa.large_string()),
    "bytes": field("bytes") == b"\xff1",
    "boolean": field("flag") == True,  # noqa: E712
    "flag alone": field("flag"),
    "literal": pc.scalar(True),
    "null literal": pc.scalar(None).cast(pa.bool_()),
    "day": field("day") >= date(2024, 1, 9),
    "clock": field("local").cast(pa.time64("us")) >= time(12, 0),
    "local time": field("local") >= datetime(2024, 1, 9),
    "span": field("local") - datetime(2024, 1, 1) > timedelta(days=9),
    "money": field("money") > Decimal("2.25"),
    "timestamp": pc.scalar(START) < stamp,
    "timestamp in another zone": stamp >= pa.scalar(NOW_US + 5, pa.timestamp("us", "+02:00")),
    "timestamp in seconds": stamp > pa.scalar(NOW_US // 10**6, pa.timestamp("s", "UTC")),
    "nested": field("place", "city") == "city-1",
    "offset": pc.field("offset") < 7,
    "partition": pc.field("partition") == 0,
}


class Tables(NamedTuple):
    """A topic as a table, embedded and served."""

    embedded: Table
    served: RemoteTable
    connection: Connection


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """Serve a log with records of every type, in segments and in memory."""
    log = Log.open(tmp_path_factory.mktemp("predicates") / "log")
    log.create_topic("t", schema=SCHEMA)
    rows = [{"key": b"k%d" % (n % 9), "timestamp": NOW_US + n, "value": row(n)} for n in range(60)]
    log.append_batch("t", rows[:40])
    log.checkpoint()
    log.append_batch("t", rows[40:])
    with Server(log, ServeConfig(port=0, http_port=-1, stop_timeout_ms=1000)) as server:
        client = lakebed.open(server.url)
        assert isinstance(client, RemoteLog)
        with client:
            table = client.table("t")
            assert isinstance(table, RemoteTable)
            yield Tables(log.table("t"), table, connection_of(client))


@pytest.mark.parametrize("name", PREDICATES)
def test_a_predicate_gives_the_same_records_embedded_and_served(tables: Tables, name: str) -> None:
    where = PREDICATES[name]
    columns = ["offset", "key"]
    embedded = tables.embedded.scan(columns, where).read_all()
    assert tables.served.scan(columns, where).read_all().equals(embedded)
    assert tables.served.as_of(50, columns=columns, where=where).equals(
        tables.embedded.as_of(50, columns=columns, where=where)
    )


def test_every_function_is_tried_above() -> None:
    used: set[str] = set()

    def look(tree: Any) -> None:
        if isinstance(tree, list) and tree and isinstance(tree[0], str):
            used.add(tree[0])
            for each in tree[1:]:
                look(each)

    for where in PREDICATES.values():
        look(pack_predicate(where))
    assert used >= FUNCTIONS


@pytest.mark.parametrize("name", ["it's: 'x'\n", "end: 'equal'", "é\0", ""])
def test_a_field_may_have_any_name(name: str) -> None:
    where = (pc.field(name) == 1) & (pc.field("a", name) == name)
    assert unpack_predicate(unpack(pack(pack_predicate(where)))).equals(where)


# Filters: plain data

FILTERS: dict[str, tuple[list[Any], Any]] = {
    "equal": ([(("value", "whole"), "=", 3)], whole == 3),
    "equal, as Python has it": ([(["value", "whole"], "==", 3)], whole == 3),
    "not equal": ([(("value", "text"), "!=", "Text-1")], text != "Text-1"),
    "less": ([("offset", "<", 7)], pc.field("offset") < 7),
    "less or equal": ([("offset", "<=", 7)], pc.field("offset") <= 7),
    "greater": ([("timestamp", ">", START)], stamp > pc.scalar(START)),
    "greater or equal": (
        [(("value", "money"), ">=", Decimal("2.25"))],
        field("money") >= Decimal("2.25"),
    ),
    "a day": ([(("value", "day"), ">=", date(2024, 1, 9))], field("day") >= date(2024, 1, 9)),
    "in": ([("key", "in", {b"k1"})], pc.field("key").isin([b"k1"])),
    "in, with null": ([(("value", "whole"), "in", [1, None])], whole.isin(pa.array([1, None]))),
    "not in": ([(("value", "whole"), "not in", (1, 2))], ~whole.isin([1, 2])),
    "in nothing": ([(("value", "whole"), "in", [])], whole.isin(pa.array([], pa.int64()))),
    "all": (
        [("offset", ">", 5), (("value", "flag"), "=", True), ("partition", "=", 0)],
        (pc.field("offset") > 5) & (field("flag") == True) & (pc.field("partition") == 0),  # noqa: E712
    ),
    "one of": (
        [[("offset", "<", 3)], [("offset", ">", 50), ("partition", "=", 0)]],
        (pc.field("offset") < 3) | ((pc.field("offset") > 50) & (pc.field("partition") == 0)),
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_give_the_records_of_the_expression_embedded_and_served(
    tables: Tables, name: str
) -> None:
    filters, where = FILTERS[name]
    expected = tables.embedded.scan(["offset"], where).read_all()
    assert tables.embedded.scan(["offset"], filters).read_all().equals(expected)
    assert tables.served.scan(["offset"], filters).read_all().equals(expected)
    assert tables.served.as_of(50, columns=["offset"], where=filters).equals(
        tables.embedded.as_of(50, columns=["offset"], where=where)
    )


def test_filters_are_those_of_pyarrow() -> None:
    for filters, _ in FILTERS.values():
        tree = filter_tree(filters)
        assert unpack(pack(tree)) == unpack(pack(pack_predicate(filter_expression(filters))))
    assert pq.filters_to_expression([("offset", ">", 5)]).equals(
        filter_expression([("offset", ">", 5)])
    )


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ([], "at least one filter"),
        ([[("offset", ">", 5)], []], "at least one filter"),
        (["offset > 5"], "must be a tuple of column, operator and value"),
        ([("offset", ">")], "must be a tuple of column, operator and value"),
        ([("offset", "~", 5)], "unknown operator"),
        ([("offset", ["="], 5)], "unknown operator"),
        ([(5, ">", 5)], "must be a name or a tuple of names"),
        ([((), ">", 5)], "do not take this predicate"),
        ([("offset", "in", 5)], "must be a collection"),
        ([("offset", "in", "57")], "must be a collection"),
        ([("offset", "=", object())], "is not one of Arrow"),
        ([("offset", "in", [1, "x"])], "is not one of Arrow"),
        ([("offset", "=", [1])], "do not take this in a predicate"),
        ([("offset", "=", 2**64)], "is not one of Arrow"),
        ([("offset", "=", n) for n in range(400)], "too many nodes"),
        ([("nope", "=", 1)], "does not fit the table"),
    ],
)
def test_wrong_filters_are_refused_alike(tables: Tables, filters: Any, problem: str) -> None:
    for table in (tables.embedded, tables.served):
        with pytest.raises(InvalidArgumentError) as caught:
            table.scan(where=filters)
        assert problem in str(caught.value)


# Expressions are read from what pyarrow pickles, which it does not document


def test_values_that_are_not_a_number_are_taken(tables: Tables) -> None:
    nan = pa.array([math.nan, 0.5])
    for where in (field("real").isin(nan), field("real") != math.nan, field("real") == -0.0):
        expected = tables.embedded.scan(["offset"], where).read_all()
        assert tables.served.scan(["offset"], where).read_all().equals(expected)


@pytest.mark.parametrize(
    "metadata",
    [
        [("call", "less"), ("field_ref", "offset"), ("literal", "0"), ("end", "less")],
        [("call", "greater"), ("field_ref", "key"), ("literal", "0"), ("end", "greater")],
        [("call", "greater"), ("literal", "0"), ("field_ref", "offset"), ("end", "greater")],
        [("call", "invert"), ("field_ref", "offset"), ("end", "invert")],
        [("call", "greater"), ("field_ref", "offset"), ("literal", "7"), ("end", "greater")],
        [("call", "greater"), ("literal", "zero"), ("end", "greater")],
        [("call", "greater"), ("field_ref", "offset"), ("end", "greater")],
        [("call", "greater")],
        [("end", "greater")],
        [],
    ],
)
def test_an_expression_that_is_read_as_another_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, metadata: list[tuple[str, str]]
) -> None:
    """What a later version of pyarrow may write: never another predicate, but an error."""
    monkeypatch.setattr(expressions, "schema_metadata", lambda _: metadata)
    with pytest.raises(InvalidArgumentError, match="pass filters"):
        pack_predicate(pc.field("offset") > 5)


# What is not taken


@pytest.mark.parametrize(
    ("where", "named"),
    [
        (pc.if_else(field("flag"), 1, 2) == 1, "if_else"),
        (pc.match_substring_regex(text, "x+"), "match_substring_regex"),
        (pc.match_like(text, "x%"), "match_like"),
        (pc.year(stamp) == 2024, "year"),
        (pc.and_(field("flag"), field("flag")), "and_"),
        (pc.index_in(whole, value_set=pa.array([1])) == 0, "index_in"),
        (whole == pa.scalar([1]), "list"),
        (whole.cast(pa.list_(pa.int64())).is_valid(), "list"),
        (whole.cast(options=pc.CastOptions(pa.int8(), allow_int_overflow=True)) == 1, "cast"),
        (pc.starts_with(text, "x" * 5000), "starts_with"),
        (whole.isin(list(range(limits.PREDICATE_VALUES_MAX + 1))), "values"),
        (reduce(lambda a, _: ~a, range(70), field("flag")), "nested"),
        (reduce(lambda a, b: a | b, [whole == n for n in range(400)]), "nodes"),
    ],
)
def test_what_a_server_does_not_take_is_refused_by_name_at_the_client(
    tables: Tables, where: pc.Expression, named: str
) -> None:
    with pytest.raises(InvalidArgumentError, match="filter the result instead") as caught:
        tables.served.scan(where=where)
    assert named in str(caught.value)


DEEP: Any = ["field", "flag"]
for _ in range(limits.PREDICATE_DEPTH_MAX):
    DEEP = ["invert", DEEP]
X, ONE = ["field", "x"], ["value", 1]
BAD: dict[str, tuple[Any, str]] = {
    "a number": (5, "begins with its kind"),
    "a text": ("field", "begins with its kind"),
    "bytes": (b"\xff" * 100, "begins with its kind"),
    "a map": ({"field": "x"}, "begins with its kind"),
    "empty": ([], "begins with its kind"),
    "no kind": ([1, 2], "begins with its kind"),
    "a field of a position": (["field", 1], "other parts"),
    "no name": (["field"], "other parts"),
    "too many names": (["field", *["a"] * 65], "other parts"),
    "no value": (["value"], "other parts"),
    "a list as a value": (["value", [1]], "needs a type"),
    "too large a number": (["value", 2**64 - 1], "cannot be read"),
    "an unknown type": (["value", 1, "int128"], "does not have this type"),
    "a nested type": (["value", None, "list<item: int64>"], "does not have this type"),
    "a type that is none": (["value", 1, 5], "not a name"),
    "a long type": (["value", 1, "x" * 1000], "not a name"),
    "text as a number": (["value", "1", "int32"], "of another type"),
    "a boolean as a number": (["value", True, "int32"], "of another type"),
    "a number as text": (["value", 1, "string"], "of another type"),
    "text as bytes": (["value", "x", "binary"], "of another type"),
    "text as a time": (["value", "2024", "timestamp[us]"], "of another type"),
    "a number beyond its type": (["value", 300, "int8"], "cannot be read"),
    "a time beyond its type": (["value", 2**63, "timestamp[us]"], "cannot be read"),
    "a decimal that is none": (["value", "1e999999999", "decimal128(3, 2)"], "not digits"),
    "a decimal beyond its type": (["value", "123456.78", "decimal128(3, 2)"], "cannot be read"),
    "no such precision": (["value", "1", "decimal128(99, 2)"], "cannot be read"),
    "bytes of another size": (["value", b"abc", "fixed_size_binary[4]"], "cannot be read"),
    "a function that is not there": (["if_else", X, X, X], "does not have this"),
    "a hostile name": (["__import__", X], "does not have this"),
    "one node too few": (["equal", X], "other parts"),
    "one node too many": (["equal", X, X, X], "other parts"),
    "an or of one": (["or_kleene", X], "other parts"),
    "is_null without its option": (["is_null", X], "other parts"),
    "is_in of no list": (["is_in", X, "int64", 5, False], "other parts"),
    "is_in of mixed values": (["is_in", X, "int64", [1, "a"], False], "of another type"),
    "is_in of too many": (
        ["is_in", X, "int64", [1] * (limits.PREDICATE_VALUES_MAX + 1), False],
        "too many values",
    ),
    "a pattern of a number": (["starts_with", X, 5, False], "other parts"),
    "a long pattern": (["match_substring", X, "x" * 5000, True], "other parts"),
    "a cast to nothing": (["cast", X, None, True], "not a name"),
    "a cast that is half safe": (["cast", X, "int8", 1], "other parts"),
    "too deep": (DEEP, "nested too deeply"),
    "far too deep": (b"\x92\xa6invert" * 500 + b"\xc0", "begins with its kind"),
    "too many nodes": (["or_kleene", *[X] * limits.PREDICATE_NODES_MAX], "too many nodes"),
    "too many in all": (["and_kleene", *[["or_kleene", *[X] * 40]] * 40], "too many nodes"),
}


@pytest.mark.parametrize("name", BAD)
def test_any_other_tree_is_a_protocol_error(name: str) -> None:
    tree, problem = BAD[name]
    ticket = Ticket(pack({"call": "scan", "topic": "t", "where": tree}))
    with pytest.raises(ProtocolError, match=problem) as caught:
        ticket.where()
    assert len(str(caught.value)) < 1000


def test_arrows_own_form_is_not_read() -> None:
    (buffer,) = (whole > 5).__reduce__()[1]
    with pytest.raises(ProtocolError, match="begins with its kind"):
        Ticket(pack({"call": "scan", "topic": "t", "where": buffer.to_pybytes()})).where()


def test_the_largest_predicates_are_worked_out(tables: Tables) -> None:
    deep: Any = ["field", "value", "flag"]
    for _ in range(limits.PREDICATE_DEPTH_MAX - 1):
        deep = ["invert", deep]
    wide: Any = ["or_kleene", *[["is_valid", ["field", "value"]]] * 499]
    both: Any = ["field", "value", "flag"]
    for _ in range(limits.PREDICATE_DEPTH_MAX - 1):
        both = ["and_kleene", both, *[["field", "value", "flag"]] * 14]
    expected = tables.embedded.scan(["offset"], ~field("flag")).read_all().num_rows
    assert tables.connection.get(scan(deep))[0].num_rows == expected
    assert tables.connection.get(scan(wide))[0].num_rows == 54
    assert tables.connection.get(scan(both))[0].num_rows < 54


def scan(tree: Any) -> dict[str, Any]:
    return {"call": "scan", "topic": "t", "columns": ["offset"], "where": tree}


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
TYPES = st.sampled_from(
    [
        *("int8", "uint64", "double", "string", "binary", "bool", "null", "date32[day]"),
        *("date64[ms]", "time32[s]", "duration[ms]", "timestamp[us]", "timestamp[ns, tz=UTC]"),
        *("timestamp[s, tz=nowhere]", "decimal128(5, 2)", "decimal256(70, -3)"),
        "fixed_size_binary[2]",
    ]
)
LEAVES = (
    st.sampled_from([["field", "offset"], ["field", "value", "text"], ["field", "nope"]])
    | SCALARS.map(lambda value: ["value", value])
    | st.tuples(SCALARS, TYPES).map(lambda pair: ["value", *pair])
    | SCALARS
)
TREES = st.recursive(
    LEAVES,
    lambda below: (
        st.tuples(st.sampled_from(sorted(FUNCTIONS)), below).map(list)
        | st.tuples(st.sampled_from(sorted(FUNCTIONS)), below, below).map(list)
        | st.tuples(st.sampled_from(sorted(FUNCTIONS)), below, SCALARS, st.booleans()).map(list)
        | st.tuples(st.just("cast"), below, TYPES, st.booleans()).map(list)
        | st.tuples(st.just("is_null"), below, st.booleans()).map(list)
        | st.tuples(
            st.just("is_in"), below, TYPES, st.lists(SCALARS, max_size=3), st.booleans()
        ).map(list)
        | st.lists(below, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_any_tree_is_a_predicate_or_a_typed_error(tree: Any) -> None:
    try:
        where = Ticket(pack({"call": "scan", "topic": "t", "where": tree})).where()
    except ProtocolError as error:
        assert len(str(error)) < 1000
        return
    assert where is None or isinstance(where, pc.Expression)


def test_any_tree_is_worked_out_by_a_server_or_refused(tables: Tables) -> None:
    @settings(max_examples=150, deadline=None)
    @given(TREES)
    def look(tree: Any) -> None:
        try:
            tables.connection.get(scan(tree))
        except (ProtocolError, InvalidArgumentError) as error:
            assert len(str(error)) < 3000

    look()


# Whole tables


def test_a_whole_table_counts_as_bytes_on_their_way_until_it_is_sent(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log")
    log.create_topic("t")
    batch = pa.record_batch(
        {
            "key": pa.array([b"%d" % n for n in range(80)], pa.binary()),
            "value": pa.array([bytes(1 << 19)] * 80, pa.binary()),
        }
    )
    for place in range(0, 80, 10):
        log.append_batch("t", batch.slice(place, 10))
        log.checkpoint()
    config = ServeConfig(
        port=0, http_port=-1, stop_timeout_ms=1000, principal_inflight_bytes_max=1 << 20
    )
    with Server(log, config) as server:
        quotas = quotas_of(server)
        with lakebed.open(server.url) as client:
            assert isinstance(client, RemoteLog)
            for ticket in ({"call": "latest"}, {"call": "as_of", "offset": 80}):
                reader = connection_of(client).stream({**ticket, "topic": "t"})
                assert quotas.inflight_bytes > 40 << 20, "it passes alone, and counts"
                assert reader.read_all().num_rows == 80
                until(lambda: quotas.inflight_bytes == 0)
            assert client.table("t").latest(["key"]).num_rows == 80
