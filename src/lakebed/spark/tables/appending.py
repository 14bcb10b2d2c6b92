"""Rows into a table without a key, in one commit: each task writes its rows as files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lakebed.errors import InvalidArgumentError, TableChangedError
from lakebed.host.retry import retry
from lakebed.host.table_files import TableFiles
from lakebed.reports.derived import DATA, DerivedTable, Positions
from lakebed.spark.stores import table_files
from lakebed.spark.tables.bucket import INSERTED, REPORT
from lakebed.spark.tables.merging import TableReport, commit_report, hit_written
from lakebed.spark.tables.rows import conform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakebed.api.log import Log

_ATTEMPTS: Final = 5
"""How often a commit is tried while others change the table."""
_FILE_BYTES: Final = 256 << 20
"""The size of the rows of one file, in memory, about."""


def append(
    log: Log,
    name: str,
    rows: DataFrame,
    *,
    writer: str,
    number: int,
    positions: Positions | None = None,
) -> TableReport:
    """Add rows to a table without a key, once for `writer` and `number`."""
    table = log.derived.describe(name)
    if table.key:
        raise InvalidArgumentError("a table with a key takes changes, not rows", table=name)
    unknown = sorted(set(rows.columns).difference(table.schema.names))
    if unknown:
        raise InvalidArgumentError(
            "the table does not have this column", table=name, column=unknown[0]
        )
    if number <= table.writers.get(writer, -1):
        return TableReport(name, table.version, duplicate=True)
    task = _Task(table, log.derived.place(name), table_files(log.derived))
    told = _run(rows, task)
    hit_written()
    return commit_files(log, table, told, writer, number, positions)


def commit_files(
    log: Log,
    table: DerivedTable,
    told: pa.Table,
    writer: str,
    commit_number: int,
    positions: Positions | None,
) -> TableReport:
    """Commit files with new rows, which are valid whatever else has changed in the table.

    A table that has changed in the meantime does not invalidate them; a table that was created
    again does.
    """

    def look_again(error: TableChangedError) -> None:
        nonlocal table
        now = log.derived.describe(table.name)
        if now.location != table.location:
            raise error
        table = now

    return retry(
        lambda: commit_report(log, table, told, writer, commit_number, positions),
        TableChangedError,
        attempts_max=_ATTEMPTS,
        on_error=look_again,
    )


class _Task:
    """Writes the rows of a partition of a data frame. It can be pickled."""

    def __init__(self, table: DerivedTable, folder: str, store: TableFiles) -> None:
        self._schema = table.schema
        self._folder = folder
        self._store = store

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write rows, and yield a report of each file."""
        for rows in _portions(batches):
            table = conform(rows, self._schema)
            location = f"{self._folder}/{uuid.uuid4().hex}.parquet"
            done = self._store.write(location, self._schema, [table])
            told = [(DATA, done.location, done.rows, done.bytes), (INSERTED, "", done.rows, 0)]
            columns = [list(column) for column in zip(*told, strict=True)]
            yield from pa.table([[0, 0], *columns], schema=REPORT).to_batches()


def _portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(part.nbytes for part in held) >= _FILE_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _run(rows: DataFrame, task: _Task) -> pa.Table:
    from pyspark.sql.pandas.types import from_arrow_schema

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    return rows.mapInArrow(write, from_arrow_schema(REPORT)).toArrow()
