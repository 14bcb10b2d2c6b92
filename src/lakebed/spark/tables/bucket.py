"""What an executor does with one bucket of a table: changes in, files out.

Old rows of changed keys are not rewritten. Their positions go into the bucket's one file of deleted
positions, and the new rows into a new file, with those of files that are hardly larger. So a change
costs what changed and a look at the keys. Once too many rows are gone the bucket is folded: all
that lives becomes one file. Which buckets are folded is decided before (`folding.py`).

A bucket never depends on another, files get names of their own, and nothing is removed: the task
may run twice, and what it writes counts only when it is committed.
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
from lakebed.spark.tables.rows import RowOrder, conformed, found, latest, sorted_by_key, without

REPORT: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("what", pa.string()),
        ("location", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""What a task tells the driver: files `data` and `deletes` that it wrote, those to be `removed`,
rows `inserted` and `deleted`, and in `location` what it `refused`."""

REMOVED, INSERTED, GONE, REFUSED = "removed", "inserted", "deleted", "refused"
DELETED: Final = "_deleted"
_ABSORBED: Final = 4
"""A file with at most so many times the rows that come is written again with them: a bucket that
changes often has few files, and a row is written a few times before it is in a large one."""
ORDER: Final = "_order_"
"""With this begin the columns that say which change of a key is the latest."""


@dataclass(frozen=True)
class Task:
    """What executors need to know to change any bucket of a table."""

    table: DerivedTable
    files: Mapping[int, tuple[DerivedFile, ...]]
    place: str
    store: TableFiles
    order: RowOrder
    folded: frozenset[int]

    def run(self, bucket: int, changes: pa.Table) -> pa.Table:
        """Apply the changes of a bucket; return the report."""
        try:
            changes = keyed(changes, self.table)
        except pa.ArrowException:
            return _report(bucket, [(REFUSED, "a change has a key of another type", 0, 0)])
        reason = self._refusal(changes)
        if reason:
            return _report(bucket, [(REFUSED, reason, 0, 0)])
        state = _Bucket(self, bucket)
        if self.table.kind == "history":
            rows = versions(state, changes)
        else:
            last = latest(changes, self.table.key, self.order)
            state.remove(last)
            rows = last.filter(pa.compute.invert(last.column(DELETED)))
        return _report(bucket, state.finish(rows))

    def _refusal(self, changes: pa.Table) -> str:
        """Return why changes cannot be applied; nothing if they can."""
        if any(changes.column(name).null_count for name in self.table.key):
            return "a change has no key"
        # Without them a version has no place among the others; the first part of the order leads.
        needed = (TIME, self.order.columns[0]) if self.table.kind == "history" else ()
        if any(changes.column(name).null_count for name in needed):
            return "a change of a history has no order or no time"
        return ""


def keyed(changes: pa.Table, table: DerivedTable) -> pa.Table:
    """Return the changes with their keys in the table's own types."""
    for name in table.key:
        index = changes.schema.get_field_index(name)
        column = changes.column(index).cast(table.schema.field(name).type)
        changes = changes.set_column(index, name, column)
    return changes


def deleted_positions(files: Iterable[DerivedFile], store: TableFiles) -> dict[str, Any]:
    """Return the deleted positions of each file of a bucket, ascending."""
    positions: dict[str, Any] = {}
    for each in files:
        if each.content != DELETES:
            continue
        rows = store.read(each.location)
        paths = rows.column("file_path").combine_chunks().dictionary_encode()
        codes, numbers = paths.indices.to_numpy(), rows.column("pos").to_numpy()
        for code, place in enumerate(paths.dictionary.to_pylist()):
            positions[place] = _joined(positions.get(place), numbers[codes == code])
    return positions


