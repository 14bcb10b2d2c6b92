"""A topic as a table: whole scans beside pyarrow, their memory, lookups by key beside scans."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import lakebed
from bench.engine_life import child
from bench.load import seconds
from bench.logs import BATCH, TOPIC, settings
from bench.peers import RECORD_BYTES
from bench.report import MIB, Rows

SEGMENT_RECORDS = 100_000
LOOKUPS = 100
"""Keys that are looked up in a round."""


def scans(options: argparse.Namespace, rows: Rows) -> None:
    """Scan everything, beside pyarrow scanning the same files; and the memory that takes."""
    folder = options.folder / "log"
    count = _fill(folder, options.records)
    files = _files(folder)
    rates: dict[str, list[float]] = {"ours": [], "arrow": []}
    with lakebed.open(folder, settings()) as log:
        for _ in range(options.rounds):
            rates["ours"].append(count / seconds(partial(_scan, log, count)))
            rates["arrow"].append(count / seconds(partial(_scan_files, files, count)))
    work = f"scanning a table of {_size(count)}"
    rows.figure(work, "records per second", rates["ours"], "/s")
    rows.ratio(work, rates["ours"], rates["arrow"], "pyarrow.dataset, same files", 0.8)


def scan_memory(options: argparse.Namespace, rows: Rows) -> None:
    """Scan much more than memory may hold, in a process of its own."""
    folder = options.folder / "log"
    _fill_large(folder, options.scan_gb)
    found = child("scan", str(folder))
    work = f"scanning a table of {options.scan_gb:g} GB, 1,000 B a record"
    peak = [found["peak_mib"]]
    rows.figure(work, "peak resident memory of the process", peak, "MiB", 286, at_most=True)
    speed = [options.scan_gb / found["seconds"]]
    rows.figure(work, "GB of records per second", speed, "GB/s")


def lookups(options: argparse.Namespace, rows: Rows) -> None:
    """Get values by key out of many segments, beside a scan for one key."""
    folder = options.folder / "log"
    count = _fill(folder, options.records)
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {name: [] for name in ("first", "get", "absent", "scan")}
    for _ in range(options.rounds):
        with lakebed.open(folder, settings()) as log:
            table = log.table(TOPIC)
            found["first"].append(_ms(partial(_get, table, 0)))
            numbers = [int(number) for number in rng.integers(0, count, LOOKUPS)]
            found["get"].append(median(_ms(partial(_get, table, each)) for each in numbers))
            found["absent"].append(median(_ms(partial(_miss, table, each)) for each in numbers))
            found["scan"].append(_ms(partial(_scan_for, table, numbers[0])))
    work = f"getting a value by key from {_size(count)}"
    rows.figure(work, "the first, after opening", found["first"], "ms")
    rows.figure(work, "median", found["get"], "ms", 10, at_most=True)
    rows.figure(work, "median, of keys that are not there", found["absent"], "ms")
    rows.ratio(work, found["scan"], found["get"], "of a scan for the key", 50)


def _fill(folder: Path, records: int) -> int:
    """Write records with distinct keys in no order, in segments of equal size."""
    with lakebed.open(folder, settings()) as log:
        log.create_topic(TOPIC, partitions=1)
        for first in range(0, records, BATCH):
            data = os.urandom(BATCH * RECORD_BYTES)
            places = range(0, len(data), RECORD_BYTES)
            values = [data[place : place + RECORD_BYTES] for place in places]
            keys = [_key(number) for number in range(first, first + BATCH)]
            log.append_batch(TOPIC, pa.table({"key": keys, "value": values}))
            if (first + BATCH) % SEGMENT_RECORDS == 0:
                log.checkpoint()
        log.checkpoint()
        return log.offsets(TOPIC)[0][1]


def _fill_large(folder: Path, gigabytes: float) -> None:
    """Write large records, in segments as they come by themselves."""
    size = 1000 * BATCH
    given = []
    for _ in range(16):
        data = os.urandom(size)
        values = [data[place : place + 1000] for place in range(0, size, 1000)]
        given.append(pa.table({"value": pa.array(values, pa.binary())}))
    with lakebed.open(folder, settings(256 * MIB)) as log:
        log.create_topic(TOPIC, partitions=2)
        for number in range(round(gigabytes * 1e9 / size)):
            log.append_batch(TOPIC, given[number % len(given)])
        log.checkpoint()


def _key(number: int) -> bytes:
    """Make keys that spread evenly: the least and greatest of a row group rule nothing out."""
    return b"%08x-%d" % (number * 2_654_435_761 & 0xFFFFFFFF, number)


def _files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("lake/*/*.parquet"))


def _size(count: int) -> str:
    return f"{count / 1e6:g} M x {RECORD_BYTES} B"


def _ms(call: Callable[[], object]) -> float:
    return seconds(call) * 1000


def _get(table: lakebed.Table, number: int) -> None:
    assert len(table.get(_key(number))) == RECORD_BYTES


def _miss(table: lakebed.Table, number: int) -> None:
    assert table.get(_key(number) + b"-") is None


def _scan_for(table: lakebed.Table, number: int) -> None:
    found = table.scan(["value"], pc.field("key") == _key(number)).read_all()
    assert found.num_rows == 1, f"found {found.num_rows} records"


def _scan(log: lakebed.Log, expected: int) -> None:
    count = sum(batch.num_rows for batch in log.table(TOPIC).scan())
    assert count == expected, f"read {count} of {expected} records"


def _scan_files(files: list[str], expected: int) -> None:
    count = sum(batch.num_rows for batch in ds.dataset(files).to_batches())
    assert count == expected, f"read {count} of {expected} records"
