"""Spark writes to a topic: many records at once, and one micro-batch after another."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import lakebed
from bench.load import seconds
from bench.logs import TOPIC, settings
from bench.report import MIB, Rows
from bench.spark_load import PARTITIONS, fill, session

_FLOOR_BATCHES = 30


def sink(options: argparse.Namespace, rows: Rows) -> None:
    """Write records that Spark has as Parquet, in one transaction."""
    count = min(options.records, 4_000_000)
    source = options.folder / "source"
    fill(source, count, checkpoint=True)
    rates = []
    with (
        lakebed.open(source, settings()) as given,
        lakebed.open(options.folder / "log", settings(512 * MIB)) as log,
    ):
        spark = session(log)
        frame = lakebed.spark.read(spark, TOPIC, log=given, columns=["key", "value"])
        for number in range(options.rounds + 1):
            topic = f"out-{number}"
            log.create_topic(topic, partitions=PARTITIONS)
            rate = count / seconds(partial(_write, frame, topic))
            assert sum(end for _, end in log.offsets(topic).values()) == count
            if number:
                rates.append(rate)
            log.delete_topic(topic)
        spark.stop()
    work = f"Spark writes {count / 1e6:g} M records of 100 B, exactly once"
    rows.figure(work, "records per second", rates, "/s", 1_000_000)


def floor(options: argparse.Namespace, rows: Rows) -> None:
    """Take a record from one topic to another, one micro-batch each."""
    with lakebed.open(options.folder / "log", settings()) as log:
        for topic in (TOPIC, "out"):
            log.create_topic(topic, partitions=1)
        spark = session(log)
        found = _batches(spark, log, options.folder / "checkpoint")
        spark.stop()
    work = "a micro-batch of one record, from topic to topic"
    rows.figure(work, "median of its duration", [statistics.median(found)], "ms", 400, at_most=True)
    rows.figure(work, "the slowest tenth begins at", [sorted(found)[len(found) * 9 // 10]], "ms")


def _write(frame: Any, topic: str) -> None:
    frame.write.format("lakebed").option("topic", topic).mode("append").save()


def _batches(spark: Any, log: Any, place: Path) -> list[float]:
    """Return how long each micro-batch took, after some that warm Java up."""
    query = (
        spark.readStream.format("lakebed")
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
        .writeStream.format("lakebed")
        .option("topic", "out")
        .option("checkpointLocation", os.fspath(place))
        .start()
    )
    for number in range(_FLOOR_BATCHES + 10):
        log.append(TOPIC, b"x" * 100, key=b"%d" % number)
        _await(log, number + 1)
    found = [
        progress["durationMs"]["triggerExecution"]
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]
    query.stop()
    return [float(each) for each in found[-_FLOOR_BATCHES:]]


def _await(log: Any, records: int) -> None:
    deadline = time.monotonic() + 60
    while log.offsets("out")[0][1] < records and time.monotonic() < deadline:
        log.read(
            "out",
            0,
            records - 1 if log.offsets("out")[0][1] >= records - 1 else "latest",
            wait_ms=1000,
        )
