"""A log over its life: recovery, opening a large one, checkpoints under way, bounded memory."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import lakebed
from bench.load import rate
from bench.logs import BATCH, TOPIC, records_in, settings, settle, table, warm_log
from bench.report import GIB, Rows
from lakebed.host import OsDisk
from lakebed.state.image import decode_state, encode_state
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.state.values import Partition, Segment

_LARGE = 64 * GIB
TOPICS, PARTITIONS, SEGMENTS = 10, 1_000, 10
"""Of the large log: topics, partitions of each, segments of each of those."""


def recovery(options: argparse.Namespace, rows: Rows) -> None:
    """Open a log whose WAL has a gigabyte that no checkpoint has seen."""
    folder = options.folder / "recovery"
    config = settings(_LARGE, _LARGE)
    count = 0
    with lakebed.open(folder, config) as log:
        log.create_topic(TOPIC, partitions=4)
        given = table()
        while log.stats().wal.counters.bytes < options.recovery_gb * 1e9:
            log.append_batch(TOPIC, given)
            count += BATCH
        wal_bytes = log.stats().wal.counters.bytes
    took = []
    for _ in range(options.rounds):
        started = time.perf_counter()
        log = lakebed.open(folder, config)
        took.append(time.perf_counter() - started)
        found = records_in(log)
        assert found == count, f"{found} of {count} records were recovered"
        assert log.read(TOPIC, 0, "earliest").num_rows
        log.close()
    work = f"recovery of {options.recovery_gb:g} GB of WAL, 10,000 x 100 B per entry"
    rows.figure(work, "records per second", [count / each for each in took], "/s", 5_000_000)
    rows.figure(work, "GB per second", [wal_bytes / each / 1e9 for each in took], "GB/s")


def many_segments(options: argparse.Namespace, rows: Rows) -> None:
    """Open a log with 10,000 partitions and 100,000 segments, in a process of its own."""
    folder = options.folder / "many-segments"
    _build_many_segments(folder)
    found = [child("open", str(folder)) for _ in range(options.rounds)]
    assert all(each["segments"] == TOPICS * PARTITIONS * SEGMENTS for each in found), found
    assert all(each["quarantined"] == 0 for each in found), found
    work = "opening 10,000 partitions and 100,000 segments"
    seconds = [each["seconds"] for each in found]
    rows.figure(work, "seconds", seconds, "s", 2, at_most=True)
    peaks = [each["peak_mib"] for each in found]
    rows.figure(work, "peak resident memory of the process", peaks, "MiB", 300, at_most=True)


def _build_many_segments(folder: Path) -> None:
    """Make a log whose snapshot names many segments, each a link to the same small one."""
    with lakebed.open(folder, settings()) as log:
        for number in range(TOPICS):
            log.create_topic(f"topic-{number}", partitions=PARTITIONS)
            log.append(f"topic-{number}", b"x", partition=0)
        log.checkpoint()
        log.checkpoint()
    disk = OsDisk()
    snapshots = SnapshotFolder(disk, folder)
    index = snapshots.indexes()[-1]
    state = decode_state(snapshots.load(index), snapshots.path(index))
    following = state.numbers["segment"]
    for topic in sorted(state.topics):
        segment = state.partitions[(topic, 0)].segments[0]
        lake = folder / "lake" / str(topic)
        real = lake / f"0-{segment.id:020d}.parquet"
        for number in range(PARTITIONS):
            made = _segments(segment, following)
            following += SEGMENTS
            for each in made:
                os.link(real, lake / f"{number}-{each.id:020d}.parquet")
            state.partitions[(topic, number)] = Partition(0, SEGMENTS, SEGMENTS, made)
        real.unlink()
    state.numbers["segment"] = following
    snapshots.remove_all_but()
    snapshots.write(index, encode_state(state))


def _segments(like: Segment, first: int) -> tuple[Segment, ...]:
    return tuple(
        like._replace(id=first + number, base=number, end=number + 1) for number in range(SEGMENTS)
    )


def checkpoint_latency(options: argparse.Namespace, rows: Rows) -> None:
    """Append single records while a memtable of 100 MB is checkpointed, and while nothing is."""
    log = warm_log(options.folder / "latency", 4)
    given = table()
    quiet, busy = [], []
    for _ in range(options.rounds):
        rate(lambda: log.append_batch(TOPIC, given), 90)
        quiet.append(_p99(_timed_appends(log, _after(1.0))))
        running = threading.Thread(target=log.checkpoint)
        running.start()
        busy.append(_p99(_timed_appends(log, _ended(running))))
        running.join()
        settle(log)
    log.close()
    work = "append of one record while 100 MB are checkpointed"
    rows.figure("append of one record, no checkpoint", "p99, µs", quiet, "µs")
    rows.figure(work, "p99, µs", busy, "µs")
    rows.ratio(work, busy, quiet, "p99 without a checkpoint", 5, at_most=True)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end


def _ended(thread: threading.Thread) -> Callable[[], bool]:
    return lambda: not thread.is_alive()


def _timed_appends(log: lakebed.Log, done: Callable[[], bool]) -> list[float]:
    took = []
    while not done():
        started = time.perf_counter()
        log.append(TOPIC, b"x" * 100)
        took.append(time.perf_counter() - started)
    return took


def _p99(took: list[float]) -> float:
    return float(np.percentile(took, 99)) * 1e6


def ingest(options: argparse.Namespace, rows: Rows) -> None:
    """Write much more than memory may hold, in a process of its own."""
    folder = options.folder / "ingest"
    found = child("ingest", str(folder), str(options.ingest_gb))
    shutil.rmtree(folder)
    work = f"ingesting {options.ingest_gb:g} GB, memtable budget 128 MB"
    peak = [found["peak_mib"]]
    rows.figure(work, "peak resident memory of the process", peak, "MiB", 600, at_most=True)
    rows.figure(work, "MB of records per second", [found["mb_per_second"]], "MB/s")
    rows.figure(work, "share of the time that writers waited", [found["waited"]], "")


def child(*arguments: str) -> dict[str, float]:
    """Run `bench.child` and return what it found."""
    command = [sys.executable, "-m", "bench.child", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found
