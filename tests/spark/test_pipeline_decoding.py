"""Records become rows, and those that do not are told apart: on DataFrames, without a stream."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from lakebed.errors import InvalidArgumentError
from lakebed.spark.pipeline.avro import arrow_fields, parse_avro_schema
from lakebed.spark.pipeline.expectations import accept, letters_of_source, letters_of_step
from lakebed.spark.pipeline.failures import failure_of
from lakebed.spark.pipeline.spec import (
    Decoder,
    Expectation,
    Otherwise,
    PipelineSpec,
    Source,
    Step,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = (
    "partition int, offset long, timestamp timestamp, key binary, value binary,"
    " headers map<string, binary>"
)
TIME = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
SPEC = PipelineSpec("shop", {}, {}, {}, dead_letter="dead")


def records(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [
        (0, offset, TIME, b"k%d" % offset, value, {"a": b"b", "lakebed.reason": b"old"})
        for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RECORDS)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(each) for each in frame.collect()]


def reasons(frame: DataFrame) -> dict[bytes, str]:
    """Return the reason of each dead letter, by its value."""
    return {
        bytes(each.value): bytes(each.headers["lakebed.reason"]).decode()
        for each in frame.collect()
    }


def test_json_that_does_not_fit_becomes_a_dead_letter(spark: SparkSession) -> None:
    source = Source(
        "orders",
        topic="orders",
        decode=Decoder.JSON,
        schema="id LONG, at TIMESTAMP",
        include=("offset", "key"),
        otherwise=Otherwise.DEAD_LETTER,
    )
    good, other = b'{"id": 1, "at": "2026-11-15T12:00:00Z", "more": 2}', b"{}"
    bad = {
        b"{": "not JSON",
        b"": "not JSON",
        b'{"id": "one"}': "JSON that does not fit the schema",
        b'{"id": 1, "at": "soon"}': "JSON that does not fit the schema",
        b"[1]": "JSON that does not fit the schema",
        b"null": "JSON that does not fit the schema",
    }
    frame = records(spark, good, None, other, *bad)
    assert rows(accept(frame, source)) == [
        (1, TIME.replace(tzinfo=None), 0, b"k0"),
        (None, None, 2, b"k2"),
    ]
    letters = letters_of_source(frame, source, SPEC)
    assert reasons(letters) == bad
    (letter,) = letters.where("value = cast('{' as binary)").collect()
    assert (bytes(letter.key), letter.timestamp) == (b"k3", TIME.replace(tzinfo=None))
    assert {name: bytes(value) for name, value in letter.headers.items()} == {
        "a": b"b",
        "lakebed.reason": b"not JSON",
        "lakebed.topic": b"orders",
        "lakebed.partition": b"0",
        "lakebed.offset": b"3",
        "lakebed.pipeline": b"shop",
    }


def test_a_record_that_cannot_be_decoded_can_be_fatal(spark: SparkSession) -> None:
    source = Source("orders", topic="t", decode=Decoder.CSV, schema="id LONG", separator=";")
    assert rows(accept(records(spark, b"1"), source)) == [(1,)]
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION") as caught:
        accept(records(spark, b"1", b"x"), source).collect()
    error = failure_of("paid", str(caught.value))
    assert (error.code, error.message) == (
        "bad_record",
        "a record cannot be decoded: not CSV of this schema",
    )
    assert error.facts == {
        "flow": "paid",
        "source": "orders",
        "topic": "t",
        "record": "partition=0 offset=1",
    }


def test_a_condition_is_met_by_what_is_true_alone(spark: SparkSession) -> None:
    """Rows are dropped, or become dead letters, also if it is null; those that are counted stay."""
    source = Source(
        "orders",
        topic="t",
        decode=Decoder.CSV,
        schema="id LONG, name STRING",
        expect=(
            Expectation("positive", "id > 0", Otherwise.DEAD_LETTER),
            Expectation("named", "name IS NOT NULL", Otherwise.COUNT),
            Expectation("short", "length(name) < 4 OR name IS NULL", Otherwise.DROP),
        ),
    )
    frame = records(spark, b"1,a", b"-2,b", b",c", b"3,", b"4,long name")
    assert rows(accept(frame, source)) == [(1, "a"), (3, None)]
    said = "expectation positive: not id > 0"
    assert reasons(letters_of_source(frame, source, SPEC)) == {b"-2,b": said, b",c": said}


def test_a_source_can_be_used_twice_in_one_flow(spark: SparkSession) -> None:
    expect = (Expectation("positive", "id > 0", Otherwise.DROP),)
    source = Source("orders", topic="t", decode=Decoder.CSV, schema="id LONG", expect=expect)
    frame = accept(records(spark, b"1", b"2", b"0"), source)
    assert rows(frame.where("id = 1").unionAll(frame.where("id = 2"))) == [(1,), (2,)]
    assert rows(frame.alias("a").join(frame.alias("b"), "id").orderBy("id")) == [(1,), (2,)]


def test_rows_of_a_step_become_dead_letters_as_json(spark: SparkSession) -> None:
    step = Step("paid", ("orders",), expect=(Expectation("e", "id > 1", Otherwise.DEAD_LETTER),))
    (letter,) = letters_of_step(spark.sql("SELECT 1 AS id, null AS name"), step, SPEC).collect()
    assert json.loads(bytes(letter.value)) == {"id": 1, "name": None}
    assert bytes(letter.headers["lakebed.step"]) == b"paid"


AVRO = """{"type": "record", "name": "Order", "fields": [
  {"name": "id", "type": "long"},
  {"name": "price", "type":
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "tags", "type": {"type": "array", "items": "string"}},
  {"name": "more", "type": ["null", {"type": "map", "values": "int"}], "default": null},
  {"name": "unit", "type": {"type": "enum", "name": "Unit", "symbols": ["KG", "G"]}},
  {"name": "buyer", "type": ["null", {"type": "record", "name": "Buyer", "fields": [
    {"name": "name", "type": "string"}]}]}
]}"""


def test_avro_is_decoded_without_a_jar(spark: SparkSession) -> None:
    order = {
        "id": 7,
        "price": Decimal("1.25"),
        "at": TIME,
        "tags": ["a", "b"],
        "more": {"x": 1},
        "unit": "KG",
        "buyer": {"name": "Ann"},
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(AVRO)), order)
    good = b"\0\0\0\0\1" + stream.getvalue()
    source = Source(
        "orders",
        topic="t",
        decode=Decoder.AVRO,
        schema=AVRO,
        skip_bytes=5,
        otherwise=Otherwise.DEAD_LETTER,
    )
    frame = records(spark, good, good[:-4], good + b"x", None)
    (row,) = accept(frame, source).collect()
    assert row.asDict(recursive=True) == {**order, "at": TIME.replace(tzinfo=None)}
    said = reasons(letters_of_source(frame, source, SPEC))
    assert set(said) == {good[:-4], good + b"x"}
    assert said[good + b"x"] == "not Avro of this schema: 1 bytes are left over"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "the schema is not JSON"),
        ('"long"', "that of a record"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b", "type": "c"}]}', "not an Avro"),
        (
            '{"type": "record", "name": "a", "fields": [{"name": "b", "type": ["int", "string"]}]}',
            "a union of one type and null field=value.b",
        ),
        (
            '{"type": "record", "name": "a", "fields": [{"name": "b", "type": ["null", "a"]}]}',
            "Spark does not support recursive records",
        ),
    ],
)
def test_an_avro_schema_that_spark_cannot_hold_is_refused(schema: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        arrow_fields(parse_avro_schema(schema))


def test_a_raw_topic_is_not_decoded_and_a_typed_one_needs_no_decoding(spark: SparkSession) -> None:
    raw = Source("orders", topic="t", decode=Decoder.RAW, include=("headers",))
    (row, tombstone) = accept(records(spark, b"x", None), raw).collect()
    assert (bytes(row.value), bytes(row.headers["a"]), tombstone.value) == (b"x", b"b", None)
    typed = records(spark, b"x", None).selectExpr(
        "partition", "offset", "timestamp", "key", "headers",
        "if(value is null, null, named_struct('id', 1)) AS value",
    )  # fmt: skip
    assert rows(accept(typed, Source("orders", topic="t"))) == [(1,)]
    with pytest.raises(InvalidArgumentError, match="the topic is typed and needs no decoding"):
        accept(typed, raw)
    with pytest.raises(InvalidArgumentError, match="the topic is raw: set decode"):
        accept(records(spark, b"x"), Source("orders", topic="t"))
    clash = Source("orders", topic="t", decode=Decoder.CSV, schema="key LONG", include=("key",))
    with pytest.raises(InvalidArgumentError, match="a column of the same name"):
        accept(records(spark, b"1"), clash)


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (
            "x\nlakebed.errors.TopicNotFoundError: topic 'a' does not exist\nadvice: ...",
            "topic_not_found",
            "topic 'a' does not exist",
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: no space left\n\tat java...",
            "flow_failed",
            "a flow failed",
        ),
        (
            "Traceback (most recent call last):\n  File\nZeroDivisionError: division by zero\n\tat",
            "flow_failed",
            "a flow failed",
        ),
    ],
)
def test_the_error_is_found_in_what_spark_says(said: str, code: str, message: str) -> None:
    error = failure_of("paid", said)
    assert (error.code, error.message, error.facts["flow"]) == (code, message, "paid")
    if code == "flow_failed":
        assert error.facts["cause"] in ("no space left", "ZeroDivisionError: division by zero")
