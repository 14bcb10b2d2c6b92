"""Spark reads the tail of a log from a read replica."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import lakebed
from lakebed.engine.log import EmbeddedLog
from tests.engine.shipped import Machines
from tests.spark.support import ended, fill, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_stream_reads_segments_and_the_tail_from_a_replica(
    spark: SparkSession, tmp_path: Path
) -> None:
    machines = Machines(tmp_path)
    rows: list[bytes] = []

    def take(frame: DataFrame, _number: int) -> None:
        rows.extend(bytes(row.value) for row in frame.collect())

    def run(replica: EmbeddedLog) -> None:
        assert replica.parts.replica is not None
        replica.parts.replica.catch_up()
        writer = stream(spark, replica, topic="in").writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        ended(writer.trigger(availableNow=True).start())

    with machines.open("a") as owner:
        owner.create_topic("in", 2)
        fill(owner, "in", 20)
        owner.checkpoint()
        fill(owner, "in", 10, prefix="w")
        with lakebed.open(f"file://{machines.store}", machines.config(), replica=True) as replica:
            assert isinstance(replica, EmbeddedLog)
            run(replica)
            fill(owner, "in", 5, prefix="x")
            run(replica)
    wanted = [f"{name}{n}" for name, most in (("v", 20), ("w", 10), ("x", 5)) for n in range(most)]
    assert sorted(rows) == sorted(text.encode() for text in wanted)
