"""A topic becomes a table of what its keys are now: made again, and brought up to date."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import lakebed
from bench.load import seconds
from bench.logs import TOPIC, settings
from bench.report import MIB, Rows
from bench.spark_load import fill, keys_of, session, values_of

_BUCKETS = 16


def materialising(options: argparse.Namespace, rows: Rows) -> None:
    """Change one key in a hundred, and bring the table up to date, or make it again."""
    count, changed = options.records, options.records // 100
    fill(options.folder / "log", count, checkpoint=True)
    rng = np.random.default_rng(1)
    rebuilt, updated, read_before, read_after = [], [], [], []
    config = settings(1024 * MIB, lake=lakebed.LakeConfig())
    with lakebed.open(options.folder / "log", config) as log:
        spark = session(log)
        _materialise(spark, log, "table")
        for number in range(options.rounds + 1):
            numbers = rng.choice(count, changed, replace=False)
            log.append_batch(
                TOPIC, pa.table({"key": keys_of(numbers), "value": values_of(changed)})
            )
            log.checkpoint()
            update = seconds(partial(_materialise, spark, log, "table"))
            rebuild = seconds(partial(_materialise, spark, log, f"anew-{number}"))
            after = seconds(partial(_read, spark, log, "table"))
            before = seconds(partial(_read, spark, log, f"anew-{number}"))
            log.derived.drop(f"anew-{number}")
            log.lake.gc(now=True)
            if number:  # the first one warms Java up
                updated.append(update)
                rebuilt.append(rebuild)
                read_before.append(before)
                read_after.append(after)
        spark.stop()
    work = f"1 % of {count / 1e6:g} M keys changed, as a current table"
    rows.figure(work, "seconds to bring it up to date", updated, "s")
    rows.ratio(work, rebuilt, updated, "full rebuild, how much slower", 10)
    rows.ratio(work, read_after, read_before, "read by Spark after changes, before", None)


def _materialise(spark: Any, log: Any, table: str) -> None:
    lakebed.spark.materialise(spark, log, TOPIC, table, buckets=_BUCKETS)


def _read(spark: Any, log: Any, table: str) -> None:
    lakebed.spark.read_table(spark, log, table).selectExpr("sum(length(value))").collect()
