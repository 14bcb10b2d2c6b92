"""Benchmarks of the write-ahead log, as ratios to the disk and to peers measured in the same run.

Run with `make bench`, or `python -m bench.wal [names]`. Results go to `bench/results/wal.json`, to
docs/benchmarks.md after a whole run, and to standard output.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench.load import asynchronously, from_threads, memory_mib, one_core, rate
from bench.peers import RECORD_BYTES, Lmdb, Peer, Raw, Rocks, Sqlite
from bench.report import GIB, MIB, Rows, run
from lakebed.host import OsDisk
from lakebed.wal import Wal, WalConfig
from lakebed.wal.folder import Layout
from lakebed.wal.recovery import survey

BATCH = 1000


def warm_wal(folder: Path) -> Wal:
    """Open a WAL in its steady state: released files are there to be recycled."""
    wal = Wal.open(folder, WalConfig())
    for _ in range(3):
        for _ in range(160):
            wal.append(bytes(MIB))
        wal.release(wal.last_index)
    return wal


def one_writer(options: argparse.Namespace, rows: Rows) -> None:
    """One writer, batches of 1000 records of 100 bytes, each durable."""
    work, count = "one writer, 1000 x 100 B per append", 200
    records = [os.urandom(RECORD_BYTES) for _ in range(BATCH)]
    buffers = [each for each in pa.array(records, pa.binary()).buffers() if each is not None]
    data = b"".join(bytes(memoryview(each)) for each in buffers)
    log = warm_wal(options.folder / "one")
    raw_filled = Raw(options.folder / "filled", 256 * MIB, filled=True)
    raw_growing = Raw(options.folder / "growing", 0, filled=False)
    peers: dict[str, Peer] = {
        "SQLite": Sqlite(options.folder),
        "RocksDB": Rocks(options.folder),
        "LMDB": Lmdb(options.folder),
    }
    rates: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        rates.setdefault("ours", []).append(rate(lambda: log.append(buffers), count))
        log.release(log.last_index)
        rates.setdefault("filled", []).append(rate(lambda: raw_filled.append(data), count))
        rates.setdefault("growing", []).append(rate(lambda: raw_growing.append(data), count))
        for name, peer in peers.items():
            rates.setdefault(name, []).append(rate(partial(peer.append, records), count // 4))
    log.close()
    raw_filled.close()
    raw_growing.close()
    for peer in peers.values():
        peer.close()
    rows.figure(work, "records per second", [each * BATCH for each in rates["ours"]], "/s")
    rows.ratio(work, rates["ours"], rates["growing"], "raw write+fdatasync, growing file", 1.0)
    rows.ratio(work, rates["ours"], rates["filled"], "raw write+fdatasync, zero-filled file", 0.8)
    rows.ratio(work, rates["ours"], rates["RocksDB"], "RocksDB", 1.5)
    rows.ratio(work, rates["ours"], rates["LMDB"], "LMDB")
    rows.ratio(work, rates["ours"], rates["SQLite"], "SQLite")


def many_writers(options: argparse.Namespace, rows: Rows) -> None:
    """Threads that append one small entry at a time, each durable."""
    data = os.urandom(RECORD_BYTES)
    log = warm_wal(options.folder / "many")
    filled = Raw(options.folder / "single-filled", 64 * MIB, filled=True)
    growing = Raw(options.folder / "single-growing", 0, filled=False)

    def measure(work: str, target: float | None, call: Callable[[], float]) -> None:
        ours, naive, real = [], [], []
        for _ in range(options.rounds):
            naive.append(rate(lambda: growing.append(data), 1000))
            real.append(rate(lambda: filled.append(data), 1000))
            ours.append(call())
            log.release(log.last_index)
        rows.figure(work, "entries per second", ours, "/s")
        rows.ratio(work, ours, naive, "raw single synced writes, growing file", target)
        rows.ratio(work, ours, real, "raw single synced writes, zero-filled file")

    for threads, target in ((1, None), (8, 3.0), (64, 15.0)):
        work = f"{threads} thread{'s'[: threads - 1]}, one 100 B entry per append"
        measure(work, target, partial(from_threads, lambda: log.append(data), threads, 1.5))
    with one_core():
        work = "64 threads on one core, one 100 B entry per append"
        measure(work, None, partial(from_threads, lambda: log.append(data), 64, 1.5))
    work = "1 thread, append_async, 100 B entries"
    measure(work, None, partial(asynchronously, lambda: log.append_async(data), 30_000))
    work = "1 thread, append_many of 1000, 100 B entries"
    measure(work, None, lambda: 1000 * rate(lambda: log.append_many([data] * 1000), 30))
    log.close()
    filled.close()
    growing.close()


def large_entries(options: argparse.Namespace, rows: Rows) -> None:
    """One entry of 8 MB at a time."""
    work, data, count = "one 8 MB entry per append", os.urandom(8 * MIB), 24
    log = warm_wal(options.folder / "large")
    filled = Raw(options.folder / "large-filled", 256 * MIB, filled=True)
    ours, filled_rates, growing_rates = [], [], []
    for _ in range(options.rounds):
        recycled = []
        for _ in range(count // 6):
            recycled.append(rate(lambda: log.append(data), 6))
            log.release(log.last_index)
        ours.append(statistics.harmonic_mean(recycled))
        filled_rates.append(rate(lambda: filled.append(data), count))
        growing = Raw(options.folder / "large-growing", 0, filled=False)
        growing_rates.append(rate(partial(growing.append, data), count))
        growing.close()
    log.close()
    filled.close()
    rows.figure(work, "MB per second", [each * 8.388608 for each in ours], "MB/s")
    rows.ratio(work, ours, filled_rates, "raw write+fdatasync, zero-filled file", 0.9)
    rows.ratio(work, ours, growing_rates, "raw write+fdatasync, growing file", 0.9)


def recovery(options: argparse.Namespace, rows: Rows) -> None:
    """Scan with full verification, large frames and small ones."""
    for name, size, count in (
        ("1 MB frames", MIB, 1024),
        ("100 B frames", RECORD_BYTES, 1_000_000),
    ):
        folder = options.folder / f"scan-{size}"
        data = os.urandom(size)
        with Wal.open(folder) as log:
            for start in range(0, count, 4096):
                log.append_many([data] * min(4096, count - start))
        took = []
        for _ in range(options.rounds):
            started = time.perf_counter()
            found = survey(OsDisk(), Layout(folder))
            took.append(time.perf_counter() - started)
            assert found.state.last_index == count
        shutil.rmtree(folder)
        work = f"recovery scan, {name}"
        if size == MIB:
            rows.figure(
                work,
                "GB per second",
                [count * size / each / 1e9 for each in took],
                "GB/s",
                1.0,
            )
        else:
            rows.figure(work, "frames per second", [count / each for each in took], "/s", 300_000)


def history(options: argparse.Namespace, rows: Rows) -> None:
    """Compare the cost of an append, and the memory, at 1 GiB and at 50 GiB of log."""
    log = warm_wal(options.folder / "history")
    small, large = os.urandom(100_000), bytes(8 * MIB)
    cost: dict[int, list[float]] = {}
    memory = {}
    written = 0
    for gib in (1, options.history_gib):
        while written < gib * GIB:
            log.append(large)
            written += len(large)
            if written % (512 * MIB) == 0:
                log.release(log.last_index)
        cost[gib] = [1e6 / rate(lambda: log.append(small), 100) for _ in range(options.rounds)]
        memory[gib] = memory_mib("VmRSS")
    log.close()
    work = f"append of 100 kB after {options.history_gib} GiB of log"
    rows.figure("append of 100 kB after 1 GiB of log", "µs", cost[1], "µs")
    rows.figure(work, "µs", cost[options.history_gib], "µs")
    rows.ratio(work, cost[options.history_gib], cost[1], "cost after 1 GiB")
    grown = [memory[options.history_gib] - memory[1]]
    rows.figure(work, "memory grown since 1 GiB", grown, "MiB")


def main() -> None:
    """Run all benchmarks of the WAL, or those named."""
    measures = (one_writer, many_writers, large_entries, recovery, history)
    run(
        "wal",
        {each.__name__: each for each in measures},
        about=__doc__,
        add_options=lambda parser: parser.add_argument("--history-gib", type=int, default=50),
        rounds=7,
    )


if __name__ == "__main__":
    main()
