"""Rows into tables: every batch one commit, made once however often it is tried.

A table is one of `log.derived`: made if it is missing, given the columns that it lacks. The writer
of a flow is remembered by the table with the number of its last batch, so a batch that is repeated
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lakebed.api.log import Log
from lakebed.errors import InvalidArgumentError, TableChangedError
from lakebed.host.retry import retry
from lakebed.spark.pipeline.spec import Mode, Sink
from lakebed.spark.pipeline.topic_sink import compute
from lakebed.spark.types import arrow_schema, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ATTEMPTS: Final = 3


def ready_table(log: Log, sink: Sink, frame: DataFrame) -> None:
    """Make the table of a sink, or give it the columns that it lacks."""
    name = str(sink.table)
    _check_columns(sink, frame)
    schema = pa.schema([(each.name, plain(each.type)) for each in arrow_schema(frame.schema)])
    if name not in log.derived.tables():
        more = {} if sink.buckets is None else {"buckets": sink.buckets}
        log.derived.create(name, schema, kind=str(sink.mode), key=sink.key, **more)
        return
    found = log.derived.describe(name)
    if (found.kind, found.key) != (str(sink.mode), sink.key):
        raise InvalidArgumentError(
            "the table is of another kind: write to another one, or drop it first",
            sink=sink.name,
            table=sink.table,
            kind=found.kind,
            key=", ".join(found.key) or "none",
        )
    log.derived.evolve(name, schema)  # refuses a column that the table has with another type


def _check_columns(sink: Sink, frame: DataFrame) -> None:
    named = [*sink.key, *([sink.order] if sink.order else [])]
    missing = [each for each in named if each not in frame.columns]
    if missing:
        raise InvalidArgumentError(
            "the sink names an unknown column",
            sink=sink.name,
            column=", ".join(missing),
            columns=", ".join(frame.columns),
        )
    if sink.mode == Mode.HISTORY:
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
    """Return what writes a batch of a flow into its table."""

    def write(frame: DataFrame, number: int) -> None:
        # A table that changed is written again, from what it holds then.
        report = retry(
            lambda: _write(log, sink, writer, frame, number),
            TableChangedError,
            attempts_max=_ATTEMPTS,
        )
        if report.duplicate and stateful:
            compute(frame)

    return write


def _write(log: Log, sink: Sink, writer: str, frame: DataFrame, number: int) -> Any:
    from lakebed.spark.tables.appending import append
    from lakebed.spark.tables.merging import merge

    name = str(sink.table)
    if sink.mode == Mode.APPEND:
        return append(log, name, frame, writer=writer, number=number)
    return merge(log, name, _changes(frame, sink), writer=writer, number=number)


def _changes(frame: DataFrame, sink: Sink) -> DataFrame:
    """Return rows as changes of their keys."""
    from pyspark.sql import functions as f

    deleted = f.coalesce(f.expr(f"({sink.delete})"), f.lit(False)) if sink.delete else f.lit(False)
    arrival = f.monotonically_increasing_id()
    order = f.struct(f.col(f"`{sink.order}`"), arrival) if sink.order else arrival
    changes = frame.withColumns({"_deleted": deleted, "_order": order})
    if sink.mode == Mode.HISTORY:
        changes = changes.withColumn("_time", f.col(f"`{sink.order}`"))
    return changes
