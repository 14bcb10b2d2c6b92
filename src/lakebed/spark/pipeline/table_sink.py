"""Writes rows into tables: every batch is one commit, made once however often it is tried.

A table of `log.derived` is created if it does not exist, and missing columns are added. The table
remembers the writer of a flow with the number of its last batch, so a repeated batch changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lakebed.api.log import Log
from lakebed.errors import InvalidArgumentError, TableChangedError
from lakebed.host.retry import retry
from lakebed.spark.pipeline.spec import Sink, SinkMode
from lakebed.spark.pipeline.topic_sink import compute
from lakebed.spark.types import arrow_schema, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ATTEMPTS: Final = 3


def ready_table(log: Log, sink: Sink, frame: DataFrame) -> None:
    """Create the table of a sink, or add the columns that it lacks."""
    name = str(sink.table)
    _check_columns(sink, frame)
    schema = pa.schema([(field.name, plain(field.type)) for field in arrow_schema(frame.schema)])
    if name not in log.derived.tables():
        more = {} if sink.buckets is None else {"buckets": sink.buckets}
        log.derived.create(name, schema, kind=str(sink.mode), key=sink.key, **more)
        return
    table = log.derived.describe(name)
    if (table.kind, table.key) != (str(sink.mode), sink.key):
        raise InvalidArgumentError(
            "the table is of another kind: write to another one, or drop it first",
            sink=sink.name,
            table=sink.table,
            kind=table.kind,
            key=", ".join(table.key) or "none",
        )
    log.derived.evolve(name, schema)  # refuses a column that the table has with another type


def _check_columns(sink: Sink, frame: DataFrame) -> None:
    named = [*sink.key, *([sink.order] if sink.order else [])]
    missing = [column for column in named if column not in frame.columns]
    if missing:
        raise InvalidArgumentError(
            "the sink names an unknown column",
            sink=sink.name,
            column=", ".join(missing),
            columns=", ".join(frame.columns),
        )
    if sink.mode == SinkMode.HISTORY:
        kind = frame.schema[str(sink.order)].dataType.typeName()
        if kind != "timestamp":
            raise InvalidArgumentError(
                "the order of a history is the time from which a row holds: a TIMESTAMP",
                sink=sink.name,
                order=sink.order,
                type=kind,
            )


def table_writer(
    log: Log, sink: Sink, writer: str, *, stateful: bool
) -> Callable[[DataFrame, int], None]:
    """Return a function that writes a batch of a flow into its table."""

    def write(frame: DataFrame, batch_number: int) -> None:
        # A table that changed is written again, from what it holds then.
        report = retry(
            lambda: _write(log, sink, writer, frame, batch_number),
            TableChangedError,
            attempts_max=_ATTEMPTS,
        )
        if report.duplicate and stateful:
            compute(frame)

    return write


def _write(log: Log, sink: Sink, writer: str, frame: DataFrame, batch_number: int) -> Any:
    from lakebed.spark.tables.appending import append
    from lakebed.spark.tables.merging import merge

    name = str(sink.table)
    if sink.mode == SinkMode.APPEND:
        return append(log, name, frame, writer=writer, number=batch_number)
    return merge(log, name, _changes(frame, sink), writer=writer, number=batch_number)


def _changes(frame: DataFrame, sink: Sink) -> DataFrame:
    """Return rows as changes of their keys."""
    from pyspark.sql import functions as f

    deleted = f.coalesce(f.expr(f"({sink.delete})"), f.lit(False)) if sink.delete else f.lit(False)
    arrival = f.monotonically_increasing_id()
    order = f.struct(f.col(f"`{sink.order}`"), arrival) if sink.order else arrival
    changes = frame.withColumns({"_deleted": deleted, "_order": order})
    if sink.mode == SinkMode.HISTORY:
        changes = changes.withColumn("_time", f.col(f"`{sink.order}`"))
    return changes
