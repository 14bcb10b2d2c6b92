"""Changes of keys into a current or a history table, in one Spark stage and one commit.

Changes have the columns of the table, `_deleted` (boolean), `_order` (a number, a time, or a struct
of them: which change of a key is later) and, for a history, `_time`. They are brought together by
bucket; `bucket.py` does the rest, and the driver commits what the tasks report.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lakebed.errors import InvalidArgumentError
from lakebed.host import failpoints
from lakebed.reports.derived import (
    BUCKET,
    DATA,
    DELETES,
    IS_CURRENT,
    VALID_FROM,
    VALID_TO,
    DerivedFile,
    DerivedFiles,
    DerivedTable,
    Positions,
)
from lakebed.spark.stores import table_files
from lakebed.spark.tables.bucket import (
    DELETED,
    GONE,
    INSERTED,
    ORDER,
    REFUSED,
    REMOVED,
    REPORT,
    Task,
)
from lakebed.spark.tables.folding import buckets_to_fold, by_bucket
from lakebed.spark.tables.history import TIME
from lakebed.spark.tables.rows import RowOrder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lakebed.api.log import Log

_TECHNICAL: Final = frozenset([BUCKET, VALID_FROM, VALID_TO, IS_CURRENT])

_WRITTEN = failpoints.define("spark.tables.written")
_COMMITTED = failpoints.define("spark.tables.committed")


@dataclass(frozen=True)
class TableReport:
    """What a run did to a table."""

    table: str
    version: int
    duplicate: bool = False
    """The writer had committed this number before; nothing was done."""
    inserted: int = 0
    """Rows written for changes, those of updated keys included."""
    removed: int = 0
    """Rows that are not part of the table any more, those of updated keys included."""
    files_added: int = 0
    files_removed: int = 0
    bytes_written: int = 0


def merge(
    log: Log,
    name: str,
    changes: DataFrame,
    *,
    writer: str,
    number: int,
    positions: Positions | None = None,
) -> TableReport:
    """Apply changes to a current or history table, once for `writer` and `number`.

    Of the changes of a key the latest wins (in a history all become versions): a new row, another
    one in place of the old, or none if it is `_deleted`.
    """
    before = log.derived.files(name)
    table = before.table
    if not table.key:
        raise InvalidArgumentError("a table without a key takes rows, not changes", table=name)
    if number <= table.writers.get(writer, -1):
        return TableReport(name, table.version, duplicate=True)
    return apply(log, before, changes, writer, number, positions)


def apply(
    log: Log,
    before: DerivedFiles,
    changes: DataFrame,
    writer: str,
    commit_number: int,
    positions: Positions | None,
    moved: Sequence[int] = (),
) -> TableReport:
    """Apply changes to a table whose state is `before`.

    `moved` are the parts of `_order`, in their order, for keys whose changes differ in the first.

    Raises:
        TableChangedError: the table has changed since.
    """
    table = before.table
    prepared, order = _prepare(changes, table)
    files = by_bucket(before.files)
    task = Task(
        table=table,
        files=files,
        folder=f"{table.location}/data/{uuid.uuid4().hex}",
        store=table_files(log.derived),
        order=RowOrder(order, tuple(order[index] for index in moved)),
        folded=buckets_to_fold(files, table.buckets),
    )
    told = _run(prepared, task)
    hit_written()
    return commit_report(log, table, told, writer, commit_number, positions)


def hit_written() -> None:
    """Hit the failpoint: the files of a run are written, and not committed yet."""
    _WRITTEN.hit()


def _prepare(changes: DataFrame, table: DerivedTable) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the changes with their bucket, and the columns that order them."""
    from pyspark.sql import functions as f

    needed = ["_order", DELETED, *([TIME] if table.kind == "history" else [])]
    _check_columns(changes, table, needed)
    order = _ordering(changes)
    key = _keys(table)
    columns = [
        key.get(name, f.col(_quote(name)))
        for name in input_columns(table)
        if name in changes.columns
    ]
    bucket = f.pmod(f.xxhash64(*key.values()), f.lit(table.buckets)).cast("int").alias(BUCKET)
    deleted = f.coalesce(f.col(DELETED), f.lit(False)).alias(DELETED)
    times = [f.col(TIME)] if table.kind == "history" else []
    chosen = changes.select(*columns, bucket, deleted, *times, *order.values())
    return chosen, tuple(order)


def _keys(table: DerivedTable) -> dict[str, Column]:
    """Return the columns of the key in the table's types: a hash differs from type to type."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type

    kinds = {
        name: from_arrow_type(table.schema.field(name).type, prefer_timestamp_ntz=True)
        for name in table.key
    }
    return {name: f.col(_quote(name)).cast(kind).alias(name) for name, kind in kinds.items()}


def input_columns(table: DerivedTable) -> list[str]:
    """Return the columns of rows that a caller passes in."""
    technical = _TECHNICAL if table.kind == "history" else {BUCKET}
    return [name for name in table.schema.names if name not in technical]


def _check_columns(changes: DataFrame, table: DerivedTable, needed: Sequence[str]) -> None:
    missing = [name for name in (*table.key, *needed) if name not in changes.columns]
    unknown = set(changes.columns).difference(input_columns(table), needed)
    if missing or unknown:
        raise InvalidArgumentError(
            "the changes do not have the table's columns",
            table=table.name,
            missing=",".join(missing) or "none",
            unknown=",".join(sorted(unknown)) or "none",
        )


def _ordering(changes: DataFrame) -> dict[str, Column]:
    """Return the parts of `_order` as columns that Arrow can sort by."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    kind = changes.schema["_order"].dataType
    parts = ["_order"]
    if isinstance(kind, StructType):
        parts = [f"_order.{_quote(name)}" for name in kind.names]
    return {
        f"{ORDER}{index}": f.col(part).alias(f"{ORDER}{index}") for index, part in enumerate(parts)
    }


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _run(prepared: DataFrame, task: Task) -> pa.Table:
    from pyspark.sql.pandas.types import from_arrow_schema

    def apply_bucket(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        return task.run(int(key[0].as_py()), rows)

    groups = prepared.groupBy(BUCKET).applyInArrow(apply_bucket, from_arrow_schema(REPORT))
    return groups.toArrow()


def commit_report(
    log: Log,
    table: DerivedTable,
    told: pa.Table,
    writer: str,
    commit_number: int,
    positions: Positions | None,
) -> TableReport:
    """Commit the files that tasks have reported, once for `writer` and `commit_number`."""
    rows: list[Mapping[str, Any]] = told.to_pylist()
    refused = [row for row in rows if row["what"] == REFUSED]
    if refused:
        raise InvalidArgumentError(
            refused[0]["location"] + ": leave such rows out", table=table.name
        )
    added = [
        DerivedFile(row["location"], row["bucket"], row["what"], row["rows"], row["bytes"])
        for row in rows
        if row["what"] in (DATA, DELETES)
    ]
    removed = [row["location"] for row in rows if row["what"] == REMOVED]
    done = log.derived.commit(
        table.name,
        writer=writer,
        number=commit_number,
        added=added,
        removed=removed,
        positions=positions,
        expected=table.version,
    )
    _COMMITTED.hit()
    if done.duplicate:
        return TableReport(table.name, done.version, duplicate=True)
    return TableReport(
        table=table.name,
        version=done.version,
        inserted=sum(row["rows"] for row in rows if row["what"] == INSERTED),
        removed=sum(row["rows"] for row in rows if row["what"] == GONE),
        files_added=len(added),
        files_removed=len(removed),
        bytes_written=sum(file.bytes for file in added),
    )
