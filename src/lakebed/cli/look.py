"""`lakebed checkpoint`, `retain` and `stats`: what a log does for itself, done or looked at now."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

import click

import lakebed
from lakebed.cli.completion import complete_topic
from lakebed.cli.data import Target, data_option, open_log
from lakebed.cli.output import (
    Meter,
    count_text,
    error_facts,
    json_option,
    size,
    warn,
    write_facts,
    write_json,
    write_line,
)
from lakebed.cli.shipping import replica_text, shipping_text
from lakebed.errors import LakebedError
from lakebed.reports.lake import LakeStats
from lakebed.reports.maintenance import CleanupReport
from lakebed.reports.stats import LogStats

Facts = list[tuple[str, str]]

_NAMED_MAX: Final = 5
"""The most topics named with a failure."""


@click.command(short_help="Write records in memory to segments.")
@data_option
@json_option
def checkpoint(folder: Target, *, as_json: bool) -> None:
    """Write records in memory to segments, write a snapshot, and free WAL files.

    A log does this automatically. Tables and the object store are updated as well; if that fails, a
    warning says so, the exit code is 0, and the log retries later.
    """
    begun = time.monotonic()
    with open_log(folder, silent=as_json) as log:
        report = log.checkpoint()
        failures = _sync(log, silent=as_json)
        wal = log.stats().wal
    seconds = time.monotonic() - begun
    if as_json:
        more = {"wal_files": wal.files, "seconds_in_all": seconds}
        told = [{"failed": failed, **error_facts(error)} for failed, error in failures]
        write_json("checkpoint", {**asdict(report), **more, "lake_failures": told})
        return
    segments = count_text(report.segments, "segment", "segments")
    written = f"{segments}, {size(report.segment_bytes)}"
    write_facts(
        [
            ("flushed", count_text(report.records, "record", "records") + f" into {written}"),
            ("snapshot", f"at entry {report.index}, {size(report.snapshot_bytes)}"),
            ("WAL", f"{count_text(wal.files, 'file', 'files')}, {size(wal.size_bytes)}"),
            ("took", f"{report.seconds:.3f} s, {seconds:.3f} s with opening, tables and closing"),
        ]
    )
    for failed, error in failures:
        warn(failed, error)


def _sync(log: lakebed.Log, *, silent: bool) -> list[tuple[str, LakebedError]]:
    """Bring tables and store up to date, if there are any; return what failed, and why."""
    lake = log.lake.stats()
    if not lake.iceberg and not lake.store:
        return []
    try:
        with Meter(silent=silent, unit="tables") as meter:
            meter("syncing tables", 0, max(1, log.stats().topics))  # a first time takes a while
            report = log.lake.sync(progress=meter)
    except LakebedError as error:
        return [("the lake is not up to date", error)]
    return [
        (f"the table of {topic} is not up to date", error) for topic, error in report.errors.items()
    ]


@click.command(short_help="Apply retention, compaction and merging now.")
@click.argument("topic", required=False, shell_complete=complete_topic)
@data_option
@json_option
@click.pass_context
def retain(ctx: click.Context, topic: str | None, folder: Target, *, as_json: bool) -> None:
    """Apply retention, compaction and merging now, to TOPIC or to all topics.

    A log does this automatically once a minute. It does not affect records that are only in memory
    (`lakebed checkpoint`).

    If a topic cannot be cleaned up, because of a damaged segment for example, the others are, and
    the exit code is 1.
    """
    with open_log(folder, silent=as_json) as log:
        report = log.retain(topic)
    if as_json:
        failures = [{"topic": name, **error_facts(error)} for name, error in report.errors.items()]
        done = {name: value for name, value in asdict(report).items() if name != "errors"}
        write_json("retain", {"topic": topic, **done, "failures": failures})
    else:
        _show_cleanup(report)
    if report.errors:
        ctx.exit(1)


def _show_cleanup(report: CleanupReport) -> None:
    removed = count_text(report.records_removed, "record", "records")
    compacted = count_text(report.records_compacted, "record", "records")
    write_facts(
        [
            ("retention", f"{removed} removed, {_segments(report.segments_removed)}"),
            ("compaction", f"{compacted} removed, of {_segments(report.segments_compacted)}"),
            ("merging", f"{_segments(report.segments_merged)} merged"),
        ]
    )
    for name, error in report.errors.items():
        warn(f"{name} could not be cleaned up", error)


def _segments(count: int) -> str:
    return count_text(count, "segment", "segments")


@click.command(short_help="Show the size and state of the log.")
@data_option
@json_option
def stats(folder: Target, *, as_json: bool) -> None:
    """Show the size of the log, its memory, and the result of opening it."""
    with open_log(folder, silent=as_json) as log:
        log_stats, problems = log.stats(), {}
        if log_stats.lake.iceberg and log_stats.segments:
            tables = log.lake.tables()  # from which the log learns how far each has come
            problems = {table.topic: table.problem for table in tables if table.problem}
            log_stats = log.stats()
    if as_json:
        write_json("stats", {**log_stats.as_dict(), "table_problems": problems})
        return
    for position, (title, facts) in enumerate(_sections(log_stats, problems)):
        if position:
            write_line("")
        write_line(title)
        write_facts([(f"  {name}", value) for name, value in facts])


def _sections(stats: LogStats, problems: Mapping[str, str]) -> Iterator[tuple[str, Facts]]:
    wal, recovery = stats.wal, stats.wal.recovery
    yield "log", [("identity", wal.log_id), ("last entry", str(stats.applied_index))]
    yield (
        "data",
        [
            (
                "topics",
                f"{stats.topics}, {count_text(stats.partitions, 'partition', 'partitions')}",
            ),
            ("segments", f"{stats.segments}, {size(stats.segment_bytes)}"),
            ("groups", str(stats.groups)),
            ("producers", str(stats.producers)),
            ("open transactions", str(stats.open_transactions)),
        ],
    )
    budget = size(stats.memtable_budget_bytes)
    yield (
        "memory",
        [
            ("records", str(stats.memtable_records)),
            ("memtables", f"{size(stats.memtable_bytes)} of {budget}"),
        ],
    )
    troubles = list(_maintenance(stats))
    if troubles:
        yield "maintenance", troubles
    yield (
        "WAL",
        [
            ("files", f"{wal.files}, {size(wal.size_bytes)}"),
            ("entries", f"{wal.first_index} to {wal.last_index}"),
        ],
    )
    lake = stats.lake
    behind = f"{count_text(lake.lag_records, 'record', 'records')}, of {lake.tables_behind}"
    yield (
        "lake",
        [
            ("tables", "Iceberg" if lake.iceberg else "none"),
            ("lag", f"{behind} {'topic' if lake.tables_behind == 1 else 'topics'}"),
            ("store", lake.store or "none"),
            ("files waiting for removal", str(lake.files_waiting)),
            *_troubles(lake, problems),
        ],
    )
    if stats.shipping is not None:
        yield (
            "store",
            [
                ("acknowledged by", stats.shipping.acks),
                ("term", str(stats.shipping.term)),
                ("not shipped", shipping_text(stats.shipping)),
                ("writes to the store", str(stats.shipping.puts)),
                ("entries set aside", str(stats.shipping.diverged_entries)),
            ],
        )
    if stats.replica is not None:
        yield (
            "replica",
            [
                ("behind", replica_text(stats.replica)),
                ("term", str(stats.replica.term)),
                ("owner", stats.replica.owner or "not known"),
                ("last slot", str(stats.replica.slot)),
                ("trouble", stats.replica.last_failure or "none"),
            ],
        )
    torn = f"{size(recovery.torn_bytes)} cut" if recovery.torn_bytes else "none"
    yield (
        "opening",
        [
            ("snapshot", f"at entry {stats.snapshot_index}" if stats.snapshot_index else "none"),
            ("replayed", count_text(stats.replayed_entries, "entry", "entries")),
            ("torn tail", torn),
            ("snapshots passed over", str(stats.snapshots_passed_over)),
            ("files put aside", str(stats.files_quarantined)),
        ],
    )


def _maintenance(stats: LogStats) -> Iterator[tuple[str, str]]:
    """Return what checkpoints, retention and short memory have cost since the log was opened."""
    if stats.maintenance_failures:
        yield "failures", str(stats.maintenance_failures)
        yield "last failure", stats.last_failure or "-"
    for failure in stats.cleanup_failures[:_NAMED_MAX]:
        since = "fails" if failure.failing else "works again"
        yield f"cleanup of {failure.topic}", f"{since}, {failure.failures} failed"
    if stats.throttled_ms:
        yield "writers waited", f"{stats.throttled_ms / 1000:.1f} s"
    if stats.rejected_writes:
        yield "writes refused", str(stats.rejected_writes)


def _troubles(lake: LakeStats, problems: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return what is wrong with the lake, if anything is."""
    if lake.failures:
        yield "failed syncs", str(lake.failures)
        yield "last failure", lake.last_failure or "-"
    for topic, problem in list(problems.items())[:1]:
        tables = count_text(len(problems), "table", "tables")
        yield "problems", f"{tables}, see `lakebed lake tables`; {topic}: {problem}"
