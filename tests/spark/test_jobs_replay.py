"""A replay copies every record of its range once, in order, however often it is begun."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lakebed
import lakebed.spark
from lakebed.errors import InvalidArgumentError, OffsetOutOfRangeError, PartitionNotFoundError
from lakebed.spark.jobs.ranges import cut, resolve_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(log: lakebed.Log, topic: str, count: int) -> None:
    """Append records with and without key, headers and value, half of them sealed."""
    rows = [
        {
            "key": f"k{number % 7}" if number % 5 else None,
            "value": b"v%d" % number if number % 4 or not number % 5 else None,
            "headers": {"n": b"%d" % number} if number % 3 else None,
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
        }
        for number in range(count)
    ]
    log.append_batch(topic, rows[: count // 2])
    log.checkpoint()
    log.append_batch(topic, rows[count // 2 :])


def records(log: lakebed.Log, topic: str) -> list[dict[str, Any]]:
    return list(log.table(topic).scan().read_all().to_pylist())


def copies(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(
        (row["key"], row["value"], row["timestamp"], str(row["headers"])) for row in rows
    )


def by_key(rows: list[dict[str, Any]]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for row in rows:
        if row["key"] is not None:
            found.setdefault(row["key"], []).append(row["timestamp"])
    return found


def test_every_record_is_copied_once_whatever_dies_and_grows_meanwhile(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("a", 2)
    fill(log, "a", 400)
    source = records(log, "a")

    def die(_doing: str, done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lakebed.spark.replay(spark, log, "a", "b", chunk_records=150, progress=die)
    assert 0 < len(records(log, "b")) < len(source)
    fill(log, "a", 10)  # no part of a replay that has begun
    report = lakebed.spark.replay(spark, log, "a", "b", chunk_records=150)
    assert (report.chunks, report.chunks_before, report.offsets) == (3, 1, 400)
    copied = records(log, "b")
    assert copies(copied) == copies(source)
    assert by_key(copied) == by_key(source)
    again = lakebed.spark.replay(spark, log, "a", "b")
    assert (again.name, again.records, again.created) == (report.name, 0, False)
    assert len(records(log, "b")) == 400


def test_a_range_by_offsets_and_keys_keeps_partitions_and_gets_new_timestamps(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("a", 2, pa.schema([("id", pa.int64())]))
    log.append_batch(
        "a",
        [
            {"key": f"k{number % 3}", "value": {"id": number}, "timestamp": 5}
            for number in range(90)
        ],
    )
    report = lakebed.spark.replay(
        spark,
        log,
        "a",
        "b",
        start={0: 3},
        until=25,
        keys=["k1", b"k2"],
        keep_timestamps=False,
        keep_partitions=True,
        name="some",
    )
    wanted = [
        (row["partition"], row["key"], row["value"]["id"])
        for row in records(log, "a")
        if row["key"] in (b"k1", b"k2")
        and row["offset"] < 25
        and (row["partition"] or row["offset"] >= 3)
    ]
    found = records(log, "b")
    assert [(row["partition"], row["key"], row["value"]["id"]) for row in found] == wanted
    assert report.records == len(wanted) > 0
    assert min(row["timestamp"] for row in found).year > 2000
    with pytest.raises(InvalidArgumentError, match="does something else"):
        lakebed.spark.replay(spark, log, "a", "b", name="some")


def test_a_range_by_times_begins_and_ends_at_the_first_records_of_then(log: lakebed.Log) -> None:
    log.create_topic("a")
    fill(log, "a", 100)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    ranges = resolve_ranges(
        log,
        "a",
        start=None,
        until=None,
        from_time=begin + timedelta(seconds=10),
        to_time=begin + timedelta(seconds=30),
    )
    assert ranges == {0: (10, 30)}


def test_ranges_that_make_no_sense_are_refused(log: lakebed.Log) -> None:
    log.create_topic("a")
    fill(log, "a", 10)
    log.purge_topic("a")
    bounds: dict[str, Any] = {"start": None, "until": None, "from_time": None, "to_time": None}
    for wrong, error in (
        ({"start": 1, "from_time": 1}, InvalidArgumentError),
        ({"until": 1, "to_time": 1}, InvalidArgumentError),
        ({"start": {3: 1}}, PartitionNotFoundError),
        ({"start": -1}, InvalidArgumentError),
        ({"start": 5}, OffsetOutOfRangeError),
    ):
        with pytest.raises(error):
            resolve_ranges(log, "a", **{**bounds, **wrong})
    assert resolve_ranges(log, "a", **bounds) == {}


def test_chunks_are_the_whole_range_and_nothing_twice() -> None:
    ranges = {0: (5, 1000), 1: (0, 1), 2: (7, 8000)}
    chunks = cut(ranges, 500)
    for partition, (start, until) in ranges.items():
        offsets = [offset for chunk in chunks for offset in range(*chunk.get(partition, (0, 0)))]
        assert offsets == list(range(start, until))
    assert cut({}, 500) == []


def test_a_topic_is_not_replayed_into_itself(spark: SparkSession, log: lakebed.Log) -> None:
    with pytest.raises(InvalidArgumentError, match="different topics"):
        lakebed.spark.replay(spark, log, "a", "a")
