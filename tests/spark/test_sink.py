"""What Spark writes into topics: each row once, all of a batch or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException

import lakebed
from lakebed.spark.serving import url_of
from tests.spark.support import (
    ended,
    fill,
    forget_commit,
    into_topic,
    multiset,
    once,
    scanned,
    stream,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(frame: DataFrame, log: lakebed.Log, *, mode: str = "append", **options: Any) -> None:
    frame.write.format("lakebed").options(log=url_of(log), **options).mode(mode).save()


def test_a_dataframe_is_written_once_with_keys_partitions_and_tombstones(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("raw", 3)
    log.create_topic("typed", 2, schema=pa.schema([("id", pa.int64()), ("half", pa.float64())]))
    rows = spark.range(100, numPartitions=3)
    write(rows.selectExpr("cast(id as string) as value", "id as key"), log, topic="raw")
    assert multiset(log, "raw") == once((b"%d" % number,) * 2 for number in range(100))
    write(rows.selectExpr("id", "id / 2 as half"), log, topic="typed", keyColumn="id")
    assert log.table("typed").get("7") == {"id": 7, "half": 3.5}
    # Into both, by a column; every record of a key is a tombstone now.
    gone = rows.selectExpr("id as key", "cast(null as binary) as value", "2 as place")
    write(gone.where("key < 10"), log, topic="raw", partitionColumn="place")
    tombstones = [row for row in scanned(log, "raw", "partition", "value") if row[1] is None]
    assert tombstones == [(2, None)] * 10
    moved = spark.createDataFrame([("raw", "x"), ("other", "y")], "topic string, value string")
    log.create_topic("other", 1)
    write(moved, log)
    assert scanned(log, "other", "value") == [(b"y",)]


def test_a_write_with_a_name_and_a_number_happens_once(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("raw", 1)
    rows = spark.range(5).selectExpr("cast(id as string) as value")
    for version in (3, 3, 2):
        write(rows, log, topic="raw", txnAppId="nightly", txnVersion=version)
    assert log.offsets("raw") == {0: (0, 5)}
    write(rows, log, topic="raw", txnAppId="nightly", txnVersion=4)
    assert log.offsets("raw") == {0: (0, 10)}
    assert log.committed_number("nightly") == 4
    assert log.stats().open_transactions == 0


def test_what_cannot_be_written_is_told_and_leaves_nothing(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("raw", 1)
    rows = spark.range(5).selectExpr("cast(id as string) as value")
    for frame, options, said in [
        (rows, {"topic": "raw", "mode": "overwrite"}, "a topic cannot be overwritten"),
        (rows, {"topic": "gone"}, "TopicNotFoundError"),
        (rows, {"topic": "raw", "keyColum": "x"}, "did you mean 'keyColumn'"),
        (rows.selectExpr("value as v"), {"topic": "raw"}, "the topic is raw: add a column value"),
    ]:
        with pytest.raises(PySparkException, match=said):
            write(frame, log, **options)
    assert log.offsets("raw") == {0: (0, 0)}
    assert log.stats().open_transactions == 0


def test_a_stream_writes_each_batch_once_also_when_it_is_repeated(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    log.create_topic("in", 3)
    log.create_topic("out", 2)
    fill(log, "in", 40)
    frame = stream(spark, log, topic="in").selectExpr("key", "value")

    def run(**options: Any) -> None:
        ended(into_topic(frame, log, tmp_path / "checkpoint", topic="out", **options).start())

    run()
    assert multiset(log, "out") == multiset(log, "in")
    forget_commit(tmp_path / "checkpoint", 0)
    run()
    assert multiset(log, "out") == multiset(log, "in")
    fill(log, "in", 5, prefix="w")
    run()
    assert multiset(log, "out") == multiset(log, "in")
    assert log.stats().open_transactions == 0
    fill(log, "in", 1, prefix="x")
    with pytest.raises(StreamingQueryException, match="a stream is known by its query id"):
        run(txnAppId="x", txnVersion=1)
    counts = frame.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
    complete = into_topic(counts, log, tmp_path / "complete", topic="out").outputMode("complete")
    with pytest.raises(StreamingQueryException, match="not 'complete'"):
        ended(complete.start())
    run()
    assert multiset(log, "out") == multiset(log, "in")


@pytest.mark.parametrize(
    ("rows", "width", "most"), [(40_000, 8, 32_768), (100, 1_000_000, 34)], ids=["many", "large"]
)
def test_rows_come_in_batches_that_are_large_and_bounded(
    spark: SparkSession, rows: int, width: int, most: int
) -> None:
    """By settings of the session, which the sink's speed and memory rest on."""

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"rows": [batch.num_rows]})

    frame = spark.range(0, rows, 1, 1).selectExpr(f"repeat('x', {width}) AS value")
    found = frame.mapInArrow(counted, "rows long").toArrow().column("rows").to_pylist()
    assert sum(found) == rows
    assert most * 0.9 <= max(found) <= most
