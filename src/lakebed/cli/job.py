"""`lakebed job`: work on whole topics by Spark. Each job can be killed, and run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lakebed.cli.completion import complete_topic
from lakebed.cli.data import Target, data_option, open_log, settings
from lakebed.cli.job_session import SparkOptions, range_options, spark_on, spark_options
from lakebed.cli.output import (
    Meter,
    count_text,
    json_option,
    size,
    write_facts,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    from lakebed.spark.jobs.importing import ImportReport
    from lakebed.spark.jobs.replay import ReplayReport
    from lakebed.spark.jobs.verify import VerifyReport

_topic = click.argument("topic", shell_complete=complete_topic)
_name = click.option(
    "--name",
    metavar="NAME",
    help="Name of the job; a repeated name writes nothing twice.",
)


@click.group()
def job() -> None:
    """Run Spark jobs on whole topics: compact, verify, copy, import."""


@job.command("compact", short_help="Keep the latest record of each key.")
@_topic
@data_option
@click.option("--force", is_flag=True, help="Even if little is new since the last compaction.")
@spark_options
@json_option
def compact_command(
    topic: str, folder: Target, *, force: bool, master: str, verbose: bool, as_json: bool
) -> None:
    """Keep the latest record of each key of TOPIC, and merge small files.

    Records without a key stay, and tombstones for the topic's `tombstone_retention_ms`. Offsets do
    not change. New files are verified before they replace the old ones; readers are not affected.
    """
    from lakebed.spark.jobs.compact import compact

    with (
        spark_on(folder, SparkOptions(master, verbose), silent=as_json) as (spark, log),
        Meter(silent=as_json, unit="tasks") as meter,
    ):
        report = compact(spark, log, topic, force=force, progress=meter)
    if as_json:
        write_json("compact", asdict(report))
        return
    if not report.partitions:
        write_facts([("topic", topic), ("due", "nothing; --force compacts whatever may be")])
        return
    segments = f"{report.segments_removed} replaced by {report.segments_written}"
    took = f"{report.seconds_reading:.1f} s to read, {report.seconds_writing:.1f} s to rewrite"
    write_facts(
        [
            ("topic", topic),
            ("due", count_text(report.partitions, "partition", "partitions")),
            ("read", count_text(report.records_read, "record", "records")),
            ("dropped", count_text(report.records_dropped, "record", "records")),
            ("segments", segments),
            ("size", f"{size(report.bytes_removed)} became {size(report.bytes_written)}"),
            ("took", took),
        ]
    )


@job.command("materialise", short_help="Maintain a table of a topic's keys.")
@_topic
@data_option
@click.option("--table", metavar="NAME", help="Name of the table; default: the topic.")
@click.option(
    "--key", metavar="FIELD", multiple=True, help="A field of the value; may be repeated."
)
@click.option(
    "--kind",
    type=click.Choice(["current", "history"]),
    default="current",
    show_default=True,
    help="Current values of keys, or all versions.",
)
@click.option("--buckets", metavar="N", type=click.IntRange(min=1), help="Of a new table.")
@click.option("--no-flatten", is_flag=True, help="Keep the value in one column.")
@spark_options
@json_option
def materialise_command(
    topic: str,
    folder: Target,
    *,
    table: str | None,
    key: tuple[str, ...],
    kind: str,
    buckets: int | None,
    no_flatten: bool,
    master: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Update an Iceberg table of TOPIC's keys to the topic's current end.

    The first run creates the table. Each run continues where the last one ended, in one commit.
    """
    from lakebed.spark.tables import materialise

    with (
        spark_on(folder, SparkOptions(master, verbose), silent=as_json) as (spark, log),
        Meter(silent=as_json, unit="records") as meter,
    ):
        report = materialise(
            spark,
            log,
            topic,
            table,
            key=key or None,
            kind=kind,
            buckets=buckets,
            flatten=not no_flatten,
            progress=meter,
        )
    if as_json:
        write_json("materialise", asdict(report))
        return
    made = ", created" if report.created else ""
    write_facts(
        [
            ("table", f"{report.table}, version {report.version}{made}"),
            ("read", count_text(report.records, "offset", "offsets")),
            ("rows", f"{report.inserted} written, {report.removed} removed"),
            ("without key", count_text(report.without_key, "record", "records")),
        ]
    )


