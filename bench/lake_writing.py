"""Memtables into Parquet: beside pyarrow writing the same table, and beside writers that go on."""

from __future__ import annotations

import argparse
import os
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import lakebed
from bench.load import rate
from bench.logs import TOPIC, settle, table, warm_log
from bench.report import Rows
from lakebed import limits

PARTITIONS = 4
BATCHES = 100
"""Of 10,000 records in each memtable that is flushed: 1 M records, 100 MB."""


def flush(options: argparse.Namespace, rows: Rows) -> None:
    """Checkpoint 100 MB, write the same with pyarrow, and append meanwhile."""
    log = warm_log(options.folder / "flush", PARTITIONS)
    given = [table() for _ in range(BATCHES)]
    ours, arrow, alone, meanwhile = [], [], [], []
    for _ in range(options.rounds):
        low = log.offsets(TOPIC)
        for each in given:
            log.append_batch(TOPIC, each)
        parts = [_read(log, number, low[number][1]) for number in range(PARTITIONS)]
        size = sum(part.nbytes for part in parts) / 1e6
        started = time.perf_counter()
        log.checkpoint()
        ours.append(size / (time.perf_counter() - started))
        arrow.append(size / _written(options.folder / "arrow", parts))
        settle(log)
        alone.append(rate(lambda: log.append_batch(TOPIC, given[0]), BATCHES))
        meanwhile.append(_rate_while_flushing(log, given[0]))
        settle(log)
    log.close()
    work = "flush of memtables to Parquet, 1 M x 100 B in 4 partitions"
    rows.figure(work, "MB of records per second", ours, "MB/s")
    rows.ratio(work, ours, arrow, "pyarrow.parquet writing and syncing the same tables", 0.8)
    work = "append_batch of 10,000 x 100 B during a flush"
    rows.ratio(work, meanwhile, alone, "the same without one", 0.5)


def _read(log: lakebed.Log, partition: int, offset: int) -> pa.Table:
    pieces = []
    while (piece := log.read(TOPIC, partition, offset, max_records=limits.MIB)).num_rows:
        pieces.append(piece)
        offset += piece.num_rows
    return pa.concat_tables(pieces)


def _written(folder: Path, parts: list[pa.Table]) -> float:
    """Write each table to a file as a user would, and sync it; return the seconds."""
    folder.mkdir()
    started = time.perf_counter()
    for number, part in enumerate(parts):
        path = folder / f"{number}.parquet"
        pq.write_table(part, path, compression="zstd", row_group_size=limits.ROW_GROUP_RECORDS)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    took = time.perf_counter() - started
    shutil.rmtree(folder)
    return took


def _rate_while_flushing(log: lakebed.Log, given: pa.Table) -> float:
    """Return the batches per second that are appended while a checkpoint runs."""
    running = threading.Thread(target=log.checkpoint)
    running.start()
    count, started = 0, time.perf_counter()
    while running.is_alive():
        log.append_batch(TOPIC, given)
        count += 1
    took = time.perf_counter() - started
    running.join()
    return count / took
