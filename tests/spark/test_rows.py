"""Rows of a DataFrame as records of a topic: which column means what, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import lakebed
from lakebed.errors import (
    InvalidArgumentError,
    InvalidNameError,
    LakebedError,
    PartitionNotFoundError,
    SchemaMismatchError,
    TopicNotFoundError,
)
from lakebed.spark.options import sink_options
from lakebed.spark.rows import Rows

NOW = datetime(2026, 11, 15, 10, tzinfo=UTC)
TYPED = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    with lakebed.open(tmp_path / "log") as opened:
        opened.create_topic("raw", 3)
        opened.create_topic("other", 1)
        opened.create_topic("typed", 2, schema=TYPED)
        yield opened


def write(log: lakebed.Log, columns: dict[str, Any], **options: str) -> int:
    """Write rows as a task of the sink does."""
    batch = pa.RecordBatch.from_pydict(columns)
    schema = from_arrow_schema(batch.schema)
    rows = Rows(log, sink_options({"log": "lakebed://x", **options}), schema)
    with log.transaction() as transaction:
        return rows.write(transaction, batch)


def records(log: lakebed.Log, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log.table(topic).scan().read_all().to_pylist()
    return found


def test_each_column_of_a_raw_topic_has_its_meaning(log: lakebed.Log) -> None:
    headers = pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary()))
    columns = {
        "value": [b"a", None],
        "key": ["k", "gone"],
        "headers": headers,
        "timestamp": pa.array([NOW, NOW], pa.timestamp("us", "UTC")),
        "partition": pa.array([2, 0], pa.int32()),
        "offset": [99, 98],  # of the topic that the rows were read from
        "topic": ["elsewhere", "elsewhere"],  # an option is nearer
    }
    assert write(log, columns, topic="raw") == 2
    gone, first = records(log, "raw")
    assert (first["partition"], first["offset"], first["key"]) == (2, 0, b"k")
    assert (first["value"], first["headers"], first["timestamp"]) == (b"a", [("h", b"1")], NOW)
    assert (gone["partition"], gone["key"], gone["value"]) == (0, b"gone", None)
    assert log.table("raw").get("gone") is None


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["ü"]), "ü".encode()),
        (pa.array([7]), b"7"),
        (pa.array([True]), b"true"),
        (pa.array([b"\x00"]), b"\x00"),
        (pa.array([NOW.date()]), b"2026-11-15"),
    ],
    ids=["text", "number", "boolean", "bytes", "date"],
)
def test_text_and_numbers_become_bytes(log: lakebed.Log, column: Any, expected: bytes) -> None:
    write(log, {"value": column, "key": column}, topic="other")
    assert [(each["key"], each["value"]) for each in records(log, "other")] == [
        (expected, expected)
    ]


def test_rows_go_to_the_partition_of_their_key_or_of_a_column(log: lakebed.Log) -> None:
    write(log, {"value": [b"1", b"2"], "key": [b"x", b"x"]}, topic="raw")
    assert len({each["partition"] for each in records(log, "raw")}) == 1
    columns = {"value": [b"a", b"b", b"c"], "place": [1, 1, 0]}
    write(log, columns, topic="raw", partitionColumn="place")
    placed = {each["value"]: each["partition"] for each in records(log, "raw")}
    assert {name: placed[name] for name in (b"a", b"b", b"c")} == {b"a": 1, b"b": 1, b"c": 0}


def test_rows_name_their_topics(log: lakebed.Log) -> None:
    columns = {"value": [b"a", b"b", b"c"], "topic": ["raw", "other", "raw"]}
    write(log, columns)
    assert sorted(each["value"] for each in records(log, "raw")) == [b"a", b"c"]
    assert [each["value"] for each in records(log, "other")] == [b"b"]


def test_a_typed_value_is_a_struct_or_its_fields_as_columns(log: lakebed.Log) -> None:
    struct = pa.array([{"name": "a", "id": 1}, None], pa.struct([TYPED.field(1), TYPED.field(0)]))
    write(log, {"value": struct, "key": [b"1", b"2"]}, topic="typed")
    write(log, {"name": ["b"], "id": pa.array([3], pa.int32())}, topic="typed", keyColumn="id")
    write(log, {"id": [4], "who": ["w"]}, topic="typed", keyColumn="who")
    values = {each["key"]: each["value"] for each in records(log, "typed")}
    assert values == {
        b"1": {"id": 1, "name": "a"},
        b"2": None,
        b"3": {"id": 3, "name": "b"},
        b"w": {"id": 4, "name": None},
    }


@pytest.mark.parametrize(
    ("columns", "options", "kind", "said"),
    [
        ({"value": [b"a"]}, {}, InvalidArgumentError, "no topic given"),
        ({"value": [b"a"]}, {"topic": "gone"}, TopicNotFoundError, "gone"),
        ({"value": [b"a"], "topic": ["a b"]}, {}, InvalidNameError, "a b"),
        ({"value": [b"a"], "topic": pa.array([None], pa.string())}, {}, InvalidArgumentError,
         "a row has no topic"),
        ({"value": [b"a"], "extra": [1]}, {"topic": "raw"}, SchemaMismatchError,
         "cannot be used beside a column value"),
        ({"value": [0.5]}, {"topic": "raw"}, SchemaMismatchError, "cannot become bytes"),
        ({"id": [1]}, {"topic": "raw"}, SchemaMismatchError, "the topic is raw"),
        ({"value": [b"a"]}, {"topic": "typed"}, SchemaMismatchError, "the topic is typed"),
        ({"id": [1], "nam": ["x"]}, {"topic": "typed"}, SchemaMismatchError,
         "does not have this field topic=typed column=nam"),
        ({"value": [{"id": 1, "nam": "x"}]}, {"topic": "typed"}, SchemaMismatchError,
         "does not have this field topic=typed field=nam"),
        ({"id": ["x"]}, {"topic": "typed"}, SchemaMismatchError, "wanted=int64"),
        ({"value": [b"a"]}, {"topic": "raw", "keyColumn": "k"}, InvalidArgumentError,
         "keyColumn names an unknown column"),
        ({"value": [b"a"]}, {"topic": "raw", "partitionColumn": "p"}, InvalidArgumentError,
         "partitionColumn names an unknown column"),
        ({"value": [b"a"], "partition": [3]}, {"topic": "raw"}, PartitionNotFoundError,
         "partition=3"),
        ({"value": [b"a"], "partition": pa.array([None], pa.int32())}, {"topic": "raw"},
         InvalidArgumentError, "a row has no partition"),
        ({"value": [b"a"], "partition": ["1"]}, {"topic": "raw"}, InvalidArgumentError,
         "partition must be an integer"),
        ({"value": [b"a"], "headers": ["x"]}, {"topic": "raw"}, SchemaMismatchError, "headers"),
        ({"value": [b"a"], "timestamp": ["x"]}, {"topic": "raw"}, SchemaMismatchError,
         "timestamp"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_meant_are_refused_and_nothing_is_written(
    log: lakebed.Log,
    columns: dict[str, Any],
    options: dict[str, str],
    kind: type[LakebedError],
    said: str,
) -> None:
    with pytest.raises(kind) as caught:
        write(log, columns, **options)
    assert said in str(caught.value)
    assert records(log, "raw") == records(log, "typed") == []


PLACED = pa.schema(
    [
        ("partition", pa.int64()),
        ("place", pa.struct([("city", pa.string())])),
        ("stops", pa.list_(pa.struct([("city", pa.string())]))),
    ]
)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"place": [{"city": "a", "zip": "1"}]}, "place.zip"),
        ({"stops": [[{"city": "a", "zip": "1"}]]}, "stops.zip"),
    ],
)
def test_a_field_that_the_topic_lacks_is_refused_at_any_depth(
    log: lakebed.Log, columns: dict[str, Any], field: str
) -> None:
    log.create_topic("placed", 1, PLACED)
    with pytest.raises(SchemaMismatchError, match=f"field={field}"):
        write(log, columns, topic="placed")


def test_a_field_called_partition_is_the_values(log: lakebed.Log) -> None:
    log.create_topic("placed", 1, PLACED)
    write(log, {"partition": [7]}, topic="placed")
    (value,) = log.read("placed")["value"].to_pylist()
    assert value["partition"] == 7
