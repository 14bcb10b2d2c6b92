"""Spark looks after a topic: compaction by key, beside the log's own."""

from __future__ import annotations

import argparse
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import lakebed
from bench.load import seconds
from bench.logs import TOPIC, settings
from bench.report import MIB, Rows
from bench.spark_load import fill, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compacting(options: argparse.Namespace, rows: Rows) -> None:
    """Compact a topic of many records and fewer keys, by the job and by the log itself."""
    rates: dict[str, list[float]] = {"job": [], "own": []}
    spark = session(None)
    for number in range(options.rounds + 1):
        for name, found in rates.items():
            folder = options.folder / name
            fill(folder, options.records, checkpoint=True, keys=options.keys)
            taken = _compact(folder, options.keys, spark if name == "job" else None)
            if number:  # the first round warms Java up
                found.append(options.records / taken)
            shutil.rmtree(folder)
    spark.stop()
    work = f"compacting {options.records / 1e6:g} M records of {options.keys / 1e6:g} M keys"
    rows.figure(work, "lakebed job compact, records per second", rates["job"], "/s", 1_000_000)
    rows.figure(work, "the log's own compaction, records per second", rates["own"], "/s")


def _compact(folder: Path, keys: int, spark: SparkSession | None) -> float:
    """Return how long a compaction takes, by Spark or without."""
    with lakebed.open(folder, settings(512 * MIB)) as log:
        if spark is None:
            taken = seconds(partial(log.retain, TOPIC))
        else:
            taken = seconds(partial(lakebed.spark.compact, spark, log, TOPIC, force=True))
        left = sum(batch.num_rows for batch in log.table(TOPIC).scan(["offset"]))
        assert left <= keys, "it was not compacted"
        return taken
