"""Records written one by one, an entry each: memory, reading, checkpoints and recovery.

Each figure stands beside the same work on batches of 10,000 records, in the same round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lakebed
from bench.engine_reading import read_all
from bench.load import seconds
from bench.logs import BATCH, TOPIC, records_in, settings, settle, table, values, warm_log
from bench.peers import RECORD_BYTES
from bench.report import GIB, Rows
from lakebed.wal import Wal

COUNT = 60_000
_AT_ONCE = 1_000
_LARGE = 64 * GIB


def small_entries(options: argparse.Namespace, rows: Rows) -> None:
    """Fill a memtable with single records, then with batches; weigh, read and flush both."""
    log = warm_log(options.folder / "small", 1)
    fill: dict[str, Callable[[], None]] = {
        "single": partial(_append_singly, log),
        "batches": partial(_append_batches, log),
    }
    memory: dict[str, list[float]] = {name: [] for name in fill}
    reading: dict[str, list[float]] = {name: [] for name in fill}
    again: list[float] = []
    flushing: dict[str, list[float]] = {name: [] for name in fill}
    for _ in range(options.rounds):
        for name, write in fill.items():
            low = log.offsets(TOPIC)[0][1]
            write()
            memory[name].append(log.stats().memtable_bytes / (COUNT * RECORD_BYTES))
            read = partial(read_all, log, low, COUNT)
            reading[name].append(COUNT / seconds(read))
            if name == "single":
                again.append(COUNT / seconds(read))
            flushing[name].append(COUNT / seconds(log.checkpoint))
            settle(log)
    log.close()
    work = "60,000 x 100 B written one by one"
    rows.figure(f"{work}, memtable", "bytes ÷ payload", memory["single"], "x", 2, at_most=True)
    rows.ratio(f"{work}, memtable", memory["single"], memory["batches"], "batches of 10,000")
    rows.figure(f"{work}, reading", "records per second", reading["single"], "/s", 2_000_000)
    rows.figure(f"{work}, reading", "records per second, read before", again, "/s", 2_000_000)
    rows.ratio(f"{work}, reading", reading["single"], reading["batches"], "batches of 10,000")
    rows.figure(f"{work}, checkpoint", "records per second", flushing["single"], "/s", 1_000_000)
    rows.ratio(f"{work}, checkpoint", flushing["single"], flushing["batches"], "batches of 10,000")


def small_recovery(options: argparse.Namespace, rows: Rows) -> None:
    """Open a log of single records, beside opening and reading its WAL alone."""
    folder: Path = options.folder / "small-recovery"
    config = settings(_LARGE, _LARGE)
    with lakebed.open(folder, config) as log:
        log.create_topic(TOPIC, partitions=1)
        for _ in range(3):
            _append_singly(log)
        entries = log.stats().wal.last_index
    ours, wal_alone = [], []
    for _ in range(options.rounds):
        wal_alone.append(entries / seconds(partial(_read_wal, folder)))
        started = time.perf_counter()
        log = lakebed.open(folder, config)
        ours.append(entries / (time.perf_counter() - started))
        found = records_in(log)
        assert found == 3 * COUNT, f"{found} of {3 * COUNT} records were recovered"
        log.close()
    work = "recovery of 180,000 entries of one 100 B record"
    rows.figure(work, "entries per second", ours, "/s", 200_000)
    rows.ratio(work, ours, wal_alone, "opening and reading the WAL alone")


def _append_singly(log: lakebed.Log) -> None:
    """Write an entry for each record; many are under way at a time, so that few syncs do."""
    records = values(_AT_ONCE)
    for _ in range(COUNT // _AT_ONCE):
        for future in [log.append_batch_async(TOPIC, [record]) for record in records]:
            future.result()


def _append_batches(log: lakebed.Log) -> None:
    batch = table()
    for _ in range(COUNT // BATCH):
        log.append_batch(TOPIC, batch)


def _read_wal(folder: Path) -> None:
    with Wal.open(folder) as wal:
        for _ in wal.entries():
            pass
