"""What an executor does with one bucket of a table: changes in, files out.

Old rows of changed keys are not rewritten. Their positions go into the bucket's one file of deleted
positions, and the new rows into a new file, with those of files that are hardly larger. So a change
costs what changed and a read of the keys. Once too many rows are deleted the bucket is folded: all
live rows are rewritten as one file. Which buckets are folded is decided before (`folding.py`).

A bucket never depends on another, files get unique names, and nothing is removed: the task may run
twice, and what it writes takes effect only when it is committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lakebed.host.table_files import TableFiles, WrittenFile
from lakebed.iceberg.derived_files import DELETES_SCHEMA
from lakebed.reports.derived import BUCKET, DATA, DELETES, DerivedFile, DerivedTable
from lakebed.spark.tables.history import TIME, versions
from lakebed.spark.tables.rows import RowOrder, conform, latest, matching_rows, sort_by_key, without

REPORT: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("what", pa.string()),
        ("location", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""What a task reports to the driver: files `data` and `deletes` that it wrote, files to be
`removed`, rows `inserted` and `deleted`, and in `location` what it `refused`."""

REMOVED, INSERTED, GONE, REFUSED = "removed", "inserted", "deleted", "refused"
DELETED: Final = "_deleted"
_ABSORBED: Final = 4
"""A file with at most so many times the rows that come is written again with them: a bucket that
changes often has few files, and a row is written a few times before it is in a large one."""
ORDER: Final = "_order_"
"""The prefix of columns that say which change of a key is the latest."""


@dataclass(frozen=True)
class Task:
    """What executors need to change any bucket of a table."""

    table: DerivedTable
    files: Mapping[int, tuple[DerivedFile, ...]]
    folder: str
    store: TableFiles
    order: RowOrder
    folded: frozenset[int]

    def run(self, bucket: int, changes: pa.Table) -> pa.Table:
        """Apply the changes of a bucket; return the report."""
        try:
            changes = cast_keys(changes, self.table)
        except pa.ArrowException:
            return _report(bucket, [(REFUSED, "a change has a key of another type", 0, 0)])
        reason = self._refusal(changes)
        if reason:
            return _report(bucket, [(REFUSED, reason, 0, 0)])
        state = BucketChange(self, bucket)
        if self.table.kind == "history":
            rows = versions(state, changes)
        else:
            last = latest(changes, self.table.key, self.order)
            state.remove(last)
            rows = last.filter(pa.compute.invert(last.column(DELETED)))
        return _report(bucket, state.finish(rows))

    def _refusal(self, changes: pa.Table) -> str:
        """Return why changes cannot be applied; empty if they can."""
        if any(changes.column(name).null_count for name in self.table.key):
            return "a change has no key"
        # Without them a version has no position among others; the first part of the order leads.
        needed = (TIME, self.order.columns[0]) if self.table.kind == "history" else ()
        if any(changes.column(name).null_count for name in needed):
            return "a change of a history has no order or no time"
        return ""


def cast_keys(changes: pa.Table, table: DerivedTable) -> pa.Table:
    """Return the changes with their keys cast to the table's types."""
    for name in table.key:
        index = changes.schema.get_field_index(name)
        column = changes.column(index).cast(table.schema.field(name).type)
        changes = changes.set_column(index, name, column)
    return changes


def read_deleted_positions(files: Iterable[DerivedFile], store: TableFiles) -> dict[str, Any]:
    """Return the deleted positions of each file of a bucket, ascending."""
    positions: dict[str, Any] = {}
    for file in files:
        if file.content != DELETES:
            continue
        rows = store.read(file.location)
        paths = rows.column("file_path").combine_chunks().dictionary_encode()
        codes, numbers = paths.indices.to_numpy(), rows.column("pos").to_numpy()
        for code, location in enumerate(paths.dictionary.to_pylist()):
            positions[location] = _union(positions.get(location), numbers[codes == code])
    return positions


