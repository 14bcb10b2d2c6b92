"""Columns between Arrow and Spark: every type a topic can have, and batches exactly as expected."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StringType, StructType

from lakebed.errors import InvalidArgumentError, SchemaMismatchError
from lakebed.spark.types import Fitter, arrow_schema, check_projection, fit, spark_schema
from lakebed.topic.schema import HEADERS, TIMESTAMP, check_schema, value_type

NOW = datetime(2026, 11, 15, 10, 0, 0, 123456, tzinfo=UTC)
INNER = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
KINDS: list[tuple[pa.DataType, str, Any]] = [
    (pa.bool_(), "boolean", True),
    (pa.int32(), "int", -5),
    (pa.int64(), "bigint", 1 << 60),
    (pa.float32(), "float", 0.5),
    (pa.float64(), "double", 0.25),
    (pa.string(), "string", "grüße"),
    (pa.large_string(), "string", "x"),
    (pa.binary(), "binary", b"\x00\xff"),
    (pa.binary_view(), "binary", b"x"),
    (pa.date32(), "date", date(1969, 7, 20)),
    (pa.decimal128(38, 10), "decimal(38,10)", Decimal("1234567890.0123456789")),
    (pa.decimal128(5, 0), "decimal(5,0)", Decimal("12345")),
    (pa.timestamp("us"), "timestamp_ntz", NOW.replace(tzinfo=None)),
    (pa.timestamp("us", "UTC"), "timestamp", NOW),
    (pa.list_(pa.int64()), "array<bigint>", [1, None]),
    (pa.list_(INNER), "array<struct<x:int,y:array<string>>>", [{"x": 1, "y": ["a"]}, None]),
    (INNER, "struct<x:int,y:array<string>>", {"x": None, "y": []}),
    (pa.map_(pa.string(), INNER), "map<string,struct<x:int,y:array<string>>>",
     [("k", {"x": 1, "y": None})]),
]  # fmt: skip


def columns(schema: pa.Schema | None) -> pa.Schema:
    """Return the columns that readers of a topic get."""
    return pa.schema(
        [
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64()),
            pa.field("timestamp", TIMESTAMP),
            pa.field("key", pa.binary()),
            pa.field("headers", HEADERS),
            pa.field("value", value_type(None if schema is None else check_schema(schema))),
        ]
    )


def batch_of(schema: pa.Schema, values: list[Any]) -> pa.RecordBatch:
    rows = [
        {"partition": 0, "offset": number, "timestamp": NOW, "key": b"k", "headers": [("h", b"1")]}
        | {"value": value}
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


@pytest.mark.parametrize(("kind", "said", "value"), KINDS, ids=[str(each[0]) for each in KINDS])
def test_every_type_of_a_topic_is_one_of_spark_and_keeps_its_values(
    kind: pa.DataType, said: str, value: Any
) -> None:
    given = columns(pa.schema([("f", kind)]))
    schema = spark_schema(given, topic=True, headers=True)
    assert schema["value"].dataType.simpleString() == f"struct<f:{said}>"
    expected = arrow_schema(schema)
    batch = batch_of(given, [{"f": value}, {"f": None}, None])
    got = Fitter(expected, "orders").fit(batch)
    assert got.schema.equals(expected, check_metadata=False)
    got.validate(full=True)
    assert got.column("value").to_pylist() == [{"f": value}, {"f": None}, None]
    assert got.column("topic").to_pylist() == ["orders"] * 3


def test_the_columns_of_a_raw_topic_are_those_of_readers() -> None:
    schema = spark_schema(columns(None), topic=False, headers=False)
    assert schema.simpleString() == (
        "struct<partition:int,offset:bigint,timestamp:timestamp,key:binary,value:binary>"
    )
    assert [each.nullable for each in schema.fields] == [False, False, False, True, True]
    more = spark_schema(columns(None), topic=True, headers=True)
    assert more.fieldNames() == [
        *("topic", "partition", "offset", "timestamp", "key", "headers", "value"),
    ]
    assert more["headers"].dataType.simpleString() == "map<string,binary>"


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (pa.uint8(), 255, pa.int16()),
        (pa.uint64(), (1 << 64) - 1, pa.decimal128(20, 0)),
        (pa.dictionary(pa.int32(), pa.string()), "x", pa.string()),
        (pa.list_(pa.uint32(), 2), [1, 2], pa.list_(pa.int64())),
        (
            pa.timestamp("ms", "Europe/Berlin"),
            NOW.replace(microsecond=0),
            pa.timestamp("us", "UTC"),
        ),
        (pa.struct([("a", pa.large_string())]), {"a": "x"}, pa.struct([("a", pa.string())])),
        (pa.map_(pa.large_string(), pa.uint8()), [("a", 1)], pa.map_(pa.string(), pa.int16())),
        (pa.binary(3), b"abc", pa.binary()),
    ],
    ids=str,
)
def test_types_that_spark_does_not_have_become_wider_ones(
    kind: pa.DataType, value: Any, wanted: pa.DataType
) -> None:
    given = pa.schema([("value", kind)])
    schema = arrow_schema(spark_schema(given, topic=False, headers=False))
    assert schema.field("value").type == wanted
    got = fit(pa.array([value, None], kind), wanted)
    assert got.to_pylist() == [value, None]


def test_a_type_that_spark_cannot_have_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="column=value type=month"):
        spark_schema(
            pa.schema([("value", pa.month_day_nano_interval())]), topic=False, headers=False
        )


def test_a_batch_of_an_older_or_a_newer_schema_is_fitted_by_names() -> None:
    old = columns(pa.schema([("a", pa.int64())]))
    new = columns(
        pa.schema([("b", pa.string()), ("a", pa.int64()), ("c", pa.struct([("d", pa.int32())]))])
    )
    both = [(old, new), (new, old)]
    for written, read in both:
        expected = arrow_schema(spark_schema(read, topic=False, headers=True))
        got = Fitter(expected, "t").fit(batch_of(written, [{"a": 1}, None]))
        nothing: dict[str, Any] = dict.fromkeys(expected.field("value").type.names)
        assert got.column("value").to_pylist() == [nothing | {"a": 1}, None]


def test_a_slice_of_a_batch_is_fitted_as_the_slice_it_is() -> None:
    given = columns(pa.schema([("a", pa.int64()), ("b", pa.list_(pa.string()))]))
    batch = batch_of(given, [{"a": 1, "b": ["x"]}, None, {"a": 3, "b": None}]).slice(1)
    value = StructType().add("b", ArrayType(StringType())).add("a", "long")
    projection = StructType().add("offset", "long").add("value", value)
    got = Fitter(arrow_schema(projection), "t").fit(batch)
    assert got.to_pylist() == [
        {"offset": 1, "value": None},
        {"offset": 2, "value": {"b": None, "a": 3}},
    ]


def test_a_column_of_another_kind_is_a_mismatch() -> None:
    with pytest.raises(SchemaMismatchError, match="cannot be given to Spark"):
        fit(pa.array([b"\xff\xff"]), pa.int64())
    with pytest.raises(SchemaMismatchError, match="cannot be given to Spark"):
        fit(pa.array([b"x"]), pa.struct([("a", pa.int64())]))


def test_a_projection_names_columns_and_fields_that_there_are() -> None:
    whole = spark_schema(columns(pa.schema([("a", pa.int64())])), topic=False, headers=False)
    field = StructType().add("a", "long")
    check_projection(StructType().add("value", field).add("key", "binary"), whole)
    for wanted, said in [
        (StructType().add("headers", "binary"), "unknown column column=headers"),
        (StructType().add("offset", "integer"), "column=offset type=int has=bigint"),
        (StructType().add("value", StructType().add("b", "long")), "column=value"),
        (StructType().add("value", "binary"), "column=value"),
    ]:
        with pytest.raises(InvalidArgumentError, match=said):
            check_projection(wanted, whole)
