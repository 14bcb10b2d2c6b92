"""Iceberg commits: first and thousandth, a hundred topics, and what a user would do instead."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.load import seconds
from bench.logs import BATCH, TOPIC, settings, table
from bench.report import Rows
from lakebed.config import LakeConfig
from lakebed.engine.log import EmbeddedLog as Log

TOPICS = 100
AROUND = 20
"""Commits at the beginning and at the end that are looked at."""
APPENDS = 20


def commits(options: argparse.Namespace, rows: Rows) -> None:
    """Commit a new segment to one table, again and again."""
    log = _quiet_log(options.folder / "commits")
    log.create_topic(TOPIC, config={"segment_bytes": 4096})
    log.lake.sync(TOPIC)
    took = []
    for _ in range(options.commits + 1):
        log.append(TOPIC, b"x" * 100, key=b"key")
        log.checkpoint()
        took.append(1000 * seconds(lambda: log.lake.sync(TOPIC)))
    log.close()
    del took[0]  # the library and the catalog are warm from here on
    first, last = took[:AROUND], took[-AROUND:]
    work = f"Iceberg commit of one new segment, 1st to {options.commits:,}th"
    rows.figure(work, "ms, median of all", [statistics.median(took)], "ms", 80, at_most=True)
    rows.figure(work, f"ms, first {AROUND}", first, "ms")
    rows.figure(work, f"ms, last {AROUND}", last, "ms")
    ratio = [statistics.median(last) / statistics.median(first)]
    rows.figure(work, "last ÷ first (medians)", ratio, "x", 2, at_most=True)
    rows.figure(work, "ms, slowest", [max(took)], "ms")


def hundred_topics(options: argparse.Namespace, rows: Rows) -> None:
    """Sync a hundred topics that have a new segment each."""
    log = _quiet_log(options.folder / "topics")
    for number in range(TOPICS):
        log.create_topic(f"topic-{number}")
    took = []
    for _ in range(options.rounds + 1):
        for number in range(TOPICS):
            log.append(f"topic-{number}", b"x" * 100, key=b"key")
        log.checkpoint()
        took.append(seconds(log.lake.sync))
    log.close()
    work = f"one round over {TOPICS} topics with a new segment each"
    rows.figure(work, "seconds", took[1:], "s", 10, at_most=True)
    rows.figure(work, "seconds, when all tables are made", took[:1], "s")


def appends(options: argparse.Namespace, rows: Rows) -> None:
    """Append batches, each in a table at once: through the log, or straight to a table."""
    rates: dict[str, list[float]] = {}
    folder: Path = options.folder
    ours, close = _through_the_log(folder)
    ways = {"ours": ours, "pyiceberg": _pyiceberg(folder), "deltalake": _deltalake(folder)}
    for _ in range(options.rounds):
        for name, append in ways.items():
            started = time.perf_counter()
            for _ in range(APPENDS):
                append()
            took = time.perf_counter() - started
            rates.setdefault(name, []).append(APPENDS * BATCH / took)
    close()
    work = "10,000 x 100 B at a time, each in a table before the next"
    rows.figure(work, "records per second", rates["ours"], "/s")
    rows.ratio(work, rates["ours"], rates["pyiceberg"], "pyiceberg's append")
    rows.ratio(work, rates["ours"], rates["deltalake"], "deltalake's append")


def _through_the_log(folder: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    log = _quiet_log(folder / "log")
    log.create_topic(TOPIC)
    given = table(keys=True)

    def append() -> None:
        log.append_batch(TOPIC, given)
        log.checkpoint()
        log.lake.sync(TOPIC)

    append()
    return append, log.close


def iceberg_table(folder: Path, schema: pa.Schema) -> Any:
    """Make a table of pyiceberg's, in a catalog of its own in SQLite."""
    from pyiceberg.catalog.sql import SqlCatalog

    place = folder.resolve()
    catalog = SqlCatalog("bench", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
    catalog.create_namespace("bench")
    return catalog.create_table("bench.events", schema)


def _pyiceberg(folder: Path) -> Callable[[], None]:
    place = folder / "pyiceberg"
    place.mkdir()
    given = table(keys=True)
    made = iceberg_table(place, given.schema)
    made.append(given)
    return lambda: made.append(given)


def _deltalake(folder: Path) -> Callable[[], None]:
    from deltalake import write_deltalake

    place = str(folder / "delta")
    given = table(keys=True)
    write_deltalake(place, given)
    return lambda: write_deltalake(place, given, mode="append")


def _quiet_log(folder: Path) -> Log:
    """Open a log in which nothing happens automatically, so that every sync is the one measured."""
    config = settings(lake=LakeConfig())
    return Log.open(folder, config, threaded=False)
