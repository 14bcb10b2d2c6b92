"""`lakebed lake`: the Iceberg tables of the topics, and unneeded files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

import lakebed
from lakebed.cli.completion import complete_topic
from lakebed.cli.data import Target, confirm, data_option, open_log, yes_option
from lakebed.cli.lake_derived import listing_of, show_listing, write_listing
from lakebed.cli.lake_readers import catalog_properties, file_properties, readers
from lakebed.cli.output import (
    Meter,
    advice,
    count_text,
    error_facts,
    json_option,
    moment,
    size,
    write_facts,
    write_json,
    write_line,
    write_table,
    write_wrapped,
)
from lakebed.config import LogConfig
from lakebed.engine.log import EmbeddedLog
from lakebed.reports.lake import SnapshotInfo, SyncReport, TableInfo
from lakebed.reports.maintenance import CheckpointReport

_topic = click.argument("topic", shell_complete=complete_topic)


@click.group()
def lake() -> None:
    """Show, sync and clean up the Iceberg tables of topics."""


@lake.command("tables", short_help="List the tables.")
@data_option
@json_option
def tables_command(folder: Target, *, as_json: bool) -> None:
    """List the table of each topic with its lag: records that it does not show yet.

    Derived tables of jobs and pipelines follow, with source, kind and position.
    """
    with open_log(folder, silent=as_json) as log:
        tables = log.lake.tables()
        derived = listing_of(log)
    if any(table.problem for table in tables):
        derived = derived._replace(problem=None)  # it is the same catalog, and shown above
    if as_json:
        for table in tables:
            write_json("table", _values(table))
        write_listing(derived)
        return
    if tables:
        columns = ("topic", ">files", ">records", ">size", ">snapshots", ">lag")
        write_table(columns, map(_row, tables), whole=True)
        for table in tables:
            if table.problem:
                write_wrapped(f"problem of {table.topic}: {table.problem}")
    else:
        write_line("no topics")
    show_listing(derived)


def _row(info: TableInfo) -> tuple[str, ...]:
    shown = (str(info.files), str(info.records), size(info.bytes), str(info.snapshots))
    return (
        info.topic,
        *(shown if info.exists else ("-",) * len(shown)),
        str(info.lag_records),
    )


@lake.command("describe", short_help="Show a table and how to read it.")
@_topic
@data_option
@json_option
def describe_command(topic: str, folder: Target, *, as_json: bool) -> None:
    """Show the table of TOPIC: location, position, and how other programs read it.

    Secrets in settings are not shown.
    """
    with open_log(folder, silent=as_json) as log:
        info = log.lake.describe(topic)
        more = (
            _catalog_values(info, log.config, log.folder)
            if isinstance(log, EmbeddedLog)
            else _values_without_catalog(info)
        )
    lines = more["readers"]
    if as_json:
        write_json("table", {**_values(info), **more})
        return
    write_facts(_facts(info, more["table"]))
    for program, text in lines.items():
        write_line(f"\n{program}")
        for line in text.splitlines():
            write_line(f"  {line}")


def _catalog_values(info: TableInfo, config: LogConfig, folder: Path) -> dict[str, Any]:
    """Return the table's name, its catalog, and how other programs read it."""
    lake = config.lake
    by_pointer = config.ships and not lake.catalog
    properties = file_properties(lake) if by_pointer else catalog_properties(lake, folder)
    name = (*lake.namespace.split("."), info.topic)
    lines = readers(info.location, name, properties, hint=by_pointer) if info.exists else {}
    return {"table": ".".join(name), "catalog": properties, "readers": lines}


def _values_without_catalog(info: TableInfo) -> dict[str, Any]:
    """Return what is known without the catalog, whose settings a server does not reveal."""
    local = info.exists and info.location.startswith("file://")
    lines = readers(info.location, (info.topic,), {}) if local else {}
    duckdb = {name: text for name, text in lines.items() if name == "DuckDB"}
    return {"table": None, "catalog": None, "readers": duckdb}


def _facts(info: TableInfo, table: str | None) -> Iterator[tuple[str, str]]:
    yield "topic", info.topic
    made = info.exists or info.problem
    if table is not None:
        yield "table", table + ("" if made else ", not made yet")
    if info.problem:
        yield "problem", info.problem
    yield "location", info.location
    if info.exists:
        yield "metadata", info.metadata
        yield "snapshot", f"{_number(info.snapshot)}, {info.snapshots} in all"
        yield "files", f"{info.files}, {size(info.bytes)}"
        yield "records", str(info.records)
        yield "position", f"entry {info.position}"
        yield "offsets", ", ".join(f"{key}: {end}" for key, end in _offsets(info).items()) or "-"
    waiting = f", the oldest for {info.lag_seconds:.1f} s" if info.lag_records else ""
    yield "lag", count_text(info.lag_records, "record", "records") + waiting


def _number(snapshot: int | None) -> str:
    return "none" if snapshot is None else str(snapshot)


def _offsets(info: TableInfo) -> dict[str, int]:
    """Return the offset of each partition below which the table shows every record."""
    offsets: dict[str, int] = json.loads(info.offsets)
    return offsets


def _values(info: TableInfo) -> dict[str, object]:
    return {**asdict(info), "offsets": _offsets(info)}


