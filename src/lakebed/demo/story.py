"""The steps of the demonstration, in order, run by real processes.

sell       a writer appends orders to the log, is killed and restarted
check      every record is compared with what the writer sent
derive     a Spark pipeline derives a topic and a table, is killed and restarted
compact    Spark finds the latest record of each key; the log keeps only those
ask        DuckDB queries the tables
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import lakebed
from lakebed.demo import asking, comparing, pipeline
from lakebed.demo.children import TEMPORARY, Child
from lakebed.demo.measures import (
    Compaction,
    MeasuredAck,
    MeasuredFlow,
    Measures,
    Sale,
    Sizes,
    Syncs,
)
from lakebed.demo.orders import Expected
from lakebed.demo.writer import TOPIC
from lakebed.errors import InvalidArgumentError, translate_os_errors
from lakebed.spark.serving import url_of

CHECKOUTS: Final = 8
PARTITIONS: Final = 4

_BATCHES: Final = 3
"""Batches that the pipeline has for all of it, so that it can be killed in between."""
_FLOWS: Final = ("paid", "now")
"""The flows of the pipeline that read every order."""
_MARK: Final = ".lakebed-demo"
"""Marks a folder as one that the demonstration may replace."""


class Teller(Protocol):
    """Reports the steps while they run."""

    def act(self, text: str) -> None:
        """Report the step that begins."""

    def fact(self, text: str) -> None:
        """Report a result."""

    def far(self, doing: str, done: int, total: int) -> None:
        """Report the progress of a step."""

    def busy(self, doing: str) -> None:
        """Report work whose progress is unknown."""


class Story:
    """One run, in its own folder."""

    def __init__(self, folder: Path, records: int, teller: Teller) -> None:
        changes = records // CHECKOUTS
        self.folder = folder
        self._log_folder = folder / "log"
        self._expected = Expected(CHECKOUTS, changes)
        self._changes = changes
        self._act, self._say = teller.act, teller.fact
        self._meter, self._busy = teller.far, teller.busy
        self._begun = time.monotonic()
        started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        self.measures = Measures(started, Sale(self._expected.changes, CHECKOUTS))

    def run(self) -> Measures:
        """Run all steps."""
        with lakebed.open(self._log_folder) as log:
            log.create_topic(TOPIC, partitions=PARTITIONS)
        self._sell()
        with lakebed.open(self._log_folder) as log:
            self._check(log)
            self._derive(log)
            self._compact(log)
            self._ask(log)
        self.measures.seconds = self._now()
        return self.measures

    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _since(self, nanoseconds: str) -> float:
        """Return a time that a child reported, in seconds since the start of the run."""
        return int(nanoseconds) / 1e9 - self._begun

    # The writer

    def _sell(self) -> None:
        sale = self.measures.sale
        self._act(
            f"A writer appends {sale.records:,} orders, corrections and deletions to "
            f"{self._log_folder} from {CHECKOUTS} threads."
        )
        self._run_writer(kill_at=sale.records // 2)
        sale.acknowledged_before = sale.acknowledged
        self._say(
            f"killed (SIGKILL) after {sale.acknowledged:,} acknowledged records; restarted"
            if sale.killed_at is not None
            else "ended before it could be killed; restarted"
        )
        self._run_writer(kill_at=None)
        sale.unacknowledged = sale.records - sale.acknowledged
        latency = sale.latencies_ms()
        self._say(
            f"recovered in {sale.opening_ms:.0f} ms: {sale.replayed_entries:,} entries replayed; "
            f"{sale.unacknowledged:,} records on disk that the writer had not been told about"
        )
        self._say(
            f"append latency p50 {latency[50]:.1f} ms, p99 {latency[99]:.1f} ms; "
            f"{sale.entries_per_sync():.1f} entries per fdatasync"
        )

    def _run_writer(self, *, kill_at: int | None) -> None:
        """Run the writer to its end, or until `kill_at` records are acknowledged."""
        sale, syncs, first = self.measures.sale, list[Syncs](), not self.measures.sale.syncs
        sale.syncs.append(syncs)

        def hear(child: Child, line: str) -> None:
            word, *numbers = line.split()
            if word == "ack":
                _, _, records, time_ns, took = numbers
                sale.acknowledge(MeasuredAck(self._since(time_ns), int(records), int(took) / 1e6))
                if kill_at is not None and sale.acknowledged >= kill_at:
                    child.kill()
            elif word == "stats":
                time_ns, entries, done, _ = numbers
                syncs.append(Syncs(self._since(time_ns), int(entries), int(done)))
            elif not first:
                time_ns, took, replayed = numbers
                sale.reopened_at, sale.opening_ms = self._since(time_ns), int(took) / 1e6
                sale.replayed_entries = int(replayed)

        arguments = [str(self._log_folder), str(CHECKOUTS), str(self._changes)]
        child = Child("lakebed.demo.writer", arguments, self.folder, hear)
        with child:
            child.wait(lambda: self._meter("writing", sale.acknowledged, sale.records))
        if child.was_killed and child.killed_at is not None:
            sale.killed_at = child.killed_at - self._begun

    def _check(self, log: lakebed.Log) -> None:
        self._act("Every record is read back and compared with what the writer sent.")
        done, total = 0, self._expected.changes

        def report_progress(records: int) -> None:
            nonlocal done
            done += records
            self._meter("comparing", done, total)

        comparison = comparing.compare_orders(log, TOPIC, self._expected, report_progress)
        self.measures.check = comparison
        self._say(
            f"{comparison.expected:,} records expected, {comparison.found:,} found, "
            f"{comparison.missing:,} missing, {comparison.wrong:,} changed, moved or duplicated"
        )
        self._measure("written")
        log.checkpoint()
        self._measure("checkpoint")

    # The pipeline

    def _derive(self, log: lakebed.Log) -> None:
        file = self.folder / pipeline.NAME
        file.write_text(pipeline.text(-(-self._expected.changes // _BATCHES)), encoding="utf8")
        self._act(
            f"A Spark pipeline ({file}) derives the topic {pipeline.PAID} and the table "
            f"{pipeline.TABLE}."
        )
        piping, begun = self.measures.piping, self._now()
        self._pipeline(file, url_of(log), kill=True)
        self._say(
            "killed (SIGKILL) with its JVM after the first batches; restarted"
            if piping.killed_at is not None
            else "ended before it could be killed; restarted"
        )
        self._pipeline(file, url_of(log), kill=False)
        piping.seconds = self._now() - begun
        self._busy("comparing")
        piping.paid = comparing.compare_paid(log, pipeline.PAID, self._expected)
        piping.dead = comparing.compare_dead(log, pipeline.DEAD, self._expected)
        piping.table = comparing.compare_table(asking.rows(log, pipeline.TABLE), self._expected)
        for name, comparison in (
            (f"topic {pipeline.PAID}", piping.paid),
            (f"topic {pipeline.DEAD}, invalid amounts", piping.dead),
            (f"table {pipeline.TABLE}, current state", piping.table),
        ):
            self._say(
                f"{name}: {comparison.expected:,} expected, {comparison.found:,} found, "
                f"{comparison.missing:,} missing, {comparison.wrong:,} wrong or duplicated"
            )
        log.checkpoint()
        log.lake.sync()
        self._measure("pipeline")

    def _pipeline(self, file: Path, url: str, *, kill: bool) -> None:
        """Run the pipeline over all there is, or until it has done a batch of each flow."""
        piping, read = self.measures.piping, dict[str, int]()

        def hear(child: Child, line: str) -> None:
            status = json.loads(line)
            if status["type"] != "flow":
                return
            read[status["flow"]] = status["rows"]
            piping.flows.append(MeasuredFlow(self._now(), status["flow"], status["rows"]))
            if kill and all(read.get(name) for name in _FLOWS):
                child.kill()

        def report_progress() -> None:
            done = min(read.get(flow, 0) for flow in _FLOWS)
            if done:
                self._meter("pipeline", done, self._expected.changes)
            else:
                self._busy("starting Spark, and the pipeline")

        arguments = ["pipeline", "run", str(file), "--data", url, "--available-now", "--json"]
        child = Child("lakebed.cli", arguments, self.folder, hear)
        with child:
            child.wait(report_progress)
        if child.was_killed and child.killed_at is not None:
            piping.killed_at = child.killed_at - self._begun

    # The topic, and its tables

    def _compact(self, log: lakebed.Log) -> None:
        self._act(f"The topic {TOPIC} is compacted: only the latest record of each key is kept.")
        before, begun = _records(log), self._now()
        log.alter_topic(TOPIC, config={"cleanup": "compact"})
        arguments = ["job", "compact", TOPIC, "--data", url_of(log), "--force", "--json"]
        with Child("lakebed.cli", arguments, self.folder, _heedless) as child:
            child.wait(lambda: self._busy("starting Spark, and compacting"))
        after, expected = _records(log), len(self._expected.orders)
        self.measures.compaction = Compaction(before, after, expected, self._now() - begun)
        log.lake.sync()
        self._measure("compaction")
        log.lake.gc(now=True)
        self._measure("old files removed")
        sizes = self.measures.sizes
        self._say(
            f"{before:,} records before, {after:,} after ({expected:,} expected); segments "
            f"{sizes[-2].segments / 2**20:.1f} MiB, {sizes[-1].segments / 2**20:.1f} MiB after "
            "old table snapshots are removed"
        )

    def _ask(self, log: lakebed.Log) -> None:
        self._act("DuckDB queries the Iceberg tables.")
        self.measures.queries = asking.ask(log, self.folder, self._expected)
        for query in self.measures.queries:
            answer = "matches" if query.is_right else "DOES NOT MATCH"
            self._say(f"{query.name}: {answer}, {query.seconds * 1000:.0f} ms")

    def _measure(self, act: str) -> None:
        """Note how large the log's parts are."""
        wal, lake, *tables = (
            _size(self._log_folder / name) for name in ("wal", "lake", "iceberg", "derived")
        )
        self.measures.sizes.append(Sizes(act, wal, lake, sum(tables)))


def _records(log: lakebed.Log) -> int:
    """Count the records of the topic: offsets would count those too that are compacted away."""
    return sum(batch.num_rows for batch in log.table(TOPIC).scan(["offset"]))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _heedless(_: Child, __: str) -> None:
    """Ignore what the process writes."""


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[None]:
    """Make room for a run: one that does not end leaves nothing, but the earlier one is back."""
    earlier = folder.with_name(f"{folder.name}.earlier")
    with translate_os_errors("making the folder", folder):
        _check(folder)
        shutil.rmtree(earlier, ignore_errors=True)
        if folder.exists():
            folder.rename(earlier)
        folder.mkdir(parents=True)
        (folder / _MARK).touch()
    try:
        yield
        shutil.rmtree(folder / TEMPORARY, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if earlier.exists():
            earlier.rename(folder)
        raise


def _check(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InvalidArgumentError("--folder is not a directory; name another one", folder=folder)
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise InvalidArgumentError(
            "the folder is not empty and not from an earlier demo; name another one",
            folder=folder,
        )
