"""Batch reads by Spark: exactly what the log itself scans, whichever way it is asked for."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import lakebed
import lakebed.spark
from lakebed.errors import InvalidArgumentError
from lakebed.spark import naming
from lakebed.spark.failures import error_in
from lakebed.spark.serving import url_of
from lakebed.spark.tables import append
from tests.spark.support import batch, fill, rows_of, scanned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPED = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("ok", pa.bool_()),
        ("share", pa.float32()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("who", pa.struct([("name", pa.string()), ("age", pa.int32())])),
        ("more", pa.map_(pa.string(), pa.float64())),
    ]
)
NOW = datetime(2026, 11, 15, 10, 0, 0, 123456, tzinfo=UTC)


def typed_rows(count: int) -> list[dict[str, object]]:
    return [
        {
            "key": str(number),
            "value": None
            if number % 9 == 8
            else {
                "id": number,
                "amount": Decimal(number) / 100,
                "day": date(2026, 1, 1 + number % 28),
                "at": NOW,
                "local": NOW.replace(tzinfo=None),
                "ok": None if number % 3 else True,
                "share": number / 4,
                "raw": b"\x00\xff",
                "tags": ["a", None] if number % 2 else [],
                "who": {"name": "x", "age": None} if number % 5 else None,
                "more": {"m": 0.5},
            },
        }
        for number in range(count)
    ]


@pytest.fixture
def raw(log: lakebed.Log) -> lakebed.Log:
    """A topic of which some is in files and some in memory."""
    log.create_topic("raw", 3)
    fill(log, "raw", 50)
    log.checkpoint()
    fill(log, "raw", 30, prefix="w")
    log.checkpoint()
    fill(log, "raw", 20, prefix="x")
    return log


def test_a_raw_topic_is_read_as_the_log_scans_it(spark: SparkSession, raw: lakebed.Log) -> None:
    names = ("partition", "offset", "timestamp", "key", "value")
    frame = batch(spark, raw, topic="raw")
    assert tuple(frame.columns) == names
    assert rows_of(frame.toArrow()) == scanned(raw, "raw", *names)
    headers = batch(spark, raw, topic="raw", includeHeaders=True)
    native = lakebed.spark.read(spark, "raw", log=raw, headers=True)
    assert headers.schema.simpleString() == native.schema.simpleString()
    assert headers.columns == ["partition", "offset", "timestamp", "key", "headers", "value"]
    assert rows_of(headers.toArrow()) == rows_of(native.toArrow()) == scanned(raw, "raw")
    # Every task reads a part, and more tasks read the same.
    many = batch(spark, raw, topic="raw", minPartitions=11)
    assert many.rdd.getNumPartitions() >= 11
    assert rows_of(many.toArrow()) == scanned(raw, "raw", *names)


def test_a_typed_topic_is_read_as_typed_columns(spark: SparkSession, log: lakebed.Log) -> None:
    log.create_topic("typed", 2, schema=TYPED)
    log.append_batch("typed", typed_rows(40))
    log.checkpoint()
    log.alter_topic("typed", schema=TYPED.append(pa.field("late", pa.int32())))
    log.append_batch("typed", [{"key": "late", "value": {"id": 99, "late": 7}}])
    for frame in (batch(spark, log, topic="typed"), lakebed.spark.read(spark, "typed", log=log)):
        assert frame.schema["value"].dataType.simpleString().endswith("late:int>")
        assert rows_of(frame.select("key", "value").toArrow()) == scanned(
            log, "typed", "key", "value"
        )
        found = frame.where("value.late = 7 or value.id = 12").select("value.id", "value.late")
        assert sorted(map(tuple, found.collect())) == [(12, None), (99, 7)]
    # The schema is the projection, of fields too.
    reader = spark.read.format("lakebed").options(log=url_of(log), topic="typed")
    chosen = reader.schema("value struct<id: bigint, who: struct<age: int>>, offset bigint").load()
    expected = [
        (value and (("id", value["id"]), ("who", value["who"] and (("age", value["who"]["age"]),))),
         offset)
        for value, offset in zip(
            *log.table("typed").scan(["value", "offset"]).read_all().select(["value", "offset"])
            .to_pydict().values(), strict=True)
    ]  # fmt: skip
    assert rows_of(chosen.toArrow()) == sorted(expected, key=repr)
    columns = lakebed.spark.read(spark, "typed", log=log, columns=["offset"])
    assert columns.columns == ["offset"]
    assert columns.count() == 41


def test_several_topics_are_read_together(spark: SparkSession, log: lakebed.Log) -> None:
    for name in ("one", "two", "other"):
        log.create_topic(name, 1)
        fill(log, name, 3, prefix=name)
    named = batch(spark, log, subscribe="two,one")
    assert named.columns[0] == "topic"
    expected = {("one", b"one0"), ("two", b"two2")}
    for frame in (named, batch(spark, log, subscribePattern="one|t.*")):
        found = {tuple(row) for row in frame.select("topic", "value").collect()}
        assert len(found) == 6
        assert expected <= found
    log.create_topic("typed", 1, schema=TYPED)
    with pytest.raises(PySparkException, match="need values of one type"):
        batch(spark, log, subscribe="one,typed")
    with pytest.raises(PySparkException, match="no topic fits the pattern"):
        batch(spark, log, subscribePattern="none.*")


def test_a_range_is_read_natively_also_where_retention_has_been(
    spark: SparkSession, raw: lakebed.Log
) -> None:
    native = lakebed.spark.read(spark, "raw", log=raw, start=3, until={0: 9, 1: 4})
    expected = raw.table("raw").scan(start=3, until={0: 9, 1: 4}).read_all()
    assert rows_of(native.select("partition", "offset", "value").toArrow()) == rows_of(
        expected, "partition", "offset", "value"
    )
    raw.purge_topic("raw")
    raw.append_batch("raw", [{"value": b"left"}], partition=1)
    names = ("offset", "value")
    left = lakebed.spark.read(spark, "raw", log=raw, columns=list(names))
    assert rows_of(left.select(*names).toArrow()) == scanned(raw, "raw", *names)


def test_a_log_is_read_in_a_folder_of_any_name(spark: SparkSession, tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "a b[1]{2,3}*%20") as log:
        log.create_topic("raw", 1)
        fill(log, "raw", 10)
        log.checkpoint()
        fill(log, "raw", 10)
        log.checkpoint()
        assert batch(spark, log, topic="raw").count() == 20
        assert lakebed.spark.read(spark, "raw", log=log).count() == 20
        log.derived.create("rows", pa.schema([("id", pa.int64())]), kind="append")
        append(log, "rows", spark.range(3), writer="test", number=0)
        assert lakebed.spark.read_table(spark, log, "rows").count() == 3


def test_what_cannot_be_read_is_told_in_one_sentence(spark: SparkSession, raw: lakebed.Log) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"topic": "gone"}, "TopicNotFoundError"),
        ({"topc": "raw"}, "did you mean 'topic'"),
        ({"topic": "raw", "log": "lakebed://127.0.0.1:1", "retryMs": 0}, "ServerUnavailable"),
    ]
    for options, said in wrong:
        with pytest.raises(PySparkException, match=said) as caught:
            spark.read.format("lakebed").options(**({"log": url_of(raw)} | options)).load()
        ours = error_in(str(caught.value))
        assert ours is not None, "the log's own error is found in Spark's"
        assert "Traceback" not in str(ours)
    reader = spark.read.format("lakebed").options(log=url_of(raw), topic="raw")
    with pytest.raises(PySparkException, match="the schema names an unknown column"):
        reader.schema("nothing int").load().count()
    with pytest.raises(InvalidArgumentError, match="columns must be some of"):
        lakebed.spark.read(spark, "raw", log=raw, columns=["nothing"])


def test_the_log_of_the_session_is_read_when_none_is_named(
    spark: SparkSession, raw: lakebed.Log, tmp_path: Path
) -> None:
    with lakebed.open(tmp_path / "other") as other:
        other.create_topic("raw", 1)
        fill(other, "raw", 7)
        try:
            for log, count in ((raw, 100), (other, 7)):  # whichever was named last
                assert lakebed.spark.session(log=log) is spark
                assert lakebed.spark.read(spark, "raw").count() == count
                assert spark.read.format("lakebed").option("topic", "raw").load().count() == count
        finally:
            spark.conf.unset("spark.lakebed.log")
            naming.set_application_log("")
    with pytest.raises(InvalidArgumentError, match="no log given"):
        lakebed.spark.read(spark, "raw")
