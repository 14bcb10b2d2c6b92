"""Lakebed and what a user would pick instead, doing the same work in one run.

Run with `make compare`, or `python -m bench.compare [workloads]`. Results go to
`bench/results/compare.json`; a whole run at full scale also writes docs/comparison.md and its
charts. A peer that is not installed is left out, and the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.compare_page import PAGE, cells, headings, publish, publish_summary
from bench.compare_results import Found, Results
from bench.compare_tables import FRESHNESS
from bench.compare_updates import UPDATES
from bench.compare_work import SCALES, Plan, Workload, run, steps
from bench.compare_writing import DURABLE_WRITES, FAN_IN, REPLAY, TAIL_LATENCY
from bench.report import RESULTS, machine, own_folder
from lakebed.version import __version__

WORKLOADS = {
    each.name: each for each in (DURABLE_WRITES, FAN_IN, TAIL_LATENCY, REPLAY, FRESHNESS, UPDATES)
}
_PACKAGES = {
    "pyarrow": "pyarrow",
    "rocksdict": "rocksdict",
    "lmdb": "lmdb",
    "redis-py": "redis",
    "nats-py": "nats-py",
    "pika": "pika",
    "pyiceberg": "pyiceberg",
    "deltalake": "deltalake",
    "DuckDB": "duckdb",
    "Spark": "pyspark",
}
_PROGRAMS = {
    "Redis": ("redis-server", "--version"),
    "NATS": ("nats-server", "--version"),
    "RabbitMQ": ("dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all workloads, or those named; keep, show and publish what they found."""
    options = _options(arguments)
    chosen = [WORKLOADS[each] for each in options.names or WORKLOADS]
    peers = frozenset(options.peers) if options.peers is not None else None
    plan = Plan(SCALES[options.scale], options.rounds, peers)
    folder = options.dir / "lakebed-bench-compare"
    with _ended_in_order(), own_folder(folder):
        found = _measured(chosen, folder, plan)
        results = Results(machine(folder), _versions(), options.scale, options.rounds, found)
    results.save(options.json)
    _show(results)
    if options.publish:
        publish(results, options.page)
        if options.page == PAGE:
            publish_summary(results)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", choices=tuple(SCALES), default="full")
    parser.add_argument(
        "--peers", action="append", metavar="NAME", help="only this one beside Lakebed; repeatable"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(".bench-data"), help="a folder on the disk to measure"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "compare.json")
    parser.add_argument("--page", type=Path, default=PAGE, help="to put tables and charts into")
    parser.add_argument(
        "--publish",
        action=argparse.BooleanOptionalAction,
        help="write the page; default: after a whole run at full scale with every peer asked for",
    )
    options = parser.parse_args(arguments)
    if unknown := [each for each in options.names if each not in WORKLOADS]:
        parser.error(f"there is no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    names = {entry.name for workload in WORKLOADS.values() for entry in workload.entries}
    if unknown := [each for each in options.peers or [] if each not in names]:
        parser.error(f"there is no peer {unknown[0]!r}; there are {', '.join(sorted(names))}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.publish is None:
        options.publish = not options.names and not options.peers and options.scale == "full"
    return options


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Have SIGTERM do what Ctrl-C does: what was started is stopped on the way out."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measured(chosen: Sequence[Workload], folder: Path, plan: Plan) -> list[Found]:
    columns = (
        TextColumn("{task.description}", justify="left"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    found, total = [], sum(steps(each, plan.rounds) for each in chosen)
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("comparing", total=total)

        def step(text: str) -> None:
            progress.update(task, description=text, advance=1)

        for number, workload in enumerate(chosen):
            place = folder / workload.name
            found.append(run(workload, place, plan, step))
            shutil.rmtree(place, ignore_errors=True)  # the next one needs the space
            done = sum(steps(each, plan.rounds) for each in chosen[: number + 1])
            progress.update(task, completed=done)
    return found


def _versions() -> dict[str, str]:
    """Return the versions of everything that is installed."""
    found = {"Lakebed": __version__, "SQLite": sqlite3.sqlite_version}
    for name, package in _PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    for name, command in _PROGRAMS.items():
        if shutil.which(command[0]):
            said = subprocess.run(command, capture_output=True, text=True).stdout
            if number := re.search(r"\d+\.\d+\.\d+", said):
                found[name] = number[0]
    return found


def _show(results: Results) -> None:
    console = Console(width=180)
    for found in results.workloads:
        table = Table(*headings(found), title=found.title)
        for line in found.lines:
            table.add_row(*(each.replace("*", "") for each in cells(found, line, set())))
        console.print(table)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted: what was started is stopped, nothing is written") from None