@lake.command("history", short_help="List the snapshots of a table.")
@_topic
@data_option
@json_option
def history_command(topic: str, folder: Target, *, as_json: bool) -> None:
    """List the readable snapshots of TOPIC's table, the oldest first."""
    with open_log(folder, silent=as_json) as log:
        snapshots = log.lake.history(topic)
    if as_json:
        for snapshot in snapshots:
            write_json(
                "snapshot", {"topic": topic, **asdict(snapshot), "time": snapshot.time.isoformat()}
            )
    elif snapshots:
        columns = (">snapshot", "time", "operation", "made by", ">added", ">removed", ">records")
        write_table(columns, map(_snapshot_row, snapshots))
    else:
        write_line("no snapshots")


def _snapshot_row(snapshot: SnapshotInfo) -> tuple[str, ...]:
    return (
        str(snapshot.snapshot),
        moment(round(snapshot.time.timestamp() * 1_000_000)),
        snapshot.operation,
        "the log" if snapshot.ours else "another program",
        str(snapshot.files_added),
        str(snapshot.files_removed),
        str(snapshot.records),
    )


@lake.command("sync", short_help="Update tables now.")
@click.argument("topic", required=False, shell_complete=complete_topic)
@data_option
@click.option(
    "--take-over", is_flag=True, help="Overwrite changes of other programs to the table of TOPIC."
)
@yes_option
@json_option
@click.pass_context
def sync_command(
    ctx: click.Context,
    topic: str | None,
    folder: Target,
    *,
    take_over: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Update the table of TOPIC, or all tables, and the object store now.

    A log does this automatically. This command takes a checkpoint first, so that every acknowledged
    record is in its table, and creates tables of empty topics. A table that another program has
    changed is refused; --take-over restores exactly the log's records.
    """
    if take_over and topic is None:
        raise click.UsageError("--take-over needs the name of a topic")
    with open_log(folder, silent=as_json) as log:
        if topic is not None:
            log.describe_topic(topic)
        if take_over:
            confirm(f"Undo what others have done to the table of {topic}?", yes=yes)
        with Meter(silent=as_json, unit="tables") as meter:
            sealed, report = _sync(log, topic, take_over=take_over, meter=meter)
        stored = bool(log.lake.stats().store)
    if as_json:
        failures = [{"topic": name, **error_facts(error)} for name, error in report.errors.items()]
        done = {name: value for name, value in asdict(report).items() if name != "errors"}
        write_json(
            "sync", {"topic": topic, **_checkpoint_values(sealed), **done, "failures": failures}
        )
    else:
        write_facts(_sync_facts(sealed, report, take_over=take_over, stored=stored))
        for name, error in report.errors.items():
            click.echo(f"error: {name}: {error}\n{advice(error)}", err=True)
    if report.errors:
        ctx.exit(1)


def _sync(
    log: lakebed.Log, topic: str | None, *, take_over: bool, meter: Meter
) -> tuple[CheckpointReport, SyncReport]:
    """Put everything into segments and the segments into tables.

    The log's own thread may be first to sync what the checkpoint has sealed: its tables count too.
    """
    before = log.lake.stats().tables_changed
    sealed = log.checkpoint()
    meter("syncing tables", 0, 1 if topic else max(1, log.stats().topics))
    report = log.lake.sync(topic, take_over=take_over, progress=meter)
    return sealed, replace(report, tables_changed=log.lake.stats().tables_changed - before)


def _checkpoint_values(report: CheckpointReport) -> dict[str, int]:
    return {"records_sealed": report.records, "segments_sealed": report.segments}


def _sync_facts(
    sealed: CheckpointReport, report: SyncReport, *, take_over: bool, stored: bool
) -> Iterator[tuple[str, str]]:
    segments = count_text(sealed.segments, "segment", "segments")
    yield "sealed", f"{count_text(sealed.records, 'record', 'records')} into {segments}"
    yield "tables", f"{report.tables_changed} changed, {report.tables_dropped} dropped"
    if take_over:
        yield "files", f"{report.files_added} added, {report.files_removed} removed"
    if stored:
        moved = f"{report.segments_moved} no longer on the local disk"
        yield (
            "store",
            f"{count_text(report.segments_uploaded, 'segment', 'segments')} sent, {moved}",
        )


@lake.command("gc", short_help="Remove unreferenced files.")
@data_option
@click.option("--now", is_flag=True, help="Expire older snapshots, and ignore the grace period.")
@yes_option
@json_option
def gc_command(folder: Target, *, now: bool, yes: bool, as_json: bool) -> None:
    """Remove files that no table refers to and whose grace period is over.

    A log does this automatically. --now expires older snapshots that keep dropped files, and
    removes files immediately: programs that are reading a table may fail, and jobs and pipelines
    that are writing one lose uncommitted files.
    """
    with open_log(folder, silent=as_json) as log:
        if now:
            confirm(
                "Remove files that others may be reading, or that a job has not committed yet?",
                yes=yes,
            )
        report = log.lake.gc(now=now)
    if as_json:
        write_json("gc", {"now": now, **asdict(report)})
        return
    write_facts(
        [
            ("segments", f"{report.segments_removed} removed"),
            ("other files", f"{report.files_removed} removed, {size(report.bytes_removed)}"),
            ("waiting", count_text(report.waiting, "file", "files")),
        ]
    )