def living_rows(
    files: Sequence[DerivedFile], store: TableFiles, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Return the rows of a bucket that are not deleted, file by file."""
    gone = deleted_positions(files, store)
    for each in files:
        if each.content == DATA:
            rows = conformed(store.read(each.location), schema)
            yield without(rows, gone.get(each.location, ()))


class _Bucket:
    """A bucket while it is changed. One thread."""

    def __init__(self, task: Task, bucket: int) -> None:
        self.task = task
        self.number = bucket
        files = task.files.get(bucket, ())
        self.data = [each for each in files if each.content == DATA]
        self._deletes = [each for each in files if each.content == DELETES]
        self._before = deleted_positions(files, task.store)
        self._gone: dict[str, Any] = {}

    def remove(self, wanted: pa.Table, also: str = "") -> None:
        """Mark the living rows that have one of these keys, and in `also` the value true."""
        key = list(self.task.table.key)
        columns = [*key, also] if also else key
        for file in self.data:
            rows = conformed(self.task.store.read(file.location, columns), self._schema(columns))
            numbers = found(rows, wanted, key)
            if also:
                flags = rows.column(also).fill_null(False).to_numpy()
                numbers = numbers[flags[numbers]]
            numbers = np.setdiff1d(numbers, self._before.get(file.location, ()), assume_unique=True)
            if len(numbers):
                self._gone[file.location] = numbers

    def removed_rows(self) -> pa.Table:
        """Return the rows that were marked."""
        schema = self.task.table.schema
        parts = [
            conformed(self.task.store.read(place), schema).take(pa.array(numbers))
            for place, numbers in self._gone.items()
        ]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def _schema(self, columns: list[str]) -> pa.Schema:
        return pa.schema([self.task.table.schema.field(name) for name in columns])

    # Writing

    def finish(self, rows: pa.Table) -> list[tuple[str, str, int, int]]:
        """Write what has changed; return what is to be told of it."""
        removed = sum(len(each) for each in self._gone.values())
        told = [(INSERTED, "", len(rows), 0), (GONE, "", removed, 0)]
        constant = pa.array(np.full(len(rows), self.number, np.int32))
        if BUCKET in rows.column_names:
            rows = rows.drop_columns([BUCKET])
        rows = conformed(rows.append_column(BUCKET, constant), self.task.table.schema)
        if self.number in self.task.folded and self.data:
            return told + self._fold(rows)
        return told + self._change(rows)

    def _fold(self, rows: pa.Table) -> list[tuple[str, str, int, int]]:
        """Write everything that lives as one file, in place of all that there was."""
        living = [self._living(file) for file in self.data]
        told = self._rows(pa.concat_tables([*living, rows]))
        return told + [(REMOVED, each.location, 0, 0) for each in (*self.data, *self._deletes)]

    def _living(self, file: DerivedFile) -> pa.Table:
        rows = conformed(self.task.store.read(file.location), self.task.table.schema)
        numbers = _joined(self._before.get(file.location), self._gone.get(file.location))
        return without(rows, numbers)

    def _change(self, rows: pa.Table) -> list[tuple[str, str, int, int]]:
        """Write new rows with those of small files, and the positions that are gone elsewhere."""
        small = [each for each in self.data if each.rows <= _ABSORBED * len(rows)]
        told = self._rows(pa.concat_tables([*(self._living(each) for each in small), rows]))
        positions = {
            each.location: _joined(self._before.get(each.location), self._gone.get(each.location))
            for each in self.data
            if each not in small
        }
        # A file of which no row lives goes, and its positions with it.
        gone = [each.location for each in small]
        gone += [
            each.location
            for each in self.data
            if each not in small and len(positions[each.location]) >= each.rows
        ]
        told += [(REMOVED, place, 0, 0) for place in gone]
        if not self._gone and self._before.keys().isdisjoint(gone):
            return told
        told += [(REMOVED, each.location, 0, 0) for each in self._deletes]
        living = {place: each for place, each in positions.items() if place not in gone}
        return told + self._write_positions(living)

    def _write_positions(self, positions: Mapping[str, Any]) -> list[tuple[str, str, int, int]]:
        parts = [(place, positions[place]) for place in sorted(positions) if len(positions[place])]
        if not parts:
            return []
        paths = pa.DictionaryArray.from_arrays(
            pa.array(np.repeat(np.arange(len(parts), dtype=np.int32), [len(n) for _, n in parts])),
            pa.array([place for place, _ in parts]),
        )
        numbers = pa.array(np.concatenate([each for _, each in parts]).astype(np.int64))
        table = pa.table([paths.cast(pa.string()), numbers], schema=DELETES_SCHEMA)
        return [_told(DELETES, self._write("deletes", DELETES_SCHEMA, table))]

    def _rows(self, rows: pa.Table) -> list[tuple[str, str, int, int]]:
        if not len(rows):
            return []
        key = self.task.table.key
        table = sorted_by_key(rows, key)
        return [_told(DATA, self._write("rows", self.task.table.schema, table))]

    def _write(self, what: str, schema: pa.Schema, table: pa.Table) -> WrittenFile:
        name = f"{self.number:05d}-{what}-{uuid.uuid4().hex}.parquet"
        place = f"{self.task.place}/{name}"
        plain = (*self.task.table.key, "pos")
        return self.task.store.write(place, schema, [table], plain)


def _joined(one: Any, other: Any) -> Any:
    """Return the union of two ascending arrays of numbers, of which either may be missing."""
    if one is None or other is None:
        return np.zeros(0, np.int64) if one is other else (one if other is None else other)
    return np.union1d(one, other)


def _told(what: str, written: WrittenFile) -> tuple[str, str, int, int]:
    return (what, written.location, written.rows, written.bytes)


def _report(bucket: int, told: list[tuple[str, str, int, int]]) -> pa.Table:
    columns = [list(each) for each in zip(*told, strict=True)]
    return pa.table([[bucket] * len(told), *columns], schema=REPORT)
