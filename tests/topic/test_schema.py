"""A topic's schema holds what Parquet, Iceberg and Spark hold, and only grows."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebed import limits
from lakebed.errors import CorruptionError, InvalidArgumentError, SchemaChangeError
from lakebed.topic.schema import (
    check_change,
    check_schema,
    decode_schema,
    encode_schema,
    evolve,
    reader_schema,
    storage_schema,
    value_type,
)

SIMPLE = [
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
    pa.decimal128(38, 0),
    pa.decimal128(9, 9),
]

REFUSED = [
    (pa.int8(), "int32"),
    (pa.int16(), "int32"),
    (pa.uint8(), "int32"),
    (pa.uint64(), "decimal128"),
    (pa.float16(), "float"),
    (pa.decimal128(5, -2), "decimal128"),
    (pa.decimal128(5, 6), "decimal128"),
    (pa.decimal256(50, 2), "decimal128"),
    (pa.timestamp("ns"), "timestamp[us]"),
    (pa.timestamp("ms", tz="UTC"), "timestamp[us]"),
    (pa.timestamp("us", tz="Europe/Berlin"), "tz=UTC"),
    (pa.date64(), "date32"),
    (pa.time32("ms"), "int64"),
    (pa.time64("ns"), "int64"),
    (pa.duration("us"), "int64"),
    (pa.month_day_nano_interval(), "int64"),
    (pa.binary(16), "binary"),
    (pa.list_(pa.int32(), 3), "list"),
    (pa.dictionary(pa.int32(), pa.string()), "value type"),
    (pa.run_end_encoded(pa.int32(), pa.string()), "value type"),
    (pa.sparse_union([pa.field("a", pa.int32())]), "struct"),
    (pa.dense_union([pa.field("a", pa.int32())]), "struct"),
    (pa.null(), "hold values"),
    (pa.list_view(pa.int32()), "list"),
    (pa.uuid(), "storage type"),
]

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("who", pa.struct([pa.field("name", pa.string())])),
        pa.field("items", pa.list_(pa.struct([pa.field("sku", pa.string())]))),
    ]
)


def one(kind: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("f", kind, nullable)])


names = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0."), min_size=1, max_size=8),
    min_size=1,
    max_size=4,
    unique_by=lambda name: name.lower(),
)


def structs(kinds: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def build(names: list[str]) -> st.SearchStrategy[Any]:
        fields = [st.builds(pa.field, st.just(name), kinds, st.booleans()) for name in names]
        return st.tuples(*fields).map(lambda fields: pa.struct(list(fields)))

    return names.flatmap(build)


kinds = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: (
        inner.map(pa.list_)
        | structs(inner)
        | st.builds(pa.map_, st.sampled_from([pa.string(), pa.int64()]), inner)
    ),
    max_leaves=6,
)
schemas = structs(kinds).map(lambda struct: pa.schema(list(struct)))


@pytest.mark.parametrize("kind", SIMPLE, ids=str)
def test_a_simple_type_is_taken_as_it_is(kind: pa.DataType) -> None:
    assert check_schema(one(kind)) == one(kind)
    assert check_schema(one(kind, nullable=False)) == one(kind, nullable=False)


@pytest.mark.parametrize(("kind", "instead"), REFUSED, ids=str)
def test_a_type_not_everybody_holds_is_refused_with_what_to_use(
    kind: pa.DataType, instead: str
) -> None:
    for schema in (one(kind), one(pa.list_(pa.struct([pa.field("x", kind)])))):
        with pytest.raises(InvalidArgumentError) as caught:
            check_schema(schema)
        assert caught.value.facts["type"] == kind
        assert str(caught.value.facts["field"]).startswith("f")
        assert instead in str(caught.value.facts["use"])


def test_other_layouts_of_text_bytes_and_lists_become_the_plain_ones() -> None:
    given = pa.schema(
        [
            ("a", pa.large_string()),
            ("b", pa.string_view()),
            ("c", pa.large_binary()),
            ("d", pa.binary_view()),
            ("e", pa.large_list(pa.map_(pa.string(), pa.large_string()))),
        ],
        metadata={"pandas": "much"},
    )
    wanted = pa.schema(
        [
            ("a", pa.string()),
            ("b", pa.string()),
            ("c", pa.binary()),
            ("d", pa.binary()),
            ("e", pa.list_(pa.map_(pa.string(), pa.string()))),
        ]
    )
    assert check_schema(given) == wanted
    assert check_schema(given).metadata is None


def test_metadata_of_fields_is_dropped_at_every_depth() -> None:
    noisy = pa.field("x", pa.int32(), metadata={"note": "1"})
    schema = check_schema(one(pa.struct([noisy])))
    assert schema.field("f").type.field("x").metadata is None


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        one(pa.struct([])),
        pa.schema([("", pa.int32())]),
        pa.schema([("a", pa.int32()), ("A", pa.int32())]),
        one(pa.struct([("a", pa.int32()), ("a", pa.int64())])),
        one(pa.map_(pa.struct([("a", pa.int32())]), pa.int32())),
        {"a": "int"},
    ],
    ids=lambda schema: str(schema).replace("\n", ", "),
)
def test_a_schema_without_usable_fields_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        check_schema(schema)


def test_a_schema_nested_too_deeply_is_refused_and_the_deepest_allowed_is_read_back() -> None:
    kind: pa.DataType = pa.int32()
    for _ in range(limits.SCHEMA_DEPTH_MAX - 1):
        kind = pa.list_(kind)
    deepest = check_schema(one(kind))
    assert decode_schema(encode_schema(deepest)) == deepest
    with pytest.raises(InvalidArgumentError, match="depth_max"):
        check_schema(one(pa.struct([pa.field("x", kind)])))


def test_a_schema_too_large_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="too large"):
        check_schema(one(pa.struct([("x" * limits.SCHEMA_BYTES_MAX, pa.int32())])))


@settings(deadline=None)
@given(schemas)
def test_a_schema_survives_encoding_byte_for_byte(schema: pa.Schema) -> None:
    checked = check_schema(schema)
    data = encode_schema(checked)
    assert decode_schema(data).equals(checked, check_metadata=True)
    assert encode_schema(decode_schema(data)) == data
    assert encode_schema(check_schema(checked)) == data


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_rubbish_is_no_schema(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_schema(data)


@settings(deadline=None)
@given(st.data())
def test_a_damaged_schema_is_an_error_or_another_schema_but_nothing_else(data: Any) -> None:
    encoded = bytearray(encode_schema(check_schema(ORDERS)))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        read = decode_schema(bytes(encoded))
    except CorruptionError:
        return
    assert check_schema(read) == read


def test_a_schema_over_the_limit_is_not_even_read() -> None:
    with pytest.raises(CorruptionError, match="bytes_max"):
        decode_schema(bytes(limits.SCHEMA_BYTES_MAX + 1))


def grown(who: list[pa.Field], added: list[pa.Field]) -> pa.Schema:
    name = pa.field("name", pa.string())
    struct = pa.field("who", pa.struct([name, *who]))
    return pa.schema([ORDERS.field("id"), struct, ORDERS.field("items"), *added])


def test_nullable_fields_may_be_added_at_the_end_of_structs() -> None:
    age, note = pa.field("age", pa.int32()), pa.field("note", pa.string())
    for new in (ORDERS, grown([age], []), grown([], [note]), grown([age], [note])):
        check_change(ORDERS, new)


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (grown([], [pa.field("note", pa.string(), nullable=False)]), "note"),
        (grown([pa.field("age", pa.int32(), nullable=False)], []), "who.age"),
        (pa.schema([ORDERS.field("id"), ORDERS.field("who")]), "items"),
        (pa.schema([ORDERS.field("who"), ORDERS.field("id"), ORDERS.field("items")]), "id"),
        (ORDERS.set(0, pa.field("id", pa.int64())), "id"),
        (ORDERS.set(0, pa.field("id", pa.int32(), nullable=False)), "id"),
        (ORDERS.set(1, pa.field("who", pa.struct([("name", pa.binary())]))), "who.name"),
        (
            ORDERS.set(
                2,
                pa.field(
                    "items", pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int32())]))
                ),
            ),
            "items",
        ),
    ],
)
def test_any_other_change_is_refused_with_the_field(new: pa.Schema, field: str) -> None:
    with pytest.raises(SchemaChangeError) as caught:
        check_change(ORDERS, new)
    assert caught.value.facts["field"] == field
    assert {"was", "wanted"} <= caught.value.facts.keys()


def test_a_raw_topic_has_bytes_and_a_typed_one_a_struct() -> None:
    assert value_type(None) == pa.binary()
    assert value_type(ORDERS) == pa.struct(list(ORDERS))


def test_the_columns_are_the_documented_ones() -> None:
    assert reader_schema(pa.binary()) == pa.schema(
        [
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("key", pa.binary()),
            pa.field("headers", pa.map_(pa.string(), pa.binary())),
            pa.field("value", pa.binary()),
        ]
    )
    assert storage_schema(pa.binary()).names == ["timestamp", "key", "headers", "value"]
    assert storage_schema(pa.binary()) is storage_schema(pa.binary())


def batch_of(values: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    fields = [pa.field("offset", pa.int64()), pa.field("value", value_type(schema))]
    arrays = [pa.array(range(len(values)), pa.int64()), pa.array(values, value_type(schema))]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def test_a_batch_with_the_current_schema_is_given_back_as_it_is() -> None:
    batch = batch_of([None], ORDERS)
    assert evolve(batch, value_type(ORDERS)) is batch


def test_a_batch_without_the_value_is_given_back_as_it_is() -> None:
    batch = batch_of([None], ORDERS).select(["offset"])
    assert evolve(batch, value_type(ORDERS)) is batch


def test_fields_added_since_are_null_and_the_rest_is_not_copied() -> None:
    values = [
        {"id": 1, "who": {"name": "a"}, "items": [{"sku": "x"}]},
        None,
        {"id": 3, "who": None, "items": None},
    ]
    new = value_type(grown([pa.field("age", pa.int32())], [pa.field("note", pa.string())]))
    for batch in (batch_of(values, ORDERS), batch_of([None, *values, None], ORDERS).slice(1, 3)):
        got = evolve(batch, new)
        got.validate(full=True)
        assert got.schema.field("value").type == new
        assert got.column("value").to_pylist() == [
            {"id": 1, "who": {"name": "a", "age": None}, "items": [{"sku": "x"}], "note": None},
            None,
            {"id": 3, "who": None, "items": None, "note": None},
        ]
        was, now = batch.column("value").field(0), got.column("value").field(0)
        assert now.buffers()[1].address == was.buffers()[1].address
        assert got.column("offset").equals(batch.column("offset"))


def test_a_value_that_did_not_grow_into_the_schema_is_refused() -> None:
    with pytest.raises(SchemaChangeError):
        evolve(batch_of([None], ORDERS), pa.binary())


def test_decimals_keep_their_precision() -> None:
    checked = check_schema(one(pa.decimal128(20, 3)))
    batch = batch_of([{"f": decimal.Decimal("1.234")}], checked)
    assert evolve(batch, value_type(checked)).column("value")[0]["f"].as_py() == decimal.Decimal(
        "1.234"
    )


def test_a_name_with_a_dot_is_refused() -> None:
    """`a.b` would be the same column as the field `b` of `a`."""
    for kind in (pa.schema({"a.b": pa.int64()}), pa.schema({"a": pa.struct({"b.c": pa.int64()})})):
        with pytest.raises(InvalidArgumentError, match="may not have a dot"):
            check_schema(kind)
