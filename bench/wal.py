"""Benchmarks of the write-ahead log, as ratios to the disk and to peers measured in the same run.

Run with `make bench`. Every round measures each thing once, one after the other, so that a slow
moment of the machine touches all of them; a ratio is the median over the rounds of the ratios
within a round. Results go to `bench/results/wal.json`, and the table to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.peers import RECORD_BYTES, Lmdb, Raw, Rocks, Sqlite, rate
from lakebed.host import OsDisk
from lakebed.wal import Wal, WalConfig
from lakebed.wal.folder import Layout
from lakebed.wal.recovery import survey

MIB = 1 << 20
GIB = 1 << 30
BATCH = 1000


@dataclass
class Row:
    """One line of the table."""

    work: str
    measured: str
    value: float
    target: float | None = None
    unit: str = "x"
    rounds: list[float] = field(default_factory=list)

    @property
    def reached(self) -> str:
        """Say whether the target was reached."""
        if self.target is None:
            return ""
        return "yes" if self.value >= self.target else "no"


class Bench:
    """Runs the benchmarks in a folder of its own on the disk to measure."""

    def __init__(self, folder: Path, rounds: int, history_gib: int) -> None:
        self.folder = folder
        self.rounds = rounds
        self.history_gib = history_gib
        self.rows: list[Row] = []

    def ratio(
        self, work: str, ours: list[float], theirs: list[float], name: str, target: float | None
    ) -> None:
        """Add a ratio, round by round."""
        rounds = [mine / peer for mine, peer in zip(ours, theirs, strict=True)]
        self.rows.append(Row(work, f"÷ {name}", statistics.median(rounds), target, "x", rounds))

    def figure(
        self, work: str, measured: str, rounds: list[float], unit: str, target: float | None = None
    ) -> None:
        """Add a plain figure."""
        self.rows.append(Row(work, measured, statistics.median(rounds), target, unit, rounds))

    def warm_log(self, name: str) -> Wal:
        """Open a log in its steady state: released files are there to be recycled."""
        log = Wal.open(self.folder / name, WalConfig())
        for _ in range(3):
            for _ in range(160):
                log.append(bytes(MIB))
            log.release(log.last_index)
        return log

    def one_writer(self) -> None:
        """One writer, batches of 1000 records of 100 bytes, each durable."""
        work, count = "one writer, 1000 x 100 B per append", 200
        records = [os.urandom(RECORD_BYTES) for _ in range(BATCH)]
        buffers = [each for each in pa.array(records, pa.binary()).buffers() if each is not None]
        data = b"".join(bytes(memoryview(each)) for each in buffers)
        log = self.warm_log("one")
        raw_filled = Raw(self.folder / "filled", 256 * MIB, filled=True)
        raw_growing = Raw(self.folder / "growing", 0, filled=False)
        peers: dict[str, Sqlite | Rocks | Lmdb] = {
            "SQLite": Sqlite(self.folder),
            "RocksDB": Rocks(self.folder),
            "LMDB": Lmdb(self.folder),
        }
        rates: dict[str, list[float]] = {}
        for _ in range(self.rounds):
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
        self.figure(work, "records per second", [each * BATCH for each in rates["ours"]], "/s")
        self.ratio(work, rates["ours"], rates["growing"], "raw write+fdatasync, growing file", 1.0)
        self.ratio(
            work, rates["ours"], rates["filled"], "raw write+fdatasync, zero-filled file", 0.8
        )
        self.ratio(work, rates["ours"], rates["RocksDB"], "RocksDB", 1.5)
        self.ratio(work, rates["ours"], rates["LMDB"], "LMDB", None)
        self.ratio(work, rates["ours"], rates["SQLite"], "SQLite", None)

    def many_writers(self) -> None:
        """Threads that append one small entry at a time, each durable."""
        data = os.urandom(RECORD_BYTES)
        log = self.warm_log("many")
        filled = Raw(self.folder / "single-filled", 64 * MIB, filled=True)
        growing = Raw(self.folder / "single-growing", 0, filled=False)

        def measure(work: str, target: float | None, call: Callable[[], float]) -> None:
            ours, naive, real = [], [], []
            for _ in range(self.rounds):
                naive.append(rate(lambda: growing.append(data), 1000))
                real.append(rate(lambda: filled.append(data), 1000))
                ours.append(call())
                log.release(log.last_index)
            self.figure(work, "entries per second", ours, "/s")
            self.ratio(work, ours, naive, "raw single synced writes, growing file", target)
            self.ratio(work, ours, real, "raw single synced writes, zero-filled file", None)

        for threads, target in ((1, None), (8, 3.0), (64, 15.0)):
            work = f"{threads} thread{'s'[: threads - 1]}, one 100 B entry per append"
            measure(work, target, partial(_from_threads, log, threads, data, 1.5))
        with _one_core():
            work = "64 threads on one core, one 100 B entry per append"
            measure(work, None, partial(_from_threads, log, 64, data, 1.5))
        work = "1 thread, append_async, 100 B entries"
        measure(work, None, partial(_asynchronously, log, data, 30_000))
        work = "1 thread, append_many of 1000, 100 B entries"
        measure(work, None, lambda: 1000 * rate(lambda: log.append_many([data] * 1000), 30))
        log.close()
        filled.close()
        growing.close()

    def large_entries(self) -> None:
        """One entry of 8 MB at a time."""
        work, data, count = "one 8 MB entry per append", os.urandom(8 * MIB), 24
        log = self.warm_log("large")
        filled = Raw(self.folder / "large-filled", 256 * MIB, filled=True)
        ours, filled_rates, growing_rates = [], [], []
        for _ in range(self.rounds):
            recycled = []
            for _ in range(count // 6):
                recycled.append(rate(lambda: log.append(data), 6))
                log.release(log.last_index)
            ours.append(statistics.harmonic_mean(recycled))
            filled_rates.append(rate(lambda: filled.append(data), count))
            growing = Raw(self.folder / "large-growing", 0, filled=False)
            growing_rates.append(rate(partial(growing.append, data), count))
            growing.close()
        log.close()
        filled.close()
        self.figure(work, "MB per second", [each * 8.388608 for each in ours], "MB/s")
        self.ratio(work, ours, filled_rates, "raw write+fdatasync, zero-filled file", 0.9)
        self.ratio(work, ours, growing_rates, "raw write+fdatasync, growing file", 0.9)

    def recovery(self) -> None:
        """Scan with full verification, large frames and small ones."""
        for name, size, count in (
            ("1 MB frames", MIB, 1024),
            ("100 B frames", RECORD_BYTES, 1_000_000),
        ):
            folder = self.folder / f"scan-{size}"
            data = os.urandom(size)
            with Wal.open(folder) as log:
                for start in range(0, count, 4096):
                    log.append_many([data] * min(4096, count - start))
            seconds = []
            for _ in range(self.rounds):
                started = time.perf_counter()
                found = survey(OsDisk(), Layout(folder))
                seconds.append(time.perf_counter() - started)
                assert found.state.last_index == count
            shutil.rmtree(folder)
            work = f"recovery scan, {name}"
            if size == MIB:
                self.figure(
                    work,
                    "GB per second",
                    [count * size / each / 1e9 for each in seconds],
                    "GB/s",
                    1.0,
                )
            else:
                self.figure(
                    work, "frames per second", [count / each for each in seconds], "/s", 300_000
                )

    def history(self) -> None:
        """Compare the cost of an append, and the memory, at 1 GiB and at 50 GiB of log."""
        log = self.warm_log("history")
        small, large = os.urandom(100_000), bytes(8 * MIB)
        cost: dict[int, list[float]] = {}
        memory = {}
        written = 0
        for gib in (1, self.history_gib):
            while written < gib * GIB:
                log.append(large)
                written += len(large)
                if written % (512 * MIB) == 0:
                    log.release(log.last_index)
            cost[gib] = [1e6 / rate(lambda: log.append(small), 100) for _ in range(self.rounds)]
            memory[gib] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        log.close()
        work = f"append of 100 kB after {self.history_gib} GiB of log"
        self.figure("append of 100 kB after 1 GiB of log", "µs", cost[1], "µs")
        self.figure(work, "µs", cost[self.history_gib], "µs")
        self.ratio(work, cost[self.history_gib], cost[1], "cost after 1 GiB", None)
        grown = [memory[self.history_gib] - memory[1]]
        self.figure(work, "memory grown since 1 GiB", grown, "MiB")


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process on one core: waking a thread is then no message to another one."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _from_threads(log: Wal, threads: int, data: bytes, seconds: float) -> float:
    counts = [0] * threads
    stop = threading.Event()

    def run(slot: int) -> None:
        count = 0
        while not stop.is_set():
            log.append(data)
            count += 1
        counts[slot] = count

    workers = [threading.Thread(target=run, args=(slot,)) for slot in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - started)


def _asynchronously(log: Wal, data: bytes, count: int) -> float:
    started = time.perf_counter()
    futures = [log.append_async(data) for _ in range(count)]
    for future in futures:
        future.result()
    return count / (time.perf_counter() - started)


def _show(rows: list[Row], console: Console) -> None:
    table = Table("work", "measured", "median", "range", "target", "reached")
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)


def _markdown(rows: list[Row]) -> str:
    lines = ["| work | measured | median | range | target | reached |", "|---|---|---|---|---|---|"]
    for row in rows:
        lines.append("| " + " | ".join(_cells(row)) + " |")
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    digits = 2 if row.value < 100 else 0
    return [
        row.work,
        row.measured,
        f"{row.value:,.{digits}f} {row.unit}",
        f"{min(row.rounds):,.{digits}f} to {max(row.rounds):,.{digits}f}",
        "" if row.target is None else f"≥ {row.target:,g}",
        row.reached,
    ]


def _publish(rows: list[Row], page: Path) -> None:
    """Put the table into the page, between its two marks."""
    before, _, rest = page.read_text(encoding="utf8").partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end of table -->\n")
    text = f"{before}<!-- table -->\n{_markdown(rows)}<!-- end of table -->\n{after}"
    page.write_text(text, encoding="utf8")


def _machine(folder: Path) -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "pyarrow": pa.__version__,
        "free_gib": shutil.disk_usage(folder).free // GIB,
    }


def main() -> None:
    """Run all benchmarks, or those named."""
    names = ("one_writer", "many_writers", "large_entries", "recovery", "history")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--dir", type=Path, default=Path(".bench-data"), help="a folder on the disk to measure"
    )
    parser.add_argument("--history-gib", type=int, default=50)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "wal.json")
    options = parser.parse_args()
    shutil.rmtree(options.dir, ignore_errors=True)
    options.dir.mkdir(parents=True)
    console = Console(width=160)
    bench = Bench(options.dir, options.rounds, options.history_gib)
    chosen = options.names or names
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("measuring", total=len(chosen))
            for name in chosen:
                progress.update(task, description=name.replace("_", " "))
                getattr(bench, name)()
                progress.advance(task)
        machine = _machine(options.dir)
    finally:
        shutil.rmtree(options.dir, ignore_errors=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine, "rows": [asdict(row) for row in bench.rows]}
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    if not options.names:
        _publish(bench.rows, Path(__file__).parents[1] / "docs" / "benchmarks.md")
    _show(bench.rows, console)


if __name__ == "__main__":
    main()
