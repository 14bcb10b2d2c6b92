"""`lakebed produce`: lines of files or of a pipe become records of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import click
import pyarrow as pa

import lakebed
from lakebed.cli.completion import complete_topic
from lakebed.cli.data import Destination, Target, data_option, destination, open_log
from lakebed.cli.lines import LineReader, Lines
from lakebed.cli.output import Meter, count_text, json_option, write_json, write_line, write_table
from lakebed.cli.records import Batch, JsonRecords, JsonValues, Meaning, Plain
from lakebed.errors import LakebedError, RejectedError, from_os_error

_BATCH_RECORDS: Final = 10_000
_LINE_BYTES_MIN: Final = 1024 * 1024
_STDIN: Final = "-"


@click.command(short_help="Write lines of files or stdin to a topic.")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@data_option
@click.option("--key-separator", metavar="TEXT", help="The text before it in a line is the key.")
@click.option("--json-lines", is_flag=True, help="Each line is a record as a JSON object.")
@click.option("--whole-files", is_flag=True, help="Each file is one value.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of each record; may be repeated.",
)
@click.option(
    "--partition", metavar="N", type=click.IntRange(min=0), help="Write to this partition."
)
@click.option(
    "--batch",
    metavar="N",
    type=click.IntRange(min=1, max=1_000_000),
    default=_BATCH_RECORDS,
    show_default=True,
    help="Maximum number of records per write and sync.",
)
@json_option
def produce(
    topic: str,
    files: tuple[str, ...],
    folder: Target,
    *,
    key_separator: str | None,
    json_lines: bool,
    whole_files: bool,
    headers: tuple[str, ...],
    partition: int | None,
    batch: int,
    as_json: bool,
) -> None:
    """Write each line of FILES, or of stdin, to TOPIC as a record.

    For a topic with a schema each line is a JSON object with its fields; otherwise its bytes are
    the value.

    With --json-lines a line is {"value": ..., "key": ..., "headers": {...}, "timestamp": ...,
    "partition": ...}; only the value is required. It takes what `lakebed consume --json` writes.

    A batch is written completely or not at all, and is on disk before the next is read. A bad line
    ends the command; the error has its number, and how many records were written.
    """
    _check_usage(key_separator, json_lines=json_lines, whole_files=whole_files, files=files)
    common = _headers(headers)
    with open_log(folder, silent=as_json) as log, Meter(silent=as_json) as meter:
        info = destination(log, topic)
        writer = _Writer(log, topic, partition, batch, meter)
        try:
            if whole_files:
                writer.write(_files(files, info, common))
            else:
                meaning = _meaning(info, key_separator, common, json_lines=json_lines)
                writer.write(_lines(files or (_STDIN,), info, meaning))
        except KeyboardInterrupt:
            click.echo(f"{count_text(writer.records, 'record', 'records')} written", err=True)
            raise
    _show(topic, writer, as_json=as_json)


def _check_usage(
    separator: str | None, *, json_lines: bool, whole_files: bool, files: tuple[str, ...]
) -> None:
    if json_lines + whole_files + (separator is not None) > 1:
        raise click.UsageError(
            "--key-separator, --json-lines and --whole-files are mutually exclusive"
        )
    if separator == "":
        raise click.UsageError("the key separator is empty")
    if whole_files and not files:
        raise click.UsageError("--whole-files needs files")


def _headers(pairs: tuple[str, ...]) -> dict[str, bytes]:
    headers: dict[str, bytes] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="'--header'")
        headers[name] = value.encode(errors="surrogateescape")
    return headers


def _meaning(
    info: Destination, separator: str | None, headers: dict[str, bytes], *, json_lines: bool
) -> Meaning:
    between = None if separator is None else separator.encode(errors="surrogateescape")
    if json_lines:
        return JsonRecords(info.schema, headers)
    if info.schema is not None:
        return JsonValues(info.schema, between, headers)
    return Plain(between, headers)


def _lines(files: tuple[str, ...], info: Destination, meaning: Meaning) -> Iterator[Batch]:
    """Return the records of lines, file after file."""
    # The topic refuses what is too large, exactly; this only keeps a file without newlines out of
    # memory. JSON may need many times a record's bytes.
    limit = _LINE_BYTES_MIN + 8 * info.record_bytes_max
    for name in files:
        try:
            with click.open_file(name, "rb") as file:
                for lines in LineReader(file, _source_name(name), line_bytes_max=limit):
                    yield from meaning(lines)
        except OSError as error:
            raise from_os_error(error, "reading the input", _source_name(name)) from error


def _files(files: tuple[str, ...], info: Destination, headers: dict[str, bytes]) -> Iterator[Batch]:
    """Return one record for each file."""
    meaning = _meaning(info, None, headers, json_lines=False)
    for name in files:
        try:
            with click.open_file(name, "rb") as file:
                whole = file.read()
        except OSError as error:
            raise from_os_error(error, "reading the input", _source_name(name)) from error
        yield from meaning(Lines(pa.array([whole], pa.binary()), _source_name(name), 1))


def _source_name(name: str) -> str:
    return "<stdin>" if name == _STDIN else name


@dataclass
class _WrittenRange:
    """The offsets that were written to one partition."""

    first: int
    last: int
    records: int = 0


@dataclass
class _Writer:
    """Writes batches, and counts what is on disk."""

    log: lakebed.Log
    topic: str
    partition: int | None
    batch: int
    meter: Meter
    records: int = 0
    reached: dict[int, _WrittenRange] = field(default_factory=dict)

    def write(self, batches: Iterator[Batch]) -> None:
        """Write everything; an error says how much was written before it."""
        try:
            for batch in batches:
                for start in range(0, len(batch.lines), self.batch):
                    self._write(batch.part(start, start + self.batch))
        except LakebedError as error:
            raise _with_facts(error, {**error.facts, "written": self.records}) from error

    def _write(self, batch: Batch) -> None:
        partition = self.partition if batch.partition is None else batch.partition
        try:
            acks = self.log.append_batch(self.topic, batch.rows, partition=partition)
        except RejectedError as error:
            row = error.facts.get("row")
            if not isinstance(row, int):
                raise _with_line(error, batch, 0) from error
            if row:
                self._write(batch.part(0, row))
            raise _with_line(error, batch, row) from error
        self.records += len(acks)
        for to_partition, offsets in acks.offsets.items():
            reached = self.reached.setdefault(to_partition, _WrittenRange(offsets[0], offsets[-1]))
            reached.last = offsets[-1]
            reached.records += len(offsets)
        self.meter.tally(f"{self.records} records written")


def _with_line(error: LakebedError, batch: Batch, row: int) -> LakebedError:
    """Return the error with file and line in place of the row of the batch."""
    facts = {name: value for name, value in error.facts.items() if name != "row"}
    return _with_facts(error, {"file": batch.source, "line": batch.lines[row], **facts})


def _with_facts(error: LakebedError, facts: dict[str, object]) -> LakebedError:
    return type(error)(error.message, **facts)


def _show(topic: str, writer: _Writer, *, as_json: bool) -> None:
    reached = sorted(writer.reached.items())
    if as_json:
        parts = [
            {
                "partition": partition,
                "first": written.first,
                "last": written.last,
                "records": written.records,
            }
            for partition, written in reached
        ]
        write_json("produced", {"topic": topic, "records": writer.records, "partitions": parts})
        return
    write_line(f"{count_text(writer.records, 'record', 'records')} written to {topic}")
    if reached:
        rows = [
            (str(partition), str(written.records), str(written.first), str(written.last))
            for partition, written in reached
        ]
        write_table((">partition", ">records", ">first offset", ">last offset"), rows)
