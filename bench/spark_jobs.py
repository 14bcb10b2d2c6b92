"""Spark looks after a topic: compaction by key, beside the log's own."""

from __future__ import annotations

import argparse
import shutil
from functools import partial
from pathlib import Path

import lakebed
from bench.load import seconds
from bench.logs import TOPIC, settings
from bench.report import MIB, Rows
from bench.spark_load import fill, session


def compacting(options: argparse.Namespace, rows: Rows) -> None:
    """Compact a topic of many records and fewer keys, by the job and by the log itself."""
    rates: dict[str, list[float]] = {"job": [], "own": []}
    for _ in range(options.rounds):
        for name, found in rates.items():
            folder = options.folder / name
            fill(folder, options.records, checkpoint=True, keys=options.keys)
            found.append(options.records / _compact(folder, options.keys, by_spark=name == "job"))
            shutil.rmtree(folder)
    work = f"compacting {options.records / 1e6:g} M records of {options.keys / 1e6:g} M keys"
    rows.figure(work, "lakebed job compact, records per second", rates["job"], "/s", 1_000_000)
    rows.figure(work, "the log's own compaction, records per second", rates["own"], "/s")


def _compact(folder: Path, keys: int, *, by_spark: bool) -> float:
    """Give how long a compaction takes; by Spark, in a session that is warm."""
    with lakebed.open(folder, settings(512 * MIB)) as log:
        if by_spark:
            spark = session(log)
            lakebed.spark.read(spark, TOPIC, log=log, columns=["key"]).distinct().count()
            taken = seconds(partial(lakebed.spark.compact, spark, log, TOPIC, force=True))
            spark.stop()
        else:
            taken = seconds(partial(log.retain, TOPIC))
        left = sum(batch.num_rows for batch in log.table(TOPIC).scan(["offset"]))
        assert left <= keys, "it was not compacted"
        return taken
