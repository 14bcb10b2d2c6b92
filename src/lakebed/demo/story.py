"""The acts of the demonstration, in their order; each does its part with real processes.

sell       a till writes to the log, is killed, is started again
check      every record is compared with what the till meant to write
derive     a Spark pipeline makes a topic and a table of it, is killed, is started again
compact    Spark finds the last change of each order, the log keeps those
ask        DuckDB reads the tables
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
from lakebed.demo.measures import Ack, Compaction, Flow, Measures, Sale, Sizes, Syncs
from lakebed.demo.orders import Expected
from lakebed.demo.till import TOPIC
from lakebed.errors import InvalidArgumentError, translated
from lakebed.spark.serving import url_of

CHECKOUTS: Final = 8
PARTITIONS: Final = 4

_BATCHES: Final = 3
"""Batches that the pipeline has for all of it, so that it can be killed in between."""
_FLOWS: Final = ("paid", "now")
"""The flows of the pipeline that read every order."""
_MARK: Final = ".lakebed-demo"
"""Tells a folder of the demonstration from a folder that somebody needs."""


class Teller(Protocol):
    """Whoever tells the story while it happens."""

    def act(self, text: str) -> None:
        """Return what begins."""

    def fact(self, text: str) -> None:
        """Return what was found."""

    def far(self, doing: str, done: int, total: int) -> None:
        """Return how far work has come."""

    def busy(self, doing: str) -> None:
        """Return what is being done of which nobody knows how far it is."""


class Story:
    """One run, in a folder of its own."""

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
        """Play all acts."""
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
        """Return a time that a child has told, since the beginning."""
        return int(nanoseconds) / 1e9 - self._begun

    # The till

    def _sell(self) -> None:
        sale = self.measures.sale
        self._act(
            f"A till writes {sale.records:,} orders, corrections and deletions to "
            f"{self._log_folder}, {CHECKOUTS} checkouts at once."
        )
        self._till(kill_at=sale.records // 2)
        sale.acknowledged_before = sale.acknowledged
        self._say(
            f"killed with -9 when {sale.acknowledged:,} records were acknowledged, and started "
            "again"
            if sale.killed_at is not None
            else "it had ended before it could be killed; started again"
        )
        self._till(kill_at=None)
        sale.unacknowledged = sale.records - sale.acknowledged
        latency = sale.latencies_ms()
        self._say(
            f"open again after {sale.opening_ms:.0f} ms, with {sale.replayed_entries:,} entries "
            f"replayed; {sale.unacknowledged:,} records were on disk without the till knowing"
        )
        self._say(
            f"half of the acknowledgements came within {latency[50]:.1f} ms, 99 % within "
            f"{latency[99]:.1f} ms; {sale.entries_per_sync():.1f} entries shared a sync"
        )

    def _till(self, *, kill_at: int | None) -> None:
        """Let a till write, to its end or until so many records are acknowledged."""
        sale, syncs, first = self.measures.sale, list[Syncs](), not self.measures.sale.syncs
        sale.syncs.append(syncs)

        def hear(child: Child, line: str) -> None:
            word, *numbers = line.split()
            if word == "ack":
                _, _, records, at, took = numbers
                sale.acknowledge(Ack(self._since(at), int(records), int(took) / 1e6))
                if kill_at is not None and sale.acknowledged >= kill_at:
                    child.kill()
            elif word == "stats":
                at, entries, done, _ = numbers
                syncs.append(Syncs(self._since(at), int(entries), int(done)))
            elif not first:
                at, took, replayed = numbers
                sale.reopened_at, sale.opening_ms = self._since(at), int(took) / 1e6
                sale.replayed_entries = int(replayed)

        arguments = [str(self._log_folder), str(CHECKOUTS), str(self._changes)]
        child = Child("lakebed.demo.till", arguments, self.folder, hear)
        with child:
            child.wait(lambda: self._meter("selling", sale.acknowledged, sale.records))
        if child.was_killed and child.killed_at is not None:
            sale.killed_at = child.killed_at - self._begun

    def _check(self, log: lakebed.Log) -> None:
        self._act("Every record is read and compared with what the till meant to write.")
        done, total = 0, self._expected.changes

        def told(records: int) -> None:
            nonlocal done
            done += records
            self._meter("comparing", done, total)

        found = comparing.orders(log, TOPIC, self._expected, told)
        self.measures.check = found
        self._say(
            f"{found.expected:,} records expected, {found.found:,} found, {found.missing:,} "
            f"missing, {found.wrong:,} changed, moved or twice"
        )
        self._measure("written")
        log.checkpoint()
        self._measure("checkpoint")

    # The pipeline

    def _derive(self, log: lakebed.Log) -> None:
        file = self.folder / pipeline.NAME
        file.write_text(pipeline.text(-(-self._expected.changes // _BATCHES)), encoding="utf8")
        self._act(
            f"A Spark pipeline ({file}) makes the topic {pipeline.PAID} and the table "
            f"{pipeline.TABLE} of it."
        )
        piping, begun = self.measures.piping, self._now()
        self._pipeline(file, url_of(log), kill=True)
        self._say(
            "killed with -9, with its Java, after its first batches; run again"
            if piping.killed_at is not None
            else "it had ended before it could be killed; run again"
        )
        self._pipeline(file, url_of(log), kill=False)
        piping.seconds = self._now() - begun
        self._busy("comparing")
        piping.paid = comparing.paid(log, pipeline.PAID, self._expected)
        piping.dead = comparing.dead(log, pipeline.DEAD, self._expected)
        piping.table = comparing.table(asking.rows(log, pipeline.TABLE), self._expected)
        for name, found in (
            (f"topic {pipeline.PAID}", piping.paid),
            (f"topic {pipeline.DEAD}, amounts that cannot be", piping.dead),
            (f"table {pipeline.TABLE}, orders as they are now", piping.table),
        ):
            self._say(
                f"{name}: {found.expected:,} expected, {found.found:,} found, "
                f"{found.missing:,} missing, {found.wrong:,} wrong or twice"
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
            piping.flows.append(Flow(self._now(), status["flow"], status["rows"]))
            if kill and all(read.get(name) for name in _FLOWS):
                child.kill()

        def meanwhile() -> None:
            done = min(read.get(each, 0) for each in _FLOWS)
            if done:
                self._meter("pipeline", done, self._expected.changes)
            else:
                self._busy("starting Spark, and the pipeline")

        arguments = ["pipeline", "run", str(file), "--data", url, "--available-now", "--json"]
        child = Child("lakebed.cli", arguments, self.folder, hear)
        with child:
            child.wait(meanwhile)
        if child.was_killed and child.killed_at is not None:
            piping.killed_at = child.killed_at - self._begun

    # The topic, and its tables

    def _compact(self, log: lakebed.Log) -> None:
        self._act(f"The topic {TOPIC} is compacted: the last change of each order stays.")
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
            f"{before:,} records before, {after:,} after, {expected:,} expected; segments "
            f"{sizes[-2].segments / 2**20:.1f} MiB, {sizes[-1].segments / 2**20:.1f} MiB when old "
            "snapshots of the tables are dropped"
        )

    def _ask(self, log: lakebed.Log) -> None:
        self._act("DuckDB reads the Iceberg tables.")
        self.measures.queries = asking.ask(log, self.folder, self._expected)
        for query in self.measures.queries:
            answer = "as the till meant it" if query.is_right else "NOT what the till meant"
            self._say(f"{query.name}: {answer}, in {query.seconds * 1000:.0f} ms")

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
    """Hear nothing."""


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[None]:
    """Make room for a run: one that does not end leaves nothing, but the earlier one is back."""
    earlier = folder.with_name(f"{folder.name}.earlier")
    with translated("making the folder", folder):
        _check(folder)
        shutil.rmtree(earlier, ignore_errors=True)
        if folder.exists():
            folder.rename(earlier)
        folder.mkdir(parents=True)
        (folder / _MARK).touch()
    try:
        yield
        shutil.rmtree(folder / TEMPORARY)
        shutil.rmtree(earlier, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if earlier.exists():
            earlier.rename(folder)
        raise


def _check(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InvalidArgumentError("this is no folder: name another place", folder=folder)
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise InvalidArgumentError(
            "this folder is not empty, and not of an earlier demonstration: name another one",
            folder=folder,
        )
