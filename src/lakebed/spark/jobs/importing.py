"""Files into a topic: Parquet, JSON lines, CSV or an Iceberg table, each file once under a name.

The files are listed when the job begins and grouped into chunks; the list is kept under the job's
name. A chunk is written by one commit, completely and exactly once. Run again, the job writes the
chunks that are missing, and then new files; a file that has changed after it was listed is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import BadRecordError, InvalidArgumentError, LakebedError, TopicNotFoundError
from lakebed.spark.failures import translate_failures
from lakebed.spark.jobs.import_rows import BAD, LAYOUTS, ImportRows, columns_of, schema_for
from lakebed.spark.jobs.import_sources import FORMATS, ImportSource, source_of
from lakebed.spark.jobs.plans import Plans, check_same, job_name
from lakebed.spark.jobs.storage import StoredFile
from lakebed.spark.jobs.target import AnyLog, resolve_log
from lakebed.types import Progress, say_nothing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakebed.api.log import Log
    from lakebed.spark.options import Target

CHUNK_BYTES: Final = 256 * 1024 * 1024
"""Files are grouped up to this size; a job that is killed loses at most this much work."""


@dataclass(frozen=True)
class ImportReport:
    """What an import did."""

    name: str
    """The name to run it again under."""
    topic: str
    files: int
    files_before: int
    """Files that earlier runs imported."""
    records: int
    """Written by this run."""
    bad: int
    """Rows that could not be read, which are in the dead-letter topic."""
    created: bool
    """Whether the topic was created."""


def import_(
    spark: SparkSession,
    log: AnyLog,
    paths: str | Sequence[str],
    topic: str,
    *,
    format: str = "parquet",  # noqa: A002  # the word that Spark has for it
    layout: str = "fields",
    key: str | None = None,
    timestamp: str | None = None,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    partitions: int | None = None,
    dead_letters: str | None = None,
    catalog: str | None = None,
    name: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    progress: Progress | None = None,
) -> ImportReport:
    """Write the rows of files into a topic, which is made if there is none.

    `paths` are files, folders or patterns; of an Iceberg table its metadata file or folder, or its
    name in a `catalog`. With the layout `fields` each column is a field of a typed value, with
    `json` the row is a JSON document in a raw topic, with `records` the columns key, value, headers
    and timestamp are those of the record. `key` and `timestamp` name columns. `schema` gives the
    columns of JSON and CSV as SQL does (`id BIGINT, name STRING`), which else are those of the
    topic, or are found out by reading everything once. Rows of JSON and CSV that cannot be read end
    the job with their number, unless there is a topic for `dead_letters`.
    """
    if layout not in LAYOUTS:
        raise InvalidArgumentError("layout must be one of " + ", ".join(LAYOUTS), got=repr(layout))
    if format not in FORMATS:
        raise InvalidArgumentError("format must be one of " + ", ".join(FORMATS), got=repr(format))
    columns = None if schema is None else columns_of(schema)
    owner, reach = resolve_log(spark, log)
    locations = [paths] if isinstance(paths, str) else [str(path) for path in paths]
    arguments = {
        "paths": locations,
        "topic": topic,
        "format": format,
        "layout": layout,
        "key": key,
        "timestamp": timestamp,
        "options": dict(options or {}),
        "dead_letters": dead_letters,
    }
    chosen = job_name("import", name, arguments)
    with translate_failures("import", name=chosen, topic=topic):
        source = source_of(spark, format, locations, dict(options or {}), catalog)
        plan = _plan(owner, chosen, arguments, source, columns, topic, chunk_bytes)
        rows = ImportRows(source, plan["schema"], layout, key, timestamp)
        created = _ensure_topic(owner, topic, rows, partitions)
        if dead_letters is not None:
            owner.get_or_create_topic(dead_letters, 1)
        run = _ImportRun(owner, reach, chosen, topic, dead_letters, rows, progress or say_nothing)
        with source.reading():
            run.work(plan["chunks"])
    return ImportReport(
        name=chosen,
        topic=topic,
        files=sum(len(chunk) for chunk in plan["chunks"]),
        files_before=run.files_before,
        records=run.records,
        bad=run.bad,
        created=created,
    )


# What is to be done


def _plan(
    owner: Log,
    name: str,
    arguments: dict[str, Any],
    source: ImportSource,
    columns: StructType | None,
    topic: str,
    chunk_bytes: int,
) -> dict[str, Any]:
    """Return the plan in force, extended by new files."""
    plans = Plans(owner)
    plan = plans.get(name)
    files = source.files()
    if plan is None:
        if not files:
            raise InvalidArgumentError("there are no files to import", paths=arguments["paths"])
        layout = arguments["layout"]
        schema = schema_for(owner, source, columns, topic, layout, files)
        plan = plans.settle(
            name,
            {
                "job": "import",
                "arguments": arguments,
                "schema": json.loads(schema.json()),
                "chunks": _chunks(files, chunk_bytes),
                "version": 0,
            },
        )
    check_same(name, plan, arguments)
    fresh = _fresh(name, plan, files)
    if not fresh:
        return plan
    version = int(plan["version"]) + 1
    grown = {
        **plan,
        "chunks": [*plan["chunks"], *_chunks(fresh, chunk_bytes)],
        "version": version,
    }
    return plans.settle(name, grown, version=version)


def _fresh(name: str, plan: dict[str, Any], files: list[StoredFile]) -> list[StoredFile]:
    """Return the files that are not in a plan yet; raise if a planned one has changed."""
    planned = {path: (size, changed) for chunk in plan["chunks"] for path, size, changed in chunk}
    for file in files:
        if file.path in planned and planned[file.path] != (file.bytes, file.changed_ms):
            raise InvalidArgumentError(
                "a file has changed since it was planned to be imported: import it under another"
                " name",
                name=name,
                file=file.path,
            )
    return [file for file in files if file.path not in planned]


def _chunks(files: list[StoredFile], chunk_bytes: int) -> list[list[tuple[str, int, int]]]:
    """Group files, in their order, into chunks for one commit each."""
    chunks: list[list[tuple[str, int, int]]] = []
    size = 0
    for file in files:
        if not chunks or size + file.bytes > chunk_bytes:
            chunks.append([])
            size = 0
        chunks[-1].append((file.path, file.bytes, file.changed_ms))
        size += file.bytes
    return chunks


def _ensure_topic(owner: Log, topic: str, rows: ImportRows, partitions: int | None) -> bool:
    """Create the topic if it does not exist; return whether it was created."""
    try:
        owner.describe_topic(topic)
    except TopicNotFoundError:
        owner.get_or_create_topic(topic, partitions, rows.topic_schema())
        return True
    return False


# Doing it


class _ImportRun:
    """One run over the chunks of a plan."""

    def __init__(
        self,
        owner: Log,
        reach: Target,
        name: str,
        topic: str,
        dead_letters: str | None,
        rows: ImportRows,
        progress: Progress,
    ) -> None:
        self._owner = owner
        self._reach = reach
        self._name = name
        self._topic = topic
        self._dead_letters = dead_letters
        self._rows = rows
        self._progress = progress
        self.records = self.bad = self.files_before = 0

    def work(self, chunks: list[list[tuple[str, int, int]]]) -> None:
        """Write the chunks that were not written before."""
        last = self._owner.committed_number(self._name)
        total = sum(len(chunk) for chunk in chunks)
        done = 0
        for index, chunk in enumerate(chunks):
            if last is None or index > last:
                self._write([path for path, _, _ in chunk], index)
            else:
                self.files_before += len(chunk)
            done += len(chunk)
            self._progress("importing files", done, total)

    def _write(self, files: list[str], chunk_index: int) -> None:
        from lakebed.spark.jobs.writing import write

        frame = self._rows.read(files)
        if self._rows.may_be_bad and self._dead_letters is not None:
            letters, self_bad = _count(self._rows.bad(frame))
            write(letters, self._reach, self._dead_letters, f"{self._name}.bad", chunk_index)
            self.bad += int(self_bad.get["rows"])
            good = self._rows.good(frame)
        else:
            good = self._rows.records_or_fail(frame)
        records, counts = _count(good)
        try:
            write(records, self._reach, self._topic, self._name, chunk_index)
        except Exception as error:
            self._blame(frame, files, error)
            raise
        self.records += int(counts.get["rows"])

    def _blame(self, frame: DataFrame, files: list[str], error: Exception) -> None:
        """Raise `BadRecordError` with an example, if rows that cannot be read are the cause."""
        if isinstance(error, LakebedError) or BAD not in str(error):
            return
        from pyspark.sql import functions as f

        bad = self._rows.bad(frame)
        summary = bad.agg(f.count("value"), f.first("headers"), f.first("value")).collect()[0]
        raise BadRecordError(
            "rows cannot be read: correct them, or give a topic for dead letters",
            rows=summary[0],
            files=len(files),
            file=None if summary[1] is None else bytes(summary[1]["file"]).decode(),
            row=None if summary[2] is None else bytes(summary[2]).decode(errors="replace")[:200],
        ) from error


def _count(frame: DataFrame) -> tuple[DataFrame, Any]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counts = Observation()
    return frame.observe(counts, f.count(f.lit(1)).alias("rows")), counts
