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
from lakebed.spark.tables.folding import by_bucket, folded
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
    number: int,
    positions: Positions | None,
    moved: Sequence[int] = (),
) -> TableReport:
    """Apply changes to a table that is as it was at `before`.

    `moved` are the parts of `_order`, in their order, for keys whose changes differ in the first.
    """
    table = before.table
    prepared, order = _prepared(changes, table)
    files = by_bucket(before.files)
    task = Task(
        table=table,
        files=files,
        place=f"{table.location}/data/{uuid.uuid4().hex}",
        store=table_files(log.derived),
        order=RowOrder(order, tuple(order[each] for each in moved)),
        folded=folded(files, table.buckets),
    )
    told = _run(prepared, task)
    written()
    return committed(log, table, told, writer, number, positions)


def written() -> None:
    """Report that the files of a run are there, and not committed yet."""
    _WRITTEN.hit()


def _prepared(changes: DataFrame, table: DerivedTable) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the changes with their bucket, and the columns that order them."""
    from pyspark.sql import functions as f

    needed = ["_order", DELETED, *([TIME] if table.kind == "history" else [])]
    _check_columns(changes, table, needed)
    order = _ordering(changes)
    key = _keys(table)
    columns = [
        key.get(each, f.col(_quoted(each)))
        for each in wanted_columns(table)
        if each in changes.columns
    ]
    bucket = f.pmod(f.xxhash64(*key.values()), f.lit(table.buckets)).cast("int").alias(BUCKET)
    deleted = f.coalesce(f.col(DELETED), f.lit(False)).alias(DELETED)
    times = [f.col(TIME)] if table.kind == "history" else []
    chosen = changes.select(*columns, bucket, deleted, *times, *order.values())
    return chosen, tuple(order)


def _keys(table: DerivedTable) -> dict[str, Column]:
    """Return the columns of the key in the table's own types: a hash differs from type to type."""
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type

    kinds = {
        each: from_arrow_type(table.schema.field(each).type, prefer_timestamp_ntz=True)
        for each in table.key
    }
    return {each: f.col(_quoted(each)).cast(kind).alias(each) for each, kind in kinds.items()}


def wanted_columns(table: DerivedTable) -> list[str]:
    """Return the columns that rows of a table have when they come in."""
    technical = _TECHNICAL if table.kind == "history" else {BUCKET}
    return [each for each in table.schema.names if each not in technical]


def _check_columns(changes: DataFrame, table: DerivedTable, needed: Sequence[str]) -> None:
    missing = [each for each in (*table.key, *needed) if each not in changes.columns]
    unknown = set(changes.columns).difference(wanted_columns(table), needed)
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
        parts = [f"_order.{_quoted(each)}" for each in kind.names]
    return {
        f"{ORDER}{index}": f.col(part).alias(f"{ORDER}{index}") for index, part in enumerate(parts)
    }


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _run(prepared: DataFrame, task: Task) -> pa.Table:
    from pyspark.sql.pandas.types import from_arrow_schema

    def apply_bucket(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        return task.run(int(key[0].as_py()), rows)

    groups = prepared.groupBy(BUCKET).applyInArrow(apply_bucket, from_arrow_schema(REPORT))
    return groups.toArrow()


def committed(
    log: Log,
    table: DerivedTable,
    told: pa.Table,
    writer: str,
    number: int,
    positions: Positions | None,
) -> TableReport:
    """Commit what tasks have reported."""
    rows: list[Mapping[str, Any]] = told.to_pylist()
    refused = [each for each in rows if each["what"] == REFUSED]
    if refused:
        raise InvalidArgumentError(
            refused[0]["location"] + ": leave such rows out", table=table.name
        )
    added = [
        DerivedFile(each["location"], each["bucket"], each["what"], each["rows"], each["bytes"])
        for each in rows
        if each["what"] in (DATA, DELETES)
    ]
    removed = [each["location"] for each in rows if each["what"] == REMOVED]
    done = log.derived.commit(
        table.name,
        writer=writer,
        number=number,
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
        inserted=sum(each["rows"] for each in rows if each["what"] == INSERTED),
        removed=sum(each["rows"] for each in rows if each["what"] == GONE),
        files_added=len(added),
        files_removed=len(removed),
        bytes_written=sum(each.bytes for each in added),
    )