@job.command("verify", short_help="Read and check every segment.")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topic)
@data_option
@click.option("--no-tables", is_flag=True, help="Do not check the Iceberg tables.")
@spark_options
@json_option
@click.pass_context
def verify_command(
    ctx: click.Context,
    topics: tuple[str, ...],
    folder: Target,
    *,
    no_tables: bool,
    master: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Read every byte of every segment of the topics, or of all, and report errors.

    It continues after damage. Exit code 1 if anything is wrong.
    """
    from lakebed.spark.jobs.verify import verify

    with (
        spark_on(folder, SparkOptions(master, verbose), silent=as_json) as (spark, log),
        Meter(silent=as_json, unit="tasks") as meter,
    ):
        report = verify(spark, log, list(topics) or None, tables=not no_tables, progress=meter)
    _show_verification(report, as_json=as_json)
    if not report.fine:
        ctx.exit(1)


def _show_verification(report: VerifyReport, *, as_json: bool) -> None:
    if as_json:
        for damage in report.damages:
            write_json("damage", asdict(damage))
        counts = {name: value for name, value in asdict(report).items() if name != "damages"}
        write_json("verify", {**counts, "damaged": len(report.damages)})
        return
    if report.damages:
        rows = [
            (
                damage.topic,
                "table" if damage.partition < 0 else str(damage.partition),
                f"{damage.base}..{damage.end}",
                damage.problem,
            )
            for damage in report.damages
        ]
        write_table(("topic", ">partition", ">offsets", "what is wrong"), rows, whole=True)
    checked = count_text(report.segments, "segment", "segments")
    write_facts(
        [
            ("checked", f"{checked} of {count_text(report.topics, 'topic', 'topics')}"),
            ("holding", f"{count_text(report.records, 'record', 'records')}, {size(report.bytes)}"),
            ("wrong", str(len(report.damages)) if report.damages else "nothing"),
        ]
    )


@job.command("replay", short_help="Copy a range into another topic.")
@click.argument("source", shell_complete=complete_topic)
@click.argument("target", shell_complete=complete_topic)
@data_option
@range_options
@click.option("--key", "keys", metavar="KEY", multiple=True, help="Only this key; may be repeated.")
@click.option("--new-timestamps", is_flag=True, help="Use the time of the copy.")
@click.option("--keep-partitions", is_flag=True, help="Keep the partitions of records.")
@_name
@spark_options
@json_option
def replay_command(
    source: str,
    target: str,
    folder: Target,
    *,
    keys: tuple[str, ...],
    new_timestamps: bool,
    keep_partitions: bool,
    name: str | None,
    master: str,
    verbose: bool,
    as_json: bool,
    **bounds: Any,
) -> None:
    """Copy records of SOURCE to TARGET, each once; TARGET is created if it does not exist.

    The default range is what SOURCE holds now. It is fixed when a name is used first; killed and
    run again, the job continues.
    """
    from lakebed.spark.jobs.replay import replay

    with (
        spark_on(folder, SparkOptions(master, verbose), silent=as_json) as (spark, log),
        Meter(silent=as_json, unit="records") as meter,
    ):
        report = replay(
            spark,
            log,
            source,
            target,
            keys=keys or None,
            keep_timestamps=not new_timestamps,
            keep_partitions=keep_partitions,
            name=name,
            progress=meter,
            **bounds,
        )
    if as_json:
        write_json("replay", asdict(report))
        return
    write_facts(_replay_facts(report))


def _replay_facts(report: ReplayReport) -> Iterator[tuple[str, str]]:
    yield "replay", report.name
    made = ", created" if report.created else ""
    yield "from", f"{report.source}, {count_text(report.offsets, 'offset', 'offsets')}"
    yield "to", f"{report.target}{made}"
    yield "written", count_text(report.records, "record", "records")
    if report.chunks_before:
        yield "before", f"{report.chunks_before} of {count_text(report.chunks, 'chunk', 'chunks')}"


@job.command("import", short_help="Import files into a topic.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@data_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "json", "csv", "iceberg"]),
    default="parquet",
    show_default=True,
    help="File format.",
)
@click.option(
    "--layout",
    type=click.Choice(["fields", "json", "records"]),
    default="fields",
    show_default=True,
    help="Columns become fields of a typed value, one JSON document, or a record.",
)
@click.option("--key", metavar="COLUMN", help="Key column.")
@click.option("--timestamp", metavar="COLUMN", help="Timestamp column.")
@click.option("--schema", metavar="COLUMNS", help="Of JSON or CSV: 'id BIGINT, name STRING'.")
@click.option("--partitions", metavar="N", type=click.IntRange(min=1), help="Of a new topic.")
@click.option("--dead-letters", metavar="TOPIC", help="Topic for rows that cannot be read.")
@click.option("--catalog", metavar="NAME", help="The pyiceberg catalog of an Iceberg table.")
@click.option(
    "--option", "pairs", metavar="NAME=VALUE", multiple=True, help="An option of Spark's reader."
)
@_name
@spark_options
@json_option
def import_command(
    topic: str,
    paths: tuple[str, ...],
    folder: Target,
    *,
    kind: str,
    pairs: tuple[str, ...],
    master: str,
    verbose: bool,
    as_json: bool,
    **more: Any,
) -> None:
    """Import the rows of files, folders or patterns into TOPIC, each file once.

    The topic is created if it does not exist. Killed and run again, the job continues; new files
    are imported too. Rows of JSON and CSV that cannot be read end the job, unless --dead-letters
    names a topic for them.
    """
    from lakebed.spark.jobs.importing import import_

    options = {name: str(value) for name, value in settings(pairs, "--option").items()}
    with (
        spark_on(folder, SparkOptions(master, verbose), silent=as_json) as (spark, log),
        Meter(silent=as_json, unit="files") as meter,
    ):
        report = import_(
            spark, log, paths, topic, format=kind, options=options, progress=meter, **more
        )
    if as_json:
        write_json("import", asdict(report))
        return
    write_facts(_import_facts(report))


def _import_facts(report: ImportReport) -> Iterator[tuple[str, str]]:
    yield "import", report.name
    yield "to", f"{report.topic}{', created' if report.created else ''}"
    files = count_text(report.files, "file", "files")
    yield "files", f"{files}, {report.files_before} of them before"
    yield "written", count_text(report.records, "record", "records")
    if report.bad:
        yield "dead letters", count_text(report.bad, "row", "rows")


@job.command("export", short_help="Export a range of a topic to files.")
@_topic
@click.argument("target", metavar="PATH")
@data_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "json", "csv"]),
    default="parquet",
    show_default=True,
    help="File format.",
)
@click.option(
    "--layout",
    type=click.Choice(["records", "fields"]),
    default="records",
    show_default=True,
    help="All columns of records, or the fields of a typed value.",
)
@range_options
@click.option("--files", metavar="N", type=click.IntRange(min=1), help="Maximum number of files.")
@click.option("--overwrite", is_flag=True, help="Replace an existing folder.")
@spark_options
@json_option
def export_command(
    topic: str,
    target: str,
    folder: Target,
    *,
    kind: str,
    master: str,
    verbose: bool,
    as_json: bool,
    **more: Any,
) -> None:
    """Export the records that TOPIC holds now to the folder PATH.

    The folder appears when it is complete.
    """
    from lakebed.spark.jobs.exporting import export

    with (
        spark_on(folder, SparkOptions(master, verbose), silent=as_json) as (spark, log),
        Meter(silent=as_json, unit="tasks") as meter,
    ):
        report = export(spark, log, topic, target, format=kind, progress=meter, **more)
    if as_json:
        write_json("export", asdict(report))
        return
    written = f"{count_text(report.files, 'file', 'files')}, {size(report.bytes)}"
    facts = [
        ("topic", topic),
        ("to", report.target),
        ("written", f"{count_text(report.records, 'record', 'records')} in {written}"),
    ]
    if report.left_out:
        facts.append(("left out", count_text(report.left_out, "tombstone", "tombstones")))
    write_facts(facts)


@job.command("tier", short_help="Move due segments to the object store.")
@click.argument("topic", required=False, shell_complete=complete_topic)
@data_option
@json_option
@click.pass_context
def tier_command(ctx: click.Context, topic: str | None, folder: Target, *, as_json: bool) -> None:
    """Upload segments of TOPIC, or of all, and remove local copies beyond the topics' limits.

    A log with an object store does this automatically. Does not need Spark.
    """
    from lakebed.spark.jobs.tier import tier

    with open_log(folder, silent=as_json) as log, Meter(silent=as_json, unit="topics") as meter:
        report = tier(log, topic, progress=meter)
    if as_json:
        write_json("tier", asdict(report))
    else:
        uploaded = count_text(report.segments_uploaded, "segment", "segments")
        moved = count_text(report.segments_moved, "segment", "segments")
        write_facts(
            [
                ("store", report.store),
                ("uploaded", f"{uploaded}, {size(report.bytes_uploaded)}"),
                ("moved", f"{moved}, {size(report.bytes_moved)} less on the local disk"),
            ]
        )
        for failure in report.failures:
            click.echo(f"error: {failure}", err=True)
    if report.failures:
        ctx.exit(1)
