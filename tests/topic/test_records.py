"""What a caller gives becomes one storage batch, or an error that names the column."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed import limits
from lakebed.errors import (
    CorruptionError,
    InvalidArgumentError,
    LakebedError,
    RecordTooLargeError,
    SchemaMismatchError,
)
from lakebed.topic import records
from lakebed.topic.schema import reader_schema, storage_schema

NOW = 1_700_000_000_000_000
RAW = pa.binary()
MAP = pa.map_(pa.string(), pa.binary())
ORDER = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("who", pa.struct([pa.field("age", pa.int32()), pa.field("tag", pa.string())])),
        pa.field("lines", pa.list_(pa.struct([pa.field("sku", pa.string(), nullable=False)]))),
        pa.field("attributes", pa.map_(pa.string(), pa.int64())),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
FULL = {
    "id": 1,
    "name": "n",
    "who": {"age": 2, "tag": "t"},
    "lines": [{"sku": "s"}],
    "attributes": [("a", 1)],
    "at": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
}


def normalize(data: Any, kind: pa.DataType = RAW, bytes_max: int = 1000) -> pa.RecordBatch:
    batch = records.normalize(data, kind, now_us=NOW, record_bytes_max=bytes_max)
    batch.validate(full=True)
    assert batch.schema.equals(storage_schema(kind))
    assert batch.column("timestamp").null_count == 0
    return batch


def column(batch: pa.RecordBatch, name: str) -> list[Any]:
    values: list[Any] = batch.column(name).to_pylist()
    return values


def micros(batch: pa.RecordBatch) -> list[int]:
    values: list[int] = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return values


def refused(data: Any, kind: pa.DataType = RAW) -> SchemaMismatchError:
    with pytest.raises(SchemaMismatchError) as caught:
        normalize(data, kind)
    assert {"column", "expected", "got"} <= caught.value.facts.keys()
    return caught.value


# --- raw topics, Arrow columns


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(2),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=str,
)
def test_text_and_bytes_in_any_layout_become_bytes(kind: pa.DataType) -> None:
    plain: list[Any] = ["aa", None, "cc"] if "string" in str(kind) else [b"aa", None, b"cc"]
    values, keys = pa.array(plain, kind), pa.array([plain[2], plain[0], plain[1]], kind)
    batch = normalize(pa.table({"value": values, "key": keys}))
    assert column(batch, "value") == [b"aa", None, b"cc"]
    assert column(batch, "key") == [b"cc", b"aa", None]


def test_missing_columns_are_null_and_the_time_is_now() -> None:
    batch = normalize(pa.record_batch({"value": [b"a", b"b"]}))
    assert micros(batch) == [NOW, NOW]
    assert column(batch, "key") == column(batch, "headers") == [None, None]


def test_columns_of_type_null_are_null() -> None:
    nulls = pa.nulls(2)
    table = pa.table({"value": ["a", "b"], "key": nulls, "headers": nulls, "timestamp": nulls})
    batch = normalize(table)
    assert micros(batch) == [NOW, NOW]
    assert column(batch, "key") == column(batch, "headers") == [None, None]


@pytest.mark.parametrize(
    ("kind", "value", "expected_us"),
    [
        (pa.timestamp("us", tz="UTC"), 5, 5),
        (pa.timestamp("us"), 5, 5),
        (pa.timestamp("s"), 5, 5_000_000),
        (pa.timestamp("ms", tz="Europe/Berlin"), 5, 5_000),
        (pa.timestamp("ns", tz="UTC"), 5_999, 5),
    ],
    ids=str,
)
def test_timestamps_of_any_unit_and_zone_become_microseconds_in_utc(
    kind: pa.DataType, value: int, expected_us: int
) -> None:
    times = pa.array([value, None], pa.int64()).cast(kind)
    assert micros(normalize(pa.table({"value": ["a", "b"], "timestamp": times}))) == [
        expected_us,
        NOW,
    ]


def test_headers_of_text_become_bytes() -> None:
    headers = pa.array([[("a", "1")], None, []], pa.map_(pa.large_string(), pa.string()))
    batch = normalize(pa.table({"value": ["x"] * 3, "headers": headers}))
    assert column(batch, "headers") == [[("a", b"1")], None, []]


def test_what_was_read_can_be_written_elsewhere() -> None:
    batch = normalize([{"value": b"v", "key": b"k", "headers": {"a": b"1"}, "timestamp": 9}])
    read = records.with_position(batch, 3, 17)
    assert normalize(read).equals(batch)
    assert normalize(pa.Table.from_batches([read])).equals(batch)


def test_columns_that_are_right_are_not_copied() -> None:
    batch = normalize([{"value": b"v" * 10, "key": b"k", "headers": {"a": b"1"}}] * 3)
    again = normalize(batch)
    for name in batch.schema.names:
        was, now = batch.column(name).buffers(), again.column(name).buffers()
        assert [b and b.address for b in was] == [b and b.address for b in now]


def test_several_chunks_become_one_batch() -> None:
    chunked = pa.chunked_array([["a", "b"], [], ["c"]])
    assert column(normalize(pa.table({"value": chunked})), "value") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "empty",
    [
        [],
        (),
        pa.table({"value": pa.array([], pa.binary())}),
        pa.table({"value": pa.chunked_array([], pa.string())}),
        storage_schema(RAW).empty_table(),
        reader_schema(RAW).empty_table(),
    ],
    ids=lambda data: type(data).__name__,
)
def test_no_records_are_an_empty_batch(empty: Any) -> None:
    assert normalize(empty).num_rows == 0


def test_no_typed_records_are_an_empty_batch() -> None:
    assert normalize([], ORDER, bytes_max=1).num_rows == 0
    assert normalize(storage_schema(ORDER).empty_table(), ORDER, bytes_max=1).num_rows == 0


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"value": pa.array([1])}, "value"),
        ({"value": pa.array([{"a": 1}])}, "value"),
        ({"value": ["a"], "key": pa.array([1.5])}, "key"),
        ({"value": ["a"], "headers": pa.array(["a"])}, "headers"),
        ({"value": ["a"], "headers": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))},
         "headers"),
        ({"value": ["a"], "timestamp": pa.array([1])}, "timestamp"),
        ({"value": ["a"], "colour": ["red"]}, "colour"),
        ({"key": ["a"]}, "value"),
    ],
)  # fmt: skip
def test_an_arrow_column_that_does_not_fit_is_named(data: dict[str, Any], name: str) -> None:
    assert refused(pa.table(data)).facts["column"] == name
    assert refused(pa.RecordBatch.from_pydict(data)).facts["column"] == name


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["value", "value"])
    assert refused(table).facts["column"] == "value"


@pytest.mark.parametrize("data", [b"bytes", {"value": b"x"}, None, 7, iter([b"x"])])
def test_what_is_no_table_and_no_list_is_refused(data: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="list of rows"):
        normalize(data)


# --- raw topics, rows


def test_rows_may_be_plain_bytes_and_text_or_dictionaries() -> None:
    batch = normalize([b"a", "ä", bytearray(b"c"), {"value": "d", "key": "k"}])
    assert column(batch, "value") == [b"a", "ä".encode(), b"c", b"d"]
    assert column(batch, "key") == [None, None, None, b"k"]
    assert column(normalize(("a", b"b")), "value") == [b"a", b"b"]


def test_rows_carry_times_as_datetimes_or_microseconds() -> None:
    naive = datetime.datetime(2024, 1, 2, 3, 4, 5, 6)
    zone = datetime.timezone(datetime.timedelta(hours=2))
    batch = normalize(
        [
            {"value": b"", "timestamp": naive},
            {"value": b"", "timestamp": naive.replace(tzinfo=zone)},
            {"value": b"", "timestamp": 17},
            {"value": b"", "timestamp": None},
            {"value": b""},
        ]
    )
    utc = int(naive.replace(tzinfo=datetime.UTC, microsecond=0).timestamp()) * 1_000_000 + 6
    assert micros(batch) == [utc, utc - 7_200_000_000, 17, NOW, NOW]


def test_rows_carry_headers_as_dictionaries() -> None:
    batch = normalize(
        [{"value": b"", "headers": {"a": b"1", "b": "2"}}, {"value": b"", "headers": {}}, b""]
    )
    assert column(batch, "headers") == [[("a", b"1"), ("b", b"2")], [], None]


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ([b"a", 1], "value"),
        ([{"value": 1}], "value"),
        ([{"value": "\udc80"}], "value"),
        ([{"key": b"k"}], "value"),
        ([{"value": b"", "key": 5}], "key"),
        ([{"value": b"", "headers": [("a", b"1")]}], "headers"),
        ([{"value": b"", "headers": {"a": 1}}], "headers"),
        ([{"value": b"", "headers": {1: b"1"}}], "headers"),
        ([{"value": b"", "headers": {None: b"1"}}], "headers"),
        ([{"value": b"", "timestamp": "today"}], "timestamp"),
        ([{"value": b"", "timestamp": 1.5}], "timestamp"),
        ([{"value": b"", "timestamp": True}], "timestamp"),
        ([{"value": b"", "colour": "red"}], "colour"),
        ([{"value": b"", 3: "red"}], "3"),
        ([None], "value"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_the_column(rows: list[Any], name: str) -> None:
    assert refused(rows).facts["column"] == name


def test_the_row_that_does_not_fit_is_named() -> None:
    error = refused([{"value": b"a"}, {"value": b"b", "key": b"k"}, {"value": 3.5}])
    assert error.facts["row"] == 2
    assert error.facts["got"] == "float"


# --- rules for every batch


def test_a_null_value_needs_a_key() -> None:
    assert column(normalize([{"value": None, "key": b"k"}]), "value") == [None]
    for data in (
        [{"value": None}],
        [{"value": b"a"}, {"value": None, "key": None}],
        pa.table({"value": pa.array([b"a", None]), "key": pa.array([b"k", None])}),
    ):
        assert "needs a key" in str(refused(data))


def test_a_record_over_the_limit_is_refused_with_its_row_and_bytes() -> None:
    rows = [
        {"value": b"x" * 50, "key": b"k" * 20, "headers": {"name": b"v" * 26}},
        {"value": b"x" * 51, "key": b"k" * 20, "headers": {"name": b"v" * 26}},
        {"value": b"x" * 10},
    ]
    assert normalize(rows[:1] * 50, bytes_max=100).num_rows == 50
    with pytest.raises(RecordTooLargeError) as caught:
        normalize(rows, bytes_max=100)
    assert caught.value.facts == {"row": 1, "bytes": 101, "bytes_max": 100}
    batch = normalize(rows, bytes_max=1000)
    with pytest.raises(RecordTooLargeError) as caught:
        normalize(batch.slice(1), bytes_max=100)
    assert caught.value.facts == {"row": 0, "bytes": 101, "bytes_max": 100}
    assert normalize(batch.slice(2), bytes_max=100).num_rows == 1


def test_the_bytes_of_a_typed_record_are_those_of_its_fields() -> None:
    row = {"value": FULL, "key": b"kk"}
    size = 2 + 8 + 1 + (4 + 1) + 1 + (1 + 8) + 8
    assert normalize([row] * 3, ORDER, bytes_max=size).num_rows == 3
    with pytest.raises(RecordTooLargeError, match=f"bytes={size} "):
        normalize([row] * 3, ORDER, bytes_max=size - 1)


def test_too_many_headers_are_refused() -> None:
    headers = {str(number): b"" for number in range(limits.HEADERS_MAX + 1)}
    with pytest.raises(InvalidArgumentError, match="row=1 headers=1001"):
        normalize([b"", {"value": b"", "headers": headers}], bytes_max=100_000)
    headers.popitem()
    assert normalize([{"value": b"", "headers": headers}], bytes_max=100_000).num_rows == 1


def test_too_many_records_are_refused() -> None:
    nulls = pa.nulls(limits.BATCH_RECORDS_MAX + 1)
    with pytest.raises(InvalidArgumentError, match="records_max"):
        normalize(pa.table({"value": nulls}))


# --- typed topics


def test_typed_rows_become_structs() -> None:
    batch = normalize([{"value": FULL}, {"value": {"id": 2}}, {"value": None, "key": "k"}], ORDER)
    empty = dict.fromkeys(("name", "who", "lines", "attributes", "at"))
    assert column(batch, "value") == [FULL, {"id": 2, **empty}, None]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"name": "n"}, "value.id"),
        ({"id": None}, "value.id"),
        ({"id": 1, "nam": "n"}, "value.nam"),
        ({"id": 1, "who": {"agee": 1}}, "value.who.agee"),
        ({"id": 1, "lines": [{"sku": "s", "x": 1}]}, "value.lines.x"),
        ({"id": 1, "lines": [{"sku": "s"}, {"sku": None}]}, "value.lines.element.sku"),
        ({"id": "one"}, "value"),
        ({"id": 2**63}, "value"),
        ({"id": 1, "name": 5}, "value"),
        ({"id": 1, "lines": 5}, "value.lines"),
        ({"id": 1, "who": 5}, "value.who"),
        ({"id": 1, "attributes": 5}, "value.attributes"),
        ({"id": 1, "attributes": [("a", "b")]}, "value"),
        ({"id": 1, "people": 5}, "value.people"),
        ({"id": 1, "people": [5]}, "value.people"),
        ({"id": 1, "people": [("a", 5)]}, "value.people"),
        ({"id": 1, "people": {"a": {"height": 5}}}, "value.people.height"),
        (b"bytes", "value"),
        (5, "value"),
    ],
)
def test_a_typed_row_that_does_not_fit_names_the_field(value: Any, name: str) -> None:
    people = pa.map_(pa.string(), pa.struct([pa.field("age", pa.int32())]))
    kind = pa.struct([*ORDER, pa.field("people", people)])
    assert refused([{"value": {"id": 1}}, {"value": value}], kind).facts["column"] == name


def test_maps_may_be_given_as_dictionaries() -> None:
    batch = normalize([{"value": {"id": 1, "attributes": {"a": 1}}}], ORDER)
    assert column(batch, "value")[0]["attributes"] == [("a", 1)]


def test_a_plain_row_is_refused_for_a_typed_topic() -> None:
    assert refused([b"bytes"], ORDER).facts["column"] == "value"


def shuffled(**changes: Any) -> pa.Array:
    """A value column with its fields in another order and in other layouts."""
    children = {
        "at": pa.array([5_000, None, 7_000], pa.timestamp("ns", tz="Asia/Tokyo")),
        "name": pa.array(["a", None, "c"]).dictionary_encode(),
        "who": pa.array([{"tag": "t", "age": 1}, None, {"tag": None, "age": 3}]),
        "id": pa.array([1, 2, 3]),
        "lines": pa.array(
            [[{"sku": "s"}], None, []], pa.large_list(pa.struct([("sku", pa.large_string())]))
        ),
        **changes,
    }
    if "who" not in changes:
        children["who"] = pa.StructArray.from_arrays(
            [pa.array(["t", None, None], pa.string_view()), pa.array([1, None, 3], pa.int32())],
            names=["tag", "age"],
            mask=pa.array([False, True, False]),
        )
    children = {name: child for name, child in children.items() if child is not None}
    return pa.StructArray.from_arrays(list(children.values()), names=list(children))


def test_fields_are_matched_by_name_in_any_order_and_layout() -> None:
    expected: list[dict[str, Any]] = [
        {"id": 1, "name": "a", "who": {"age": 1, "tag": "t"}, "lines": [{"sku": "s"}]},
        {"id": 2, "name": None, "who": None, "lines": None},
        {"id": 3, "name": "c", "who": {"age": 3, "tag": None}, "lines": []},
    ]
    for row, us in zip(expected, [5, None, 7], strict=True):
        row["attributes"] = None
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        row["at"] = None if us is None else epoch + datetime.timedelta(microseconds=us)
    table = pa.table({"value": shuffled()})
    assert column(normalize(table, ORDER), "value") == expected
    assert column(normalize(table.slice(1), ORDER), "value") == expected[1:]
    assert column(normalize(table.slice(1, 1).to_batches()[0], ORDER), "value") == expected[1:2]


def test_a_null_struct_stays_null_when_its_fields_are_rearranged() -> None:
    values = pa.array([{"name": "a", "id": 1}, None], pa.struct([("name", RAW), ("id", "int64")]))
    kind = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("name", RAW)])
    table = pa.table({"value": values, "key": ["a", "b"]})
    assert column(normalize(table, kind), "value") == [{"id": 1, "name": b"a"}, None]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"id": None}, "value.id"),
        ({"id": pa.array([1, None, 3])}, "value.id"),
        ({"id": pa.array([1, 2, 3], pa.int32())}, "value.id"),
        ({"id": pa.array(["1", "2", "3"])}, "value.id"),
        ({"name": pa.array([1, 2, 3])}, "value.name"),
        ({"more": pa.array([1, 2, 3])}, "value.more"),
        ({"who": pa.array([{"age": "x"}] * 3)}, "value.who.age"),
        ({"who": pa.array([{"height": 1}] * 3)}, "value.who.height"),
        ({"lines": pa.array([["s"]] * 3)}, "value.lines"),
        ({"lines": pa.array([[{"sku": None}]] * 3, pa.list_(pa.struct([("sku", RAW)])))},
         "value.lines"),
        ({"at": pa.array([1, 2, 3], pa.timestamp("ns", tz="UTC"))}, "value.at"),
        ({"at": pa.array([1, 2, 3], pa.timestamp("us"))}, "value.at"),
    ],
)  # fmt: skip
def test_a_typed_column_that_does_not_fit_names_the_field(
    changes: dict[str, Any], name: str
) -> None:
    assert refused(pa.table({"value": shuffled(**changes)}), ORDER).facts["column"] == name


def test_a_null_in_a_required_field_of_a_list_is_refused() -> None:
    lines = pa.array([[{"sku": "s"}], [], [{"sku": None}]])
    error = refused(pa.table({"value": shuffled(lines=lines)}), ORDER)
    assert error.facts["column"] in ("value.lines", "value.lines.element.sku")
    right = pa.array([[{"sku": "s"}], [], [{"sku": None}]], ORDER.field("lines").type)
    error = refused(pa.table({"value": shuffled(lines=right)}), ORDER)
    assert error.facts["column"] == "value.lines.element.sku"


def test_a_required_item_of_a_map_is_checked() -> None:
    kind = pa.struct([pa.field("m", pa.map_(RAW, pa.field("value", pa.int32(), nullable=False)))])
    assert normalize([{"value": {"m": [(b"a", 1)]}}, {"value": {"m": None}}], kind).num_rows == 2
    error = refused([{"value": {"m": [(b"a", None)]}}], kind)
    assert error.facts["column"] == "value.m.value"


def test_raw_values_are_refused_by_a_typed_topic() -> None:
    error = refused(pa.table({"value": [b"a"]}), ORDER)
    assert (error.facts["column"], error.facts["got"]) == ("value", pa.binary())
    assert error.facts["expected"] == ORDER


# --- lists from a producer


def from_columns(
    values: list[Any], keys: Any = None, headers: Any = None, timestamps: Any = NOW
) -> pa.RecordBatch:
    batch = records.from_columns(values, keys, headers, timestamps, RAW, 100)
    batch.validate(full=True)
    return batch


def test_lists_become_the_same_batch_as_rows() -> None:
    values, keys = [b"a", None, b""], [None, b"k", b""]
    headers = [{"h": b"1"}, None, {}]
    rows = [
        {"value": value, "key": key, "headers": header, "timestamp": time}
        for value, key, header, time in zip(values, keys, headers, [1, 2, 3], strict=True)
    ]
    assert from_columns(values, keys, headers, [1, 2, 3]).equals(normalize(rows))


def test_one_record_is_like_many() -> None:
    assert from_columns([b"a"]).equals(normalize([b"a"]))
    assert from_columns([b""]).equals(normalize([b""]))
    assert from_columns([None], [b"k"]).equals(normalize([{"value": None, "key": b"k"}]))
    assert from_columns([]).num_rows == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([1],), "column=value"),
        (([None],), "needs a key"),
        (([b"a"], [1]), "column=key"),
        (([b"a"], [b"k", b"l"]), "differ in length"),
        (([b"a"], None, [{"a": 1}]), "column=headers"),
        (([b"a"], None, ["a"]), "column=headers"),
        (([b"a"], None, None, [None]), "column=timestamp"),
        (([b"a"], None, None, ["x"]), "column=timestamp"),
        (([b"a"], None, None, [1, 2]), "differ in length"),
        (([b"a"], None, None, 2**63), "column=timestamp"),
        (([b"a" * 101],), "too large"),
        (([b"a" * 60], [b"k" * 41]), "too large"),
    ],
)
def test_wrong_lists_are_refused_with_an_error_of_ours(arguments: Any, told: str) -> None:
    with pytest.raises(LakebedError, match=told):
        from_columns(*arguments)


# --- out and back

raw_rows = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.binary(max_size=20),
            "timestamp": st.integers(limits.TIME_US_MIN, limits.TIME_US_MAX),
        },
        optional={
            "key": st.none() | st.binary(max_size=9),
            "headers": st.none() | st.dictionaries(st.text(max_size=5), st.binary(max_size=5)),
        },
    ),
    max_size=60,
)
typed_values = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | st.text(max_size=5),
        "who": st.none() | st.fixed_dictionaries({"age": st.none(), "tag": st.text(max_size=3)}),
        "lines": st.none() | st.lists(st.fixed_dictionaries({"sku": st.text(max_size=3)})),
        "attributes": st.none() | st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9))),
        "at": st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    }
)


def cut(batch: pa.RecordBatch, data: Any) -> pa.RecordBatch:
    first = data.draw(st.integers(0, batch.num_rows))
    return batch.slice(first, data.draw(st.integers(0, batch.num_rows - first)))


@settings(deadline=None)
@given(raw_rows, st.data())
def test_raw_rows_come_back_as_they_were(rows: list[dict[str, Any]], data: Any) -> None:
    batch = normalize(rows)
    assert column(batch, "value") == [row["value"] for row in rows]
    assert column(batch, "key") == [row.get("key") for row in rows]
    assert micros(batch) == [row["timestamp"] for row in rows]
    headers = [row.get("headers") for row in rows]
    assert column(batch, "headers") == [h if h is None else list(h.items()) for h in headers]
    part = cut(batch, data)
    assert records.deserialize(records.serialize(part), batch.schema).equals(part)
    assert normalize(part).equals(part)


@settings(deadline=None)
@given(st.lists(typed_values, max_size=30), st.data())
def test_typed_rows_come_back_as_they_were(values: list[Any], data: Any) -> None:
    batch = normalize([{"value": value} for value in values], ORDER)
    assert column(batch, "value") == values
    part = cut(batch, data)
    assert records.deserialize(records.serialize(part), batch.schema).equals(part)
    assert normalize(pa.Table.from_batches([part]), ORDER).equals(part)


def test_the_message_of_a_slice_holds_only_the_slice() -> None:
    batch = normalize([{"value": b"x" * 900, "key": b"k", "headers": {"a": b"1"}}] * 1000)
    assert len(records.serialize(batch.slice(500, 1))) < 3000


def test_a_message_is_read_without_copying() -> None:
    message = records.serialize(normalize([b"x" * 100] * 10))
    batch = records.deserialize(memoryview(message), storage_schema(RAW))
    assert message.address <= batch.column("value").buffers()[2].address
    assert batch.column("value").buffers()[2].address < message.address + message.size


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_rubbish_is_no_batch(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        records.deserialize(data, storage_schema(RAW))


@settings(deadline=None)
@given(st.data())
def test_a_damaged_message_is_an_error_or_a_valid_batch_but_nothing_else(data: Any) -> None:
    message = bytearray(records.serialize(normalize([{"value": b"abc", "key": b"k"}] * 3)))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(0, len(message)) | st.just(len(message)))
    try:
        batch = records.deserialize(memoryview(message)[:end], storage_schema(RAW), full=True)
    except CorruptionError:
        return
    assert len(batch.to_pylist()) == batch.num_rows


def test_a_full_check_sees_text_that_is_no_text() -> None:
    message = bytearray(records.serialize(normalize([{"value": b"", "headers": {"abc": b""}}])))
    message[message.index(b"abc")] = 0xFF
    assert records.deserialize(memoryview(message), storage_schema(RAW)).num_rows == 1
    with pytest.raises(CorruptionError):
        records.deserialize(memoryview(message), storage_schema(RAW), full=True)


def test_readers_get_partition_and_offset_in_front() -> None:
    for kind, rows in ((RAW, [b"a", b"b", b"c"]), (ORDER, [{"value": FULL}] * 3)):
        batch = normalize(rows, kind)
        read = records.with_position(batch.slice(1), 7, 2**40)
        read.validate(full=True)
        assert read.schema.equals(reader_schema(kind))
        assert column(read, "partition") == [7, 7]
        assert column(read, "offset") == [2**40, 2**40 + 1]
        assert read.select(batch.schema.names).to_pylist() == batch.slice(1).to_pylist()


def test_an_empty_batch_has_no_positions() -> None:
    assert records.with_position(normalize([]), 0, 5).num_rows == 0


def test_payload_bytes_follow_what_is_held() -> None:
    batch = normalize([b"x" * 100] * 1000)
    assert 100_000 <= records.payload_bytes(batch) <= 130_000
    assert math.isclose(records.payload_bytes(batch.slice(0, 100)), 11_000, rel_tol=0.2)


def test_arrays_from_numpy_times_are_taken() -> None:
    times = pa.array(np.array([1, 2], "datetime64[ms]"))
    assert micros(normalize(pa.table({"value": ["a", "b"], "timestamp": times}))) == [1000, 2000]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int32(), float("nan")),
        (pa.list_(pa.string()), "abc"),
        (pa.list_(pa.int64()), [1, 2.5]),
        (pa.float64(), True),
        (pa.struct([("n", pa.int64())]), {"n": 0.1}),
        (pa.map_(pa.string(), pa.int64()), {"a": 0.5}),
    ],
)
def test_nothing_is_changed_on_the_way_in(kind: pa.DataType, value: object) -> None:
    """Arrow would take each of these, and store something else."""
    with pytest.raises(SchemaMismatchError) as caught:
        normalize([{"value": {"f": value}}], pa.struct([("f", kind)]))
    assert str(caught.value.facts["column"]).startswith("value.f")


def test_a_float_that_is_a_whole_number_is_one() -> None:
    batch = normalize([{"value": {"f": 2.0}}], pa.struct([("f", pa.int64())]))
    assert batch.column("value").to_pylist() == [{"f": 2}]