def living_rows(
    files: Sequence[DerivedFile], store: TableFiles, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the rows of a bucket that are not deleted, file by file."""
    gone = read_deleted_positions(files, store)
    for file in files:
        if file.content == DATA:
            rows = conform(store.read(file.location), schema)
            yield without(rows, gone.get(file.location, ()))


class BucketChange:
    """A bucket while it is changed. One thread."""

    def __init__(self, task: Task, bucket: int) -> None:
        self.task = task
        self.number = bucket
        files = task.files.get(bucket, ())
        self.data = [file for file in files if file.content == DATA]
        self._deletes = [file for file in files if file.content == DELETES]
        self._before = read_deleted_positions(files, task.store)
        self._gone: dict[str, Any] = {}

    def remove(self, wanted: pa.Table, also: str = "") -> None:
        """Mark the live rows that have one of these keys, and true in the column `also`."""
        key = list(self.task.table.key)
        columns = [*key, also] if also else key
        for file in self.data:
            rows = conform(self.task.store.read(file.location, columns), self._schema(columns))
            numbers = matching_rows(rows, wanted, key)
            if also:
                flags = rows.column(also).fill_null(False).to_numpy()
                numbers = numbers[flags[numbers]]
            numbers = np.setdiff1d(numbers, self._before.get(file.location, ()), assume_unique=True)
            if len(numbers):
                self._gone[file.location] = numbers

    def read_removed_rows(self) -> pa.Table:
        """Return the rows that were marked."""
        schema = self.task.table.schema
        parts = [
            conform(self.task.store.read(location), schema).take(pa.array(numbers))
            for location, numbers in self._gone.items()
        ]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def _schema(self, columns: list[str]) -> pa.Schema:
        return pa.schema([self.task.table.schema.field(name) for name in columns])

    # Writing

    def finish(self, rows: pa.Table) -> list[tuple[str, str, int, int]]:
        """Write what has changed; return the rows of the report."""
        removed = sum(len(positions) for positions in self._gone.values())
        told = [(INSERTED, "", len(rows), 0), (GONE, "", removed, 0)]
        constant = pa.array(np.full(len(rows), self.number, np.int32))
        if BUCKET in rows.column_names:
            rows = rows.drop_columns([BUCKET])
        rows = conform(rows.append_column(BUCKET, constant), self.task.table.schema)
        if self.number in self.task.folded and self.data:
            return told + self._fold(rows)
        return told + self._change(rows)

    def _fold(self, rows: pa.Table) -> list[tuple[str, str, int, int]]:
        """Write all live rows as one file, in place of all files."""
        living = [self._living(file) for file in self.data]
        told = self._rows(pa.concat_tables([*living, rows]))
        return told + [(REMOVED, file.location, 0, 0) for file in (*self.data, *self._deletes)]

    def _living(self, file: DerivedFile) -> pa.Table:
        rows = conform(self.task.store.read(file.location), self.task.table.schema)
        numbers = _union(self._before.get(file.location), self._gone.get(file.location))
        return without(rows, numbers)

    def _change(self, rows: pa.Table) -> list[tuple[str, str, int, int]]:
        """Write new rows with those of small files, and the positions deleted in other files."""
        small = [file for file in self.data if file.rows <= _ABSORBED * len(rows)]
        told = self._rows(pa.concat_tables([*(self._living(file) for file in small), rows]))
        positions = {
            file.location: _union(self._before.get(file.location), self._gone.get(file.location))
            for file in self.data
            if file not in small
        }
        # A file without live rows is removed, and its positions with it.
        gone = [file.location for file in small]
        gone += [
            file.location
            for file in self.data
            if file not in small and len(positions[file.location]) >= file.rows
        ]
        told += [(REMOVED, location, 0, 0) for location in gone]
        if not self._gone and self._before.keys().isdisjoint(gone):
            return told
        told += [(REMOVED, file.location, 0, 0) for file in self._deletes]
        living = {
            location: deleted for location, deleted in positions.items() if location not in gone
        }
        return told + self._write_positions(living)

    def _write_positions(self, positions: Mapping[str, Any]) -> list[tuple[str, str, int, int]]:
        parts = [
            (location, positions[location])
            for location in sorted(positions)
            if len(positions[location])
        ]
        if not parts:
            return []
        paths = pa.DictionaryArray.from_arrays(
            pa.array(np.repeat(np.arange(len(parts), dtype=np.int32), [len(n) for _, n in parts])),
            pa.array([location for location, _ in parts]),
        )
        numbers = pa.array(np.concatenate([deleted for _, deleted in parts]).astype(np.int64))
        table = pa.table([paths.cast(pa.string()), numbers], schema=DELETES_SCHEMA)
        return [_report_row(DELETES, self._write("deletes", DELETES_SCHEMA, table))]

    def _rows(self, rows: pa.Table) -> list[tuple[str, str, int, int]]:
        if not len(rows):
            return []
        key = self.task.table.key
        table = sort_by_key(rows, key)
        return [_report_row(DATA, self._write("rows", self.task.table.schema, table))]

    def _write(self, what: str, schema: pa.Schema, table: pa.Table) -> WrittenFile:
        name = f"{self.number:05d}-{what}-{uuid.uuid4().hex}.parquet"
        location = f"{self.task.folder}/{name}"
        plain = (*self.task.table.key, "pos")
        return self.task.store.write(location, schema, [table], plain)


def _union(one: Any, other: Any) -> Any:
    """Return the union of two ascending arrays of numbers, either of which may be None."""
    if one is None or other is None:
        return np.zeros(0, np.int64) if one is other else (one if other is None else other)
    return np.union1d(one, other)


def _report_row(what: str, written: WrittenFile) -> tuple[str, str, int, int]:
    return (what, written.location, written.rows, written.bytes)


def _report(bucket: int, told: list[tuple[str, str, int, int]]) -> pa.Table:
    columns = [list(column) for column in zip(*told, strict=True)]
    return pa.table([[bucket] * len(told), *columns], schema=REPORT)
