"""Streams of topics: every record in one micro-batch, and a batch that is repeated is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import lakebed
from lakebed.config import LakeConfig, LogConfig
from lakebed.errors import DataLossError
from lakebed.spark.failures import error_in
from tests.s3 import Server, options
from tests.spark.support import (
    batches_of,
    ended,
    fill,
    into_topic,
    multiset,
    stream,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Rows = list[tuple[Any, ...]]
FIRST = '{"in": {"0": 0}}'


class Seen:
    """What the micro-batches of a stream had, by their numbers."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.batches: dict[int, list[Rows]] = {}
        self.failing = False
        """Whether the batches that are seen fail in the end, and so are to be read again."""
        self._writer = frame.writeStream.foreachBatch(self._take).option(
            "checkpointLocation", str(checkpoint)
        )

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = sorted((tuple(row) for row in frame.collect()), key=repr)
        self.batches.setdefault(number, []).append(rows)
        if self.failing:
            raise RuntimeError("the batch fails")

    def run(self) -> StreamingQuery:
        """Read what there is, to the end."""
        return ended(self._writer.trigger(availableNow=True).start())

    @property
    def values(self) -> Counter[Any]:
        """How often each row was seen, in the last run of each batch."""
        return Counter(row for runs in self.batches.values() for row in runs[-1])


def test_a_stream_reads_everything_once_within_its_limits(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    log.create_topic("in", 3)
    log.create_topic("out", 2)
    fill(log, "in", 60)
    log.checkpoint()
    fill(log, "in", 40, prefix="w")
    frame = stream(spark, log, topic="in", maxOffsetsPerTrigger=40, consumerGroup="copy")
    writer = into_topic(frame.select("key", "value"), log, tmp_path / "checkpoint", topic="out")
    assert batches_of(ended(writer.start())) == [40, 40, 20]
    assert multiset(log, "out") == multiset(log, "in")
    assert log.describe_group("copy").lag == 0
    # Partitions that came later are read from their beginning, also by a query that began late.
    log.add_partitions("in", 4)
    for number in range(4):
        log.append_batch("in", [{"value": b"n%d" % number}], partition=number)
    writer = into_topic(
        stream(spark, log, topic="in", consumerGroup="copy", maxBytesPerTrigger=1).select(
            "key", "value"
        ),
        log,
        tmp_path / "checkpoint",
        topic="out",
    )
    assert batches_of(ended(writer.start())) == [1, 1, 1, 1]
    assert multiset(log, "out") == multiset(log, "in")
    assert {each.partition for each in log.describe_group("copy").partitions} == {0, 1, 2, 3}


def test_topics_partitions_and_fields_that_come_later_are_taken_up(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    schema = pa.schema([("n", pa.int64())])
    log.create_topic("a1", 1, schema=schema)
    log.append("a1", {"n": 0})
    frame = stream(spark, log, subscribePattern="a.*", startingOffsets="latest")
    rows = frame.selectExpr("topic", "partition", "value.n")
    query = (
        rows.writeStream.format("memory")
        .queryName("later")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        log.add_partitions("a1", 2)
        log.create_topic("a2", 1, schema=schema)
        log.alter_topic("a1", schema=schema.append(pa.field("more", pa.string())))
        log.append_batch("a1", [{"value": {"n": 1, "more": "x"}}], partition=1)
        log.append("a2", {"n": 2})
        log.append_batch("a1", [{"value": {"n": 3, "more": "x"}}], partition=0)
        query.processAllAvailable()
    finally:
        query.stop()
    found = sorted(map(tuple, spark.table("later").collect()))
    assert found == [("a1", 0, 3), ("a1", 1, 1), ("a2", 0, 2)]


@pytest.fixture
def stored(s3: Server, tmp_path: Path) -> Iterator[lakebed.Log]:
    """A log whose segments can go to an object store."""
    lake = LakeConfig(store=f"s3://{s3.bucket()}/lake", store_options=options(s3.url))
    with lakebed.open(tmp_path / "log", LogConfig(lake=lake)) as log:
        yield log


@pytest.mark.prove
def test_a_batch_is_read_again_alike_wherever_its_records_went(
    spark: SparkSession, stored: lakebed.Log, tmp_path: Path
) -> None:
    log = stored
    log.create_topic("in", 2, config={"cleanup": "compact", "compact_dirty_percent": 0})
    fill(log, "in", 30)
    frame = stream(spark, log, topic="in", maxOffsetsPerTrigger=30, includeHeaders=True)
    seen = Seen(frame, tmp_path / "checkpoint")
    seen.run()
    log.checkpoint()
    ends = {number: end for number, (_, end) in log.offsets("in").items()}
    fill(log, "in", 30, prefix="w")  # replaces every record of the first batch
    seen.failing = True

    def again() -> None:
        with pytest.raises(StreamingQueryException, match="the batch fails"):
            seen.run()

    again()
    assert len(seen.batches[1][0]) == 30
    log.checkpoint()
    again()
    fill(log, "in", 30, prefix="x")  # replaces every record of the second batch
    log.checkpoint()
    log.retain("in")
    log.retain("in")
    assert log.table("in").scan(until=ends).read_all().num_rows < 30, "the first is compacted"
    assert log.table("in").scan(start=ends).read_all().num_rows == 60, "the second is held"
    again()
    log.alter_topic("in", {"local_bytes": 0})
    assert not log.lake.sync().failures
    assert {each.location[:5] for each in log.table("in").plan().files} == {"s3://"}
    seen.failing = False
    seen.run()
    first, *others = seen.batches[1]
    assert len(others) == 3
    assert others == [first] * 3
    assert sum(len(runs[-1]) for runs in seen.batches.values()) == 90
    log.retain("in")
    assert log.table("in").scan(start=ends).read_all().num_rows < 60, "it is held no more"


def test_records_that_are_gone_stop_a_stream_unless_that_is_allowed(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    log.create_topic("in", 1)
    fill(log, "in", 10, prefix="lost")

    def seen(*, fail: bool) -> Seen:
        frame = stream(spark, log, topic="in", failOnDataLoss=fail, startingOffsets=FIRST)
        return Seen(frame.selectExpr("cast(value as string)"), tmp_path / "checkpoint")

    log.purge_topic("in")
    fill(log, "in", 3, prefix="kept")
    with pytest.raises(
        StreamingQueryException, match="records were removed before they were read"
    ) as e:
        seen(fail=True).run()
    ours = error_in(str(e.value))
    assert isinstance(ours, DataLossError)
    assert "from_offset=0 to_offset=10" in str(ours)
    allowed = seen(fail=False)
    allowed.run()
    assert set(allowed.values) == {(f"kept{number}",) for number in range(3)}
