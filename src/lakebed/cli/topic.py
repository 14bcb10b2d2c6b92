"""`lakebed topic`: make topics, look at them, change them, remove them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from lakebed.cli.completion import complete_topic
from lakebed.cli.data import Target, confirm, data_option, open_log, settings, yes_option
from lakebed.cli.output import (
    count_text,
    json_option,
    moment,
    size,
    write_facts,
    write_json,
    write_line,
    write_table,
)
from lakebed.cli.schema_file import read_schema
from lakebed.config import TopicConfig
from lakebed.reports.topics import PartitionInfo, TopicInfo
from lakebed.topic.schema_document import schema_document, type_document

_name = click.argument("name", shell_complete=complete_topic)
_partitions = click.option(
    "--partitions", metavar="N", type=click.IntRange(min=1), help="Total number of partitions."
)
_schema = click.option(
    "--schema",
    "schema_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="JSON file with the fields of a value.",
)
_config = click.option(
    "--config",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting; may be repeated. `lakebed config` lists them.",
)


@click.group()
def topic() -> None:
    """Create, show, change and delete topics."""


@topic.command("create", short_help="Create a topic, and the log if DIR is new.")
@click.argument("name")
@data_option
@_partitions
@_schema
@_config
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@json_option
def create_command(
    name: str,
    folder: Target,
    *,
    partitions: int | None,
    schema_file: Path | None,
    pairs: tuple[str, ...],
    if_not_exists: bool,
    as_json: bool,
) -> None:
    """Create the topic NAME, and the log if DIR is new or empty.

    Without --schema values are bytes; with it they have the fields that FILE lists.
    """
    config = settings(pairs)
    TopicConfig.of(config)  # refused before a folder is made
    schema = None if schema_file is None else read_schema(schema_file)
    with open_log(folder, make=True, silent=as_json) as log:
        make = log.get_or_create_topic if if_not_exists else log.create_topic
        _show(make(name, partitions, schema, config), as_json=as_json)


@topic.command("list", short_help="List the topics.")
@data_option
@json_option
def list_command(folder: Target, *, as_json: bool) -> None:
    """List the topics with their size.

    Records are counted by offsets, from the earliest to the end; after compaction there are fewer,
    which `lakebed lake tables` shows.
    """
    with open_log(folder, silent=as_json) as log:
        topics = [log.describe_topic(name) for name in log.topics()]
    if as_json:
        for info in topics:
            write_json("topic", _values(info))
    elif topics:
        columns = ("topic", ">partitions", ">records", ">segments", ">size", "values", "cleanup")
        write_table(columns, map(_row, topics))
    else:
        write_line("no topics")


def _row(info: TopicInfo) -> tuple[str, ...]:
    return (
        info.name,
        str(len(info.partitions)),
        str(info.records),
        str(sum(partition.segments for partition in info.partitions)),
        size(sum(partition.segment_bytes for partition in info.partitions)),
        _kind(info),
        str(info.config["cleanup"]),
    )


@topic.command("describe", short_help="Show partitions, schema and settings of a topic.")
@_name
@data_option
@json_option
def describe_command(name: str, folder: Target, *, as_json: bool) -> None:
    """Show partitions and schema of the topic NAME, and settings that differ from the defaults."""
    with open_log(folder, silent=as_json) as log:
        info = log.describe_topic(name)
    if as_json:
        write_json("topic", _values(info))
        return
    _write_facts(info)
    write_line("")
    columns = (">partition", ">earliest", ">end", ">segments", ">size", ">in memory")
    write_table(columns, map(_partition_row, info.partitions))
    if info.schema is not None:
        write_line("")
        write_table(("field", "type", "nullable"), _schema_rows(info))


def _partition_row(partition: PartitionInfo) -> tuple[str, ...]:
    return (
        str(partition.partition),
        str(partition.earliest),
        str(partition.end),
        str(partition.segments),
        size(partition.segment_bytes),
        str(partition.memtable_records),
    )


def _schema_rows(info: TopicInfo) -> list[tuple[str, str, str]]:
    rows = []
    for field in info.schema or ():
        kind = type_document(field.type)
        shown = kind if isinstance(kind, str) else json.dumps(kind)
        rows.append((field.name, shown, "yes" if field.nullable else "no"))
    return rows


@topic.command("alter", short_help="Change settings, add fields or partitions.")
@_name
@data_option
@_partitions
@_schema
@_config
@json_option
def alter_command(
    name: str,
    folder: Target,
    *,
    partitions: int | None,
    schema_file: Path | None,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change settings of the topic NAME, add partitions, or add fields to its schema.

    A schema can gain nullable fields at its end. With more partitions, keys may go to other
    partitions than before.
    """
    if partitions is None and schema_file is None and not pairs:
        raise click.UsageError("nothing to change: use --config, --partitions or --schema")
    schema = None if schema_file is None else read_schema(schema_file)
    with open_log(folder, silent=as_json) as log:
        _show(log.alter_topic(name, settings(pairs), schema, partitions), as_json=as_json)


@topic.command("delete", short_help="Delete a topic and its records.")
@_name
@data_option
@yes_option
@json_option
def delete_command(name: str, folder: Target, *, yes: bool, as_json: bool) -> None:
    """Delete the topic NAME and all its records permanently."""
    with open_log(folder, silent=as_json) as log:
        count = count_text(log.describe_topic(name).records, "record", "records")
        confirm(f"Remove the topic {name} with {count}?", yes=yes)
        log.delete_topic(name)
    if as_json:
        write_json("deleted", {"topic": name})
    else:
        write_line(f"deleted {name}, with {count}")


@topic.command("purge", short_help="Remove every record of a topic.")
@_name
@data_option
@yes_option
@json_option
def purge_command(name: str, folder: Target, *, yes: bool, as_json: bool) -> None:
    """Remove every record of the topic NAME permanently; offsets continue."""
    with open_log(folder, silent=as_json) as log:
        records = log.describe_topic(name).records
        count = count_text(records, "record", "records")
        confirm(f"Remove {count} of the topic {name}?", yes=yes)
        log.purge_topic(name)
    if as_json:
        write_json("purged", {"topic": name, "records": records})
    else:
        write_line(f"purged {name}: {count} removed")


def _show(info: TopicInfo, *, as_json: bool) -> None:
    if as_json:
        write_json("topic", _values(info))
    else:
        _write_facts(info)


def _write_facts(info: TopicInfo) -> None:
    changed = TopicConfig.of(info.config).changed()
    version = f", schema version {info.schema_version}" if info.schema is not None else ""
    write_facts(
        [
            ("topic", info.name),
            ("created", moment(info.created_us)),
            ("values", _kind(info) + version),
            ("partitions", str(len(info.partitions))),
            ("records", str(info.records)),
            *((name, str(value)) for name, value in changed.items()),
        ]
    )


def _kind(info: TopicInfo) -> str:
    return "bytes" if info.schema is None else "typed"


def _values(info: TopicInfo) -> dict[str, object]:
    return {
        "topic": info.name,
        "id": info.id,
        "created_us": info.created_us,
        "records": info.records,
        "partitions": [asdict(partition) for partition in info.partitions],
        "schema": None if info.schema is None else schema_document(info.schema),
        "schema_version": info.schema_version,
        "config": info.config,
    }
