"""Spark reads a topic: natively, through the source, hot and sealed, in one go and as a stream."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lakebed
from bench.load import seconds
from bench.logs import TOPIC, settings
from bench.report import MIB, Rows
from bench.spark_load import PARTITIONS, fill, session
from bench.spark_peer import SyntheticSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOT_RECORDS = 4_000_000
"""As many as are held in memory, with the bench's settings."""


def batch_reads(options: argparse.Namespace, rows: Rows) -> None:
    """Read sealed and hot records, beside Spark's own Parquet reader and a synthetic source."""
    rates: dict[str, list[float]] = {
        name: [] for name in ("native", "parquet", "sealed", "synthetic", "hot", "few")
    }
    hot = min(options.records, _HOT_RECORDS)
    sealed_folder, hot_folder = options.folder / "sealed", options.folder / "hot"
    fill(sealed_folder, options.records, checkpoint=True)
    fill(hot_folder, hot, checkpoint=False)
    with (
        lakebed.open(sealed_folder, settings()) as sealed,
        lakebed.open(hot_folder, settings(1024 * MIB)) as fresh,
    ):
        spark = session(sealed)
        spark.dataSource.register(SyntheticSource)
        hot_url = lakebed.spark.serving.url_of(fresh)
        files = [each.location for each in sealed.table(TOPIC).plan().files]
        columns = ["partition", "offset", "timestamp", "key", "value"]
        works: dict[str, tuple[int, Any]] = {
            "native": (options.records, lambda: lakebed.spark.read(spark, TOPIC, log=sealed)),
            "parquet": (options.records, lambda: spark.read.parquet(*files).select(*columns)),
            "sealed": (options.records, lambda: _source(spark, TOPIC, None)),
            "synthetic": (options.records, partial(_synthetic, spark, options.records)),
            "hot": (hot, lambda: _source(spark, TOPIC, hot_url)),
            "few": (hot, partial(_synthetic, spark, hot)),
        }
        for number in range(options.rounds + 1):
            for name, (count, frame) in works.items():
                rate = count / seconds(partial(_drain, frame))
                if number:  # the first round warms Java up
                    rates[name].append(rate)
        spark.stop()
    work = f"Spark reads {options.records / 1e6:g} M sealed records of 100 B, every column"
    rows.figure(work, "lakebed.spark.read, records per second", rates["native"], "/s")
    rows.ratio(work, rates["native"], rates["parquet"], "spark.read.parquet, same files", 0.9)
    rows.figure(work, 'format("lakebed"), records per second', rates["sealed"], "/s")
    rows.ratio(work, rates["sealed"], rates["synthetic"], "a synthetic Arrow source", 0.8)
    work = f"Spark reads {hot / 1e6:g} M hot records"
    rows.figure(work, "records per second", rates["hot"], "/s")
    rows.ratio(work, rates["hot"], rates["few"], "a synthetic Arrow source", 0.8)


def catching_up(options: argparse.Namespace, rows: Rows) -> None:
    """Read a topic from its beginning as a stream, batch after batch."""
    folder = options.folder / "log"
    fill(folder, options.records, checkpoint=True)
    whole, batches = [], []
    with lakebed.open(folder, settings()) as log:
        spark = session(log)
        for number in range(options.rounds + 1):
            place = options.folder / f"checkpoint-{number}"
            begun = time.perf_counter()
            within = _stream(spark, place, options.records // 4)
            taken = time.perf_counter() - begun
            if number:  # the first round warms Java up
                whole.append(options.records / taken)
                batches.append(options.records / within)
            shutil.rmtree(place)
        spark.stop()
    work = f"a stream catches up on {options.records / 1e6:g} M records, in four batches"
    rows.figure(work, "records per second, batch after batch", batches, "/s", 1_500_000)
    rows.figure(work, "with the start and the end of the query", whole, "/s")


def _source(spark: Any, topic: str, url: str | None) -> DataFrame:
    reader = spark.read.format("lakebed").option("topic", topic)
    frame: DataFrame = (reader if url is None else reader.option("log", url)).load()
    return frame


def _synthetic(spark: Any, records: int) -> DataFrame:
    frame: DataFrame = (
        spark.read.format("synthetic").option("records", records).option("tasks", PARTITIONS).load()
    )
    return frame


def _drain(frame: Callable[[], DataFrame]) -> None:
    """Have every row of every column made, and thrown away."""
    frame().write.format("noop").mode("overwrite").save()


def _stream(spark: Any, place: Path, batch: int) -> float:
    """Read everything there is; return how long the micro-batches took together."""
    query = (
        spark.readStream.format("lakebed")
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", os.fspath(place))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spent = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
    return float(sum(spent)) / 1000
