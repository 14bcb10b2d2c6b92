"""A topic as a table of its keys, current or with their history, updated run by run.

A run reads the topic from the table's positions to the log's present end, and commits the changes
with the new positions in one swap. So a run that is killed leaves no visible change, one that is
repeated finds nothing to do, and of two concurrent runs only one can commit.

The record's key is the table's key, or fields of a typed value are. A record without a value
deletes its key. Of the records of a key the one with the highest offset is the latest. Keys move to
other partitions when some are added: records of one key in two partitions are ordered by timestamp.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lakebed.errors import (
    InvalidArgumentError,
    OffsetOutOfRangeError,
    TableChangedError,
    TableNotFoundError,
)
from lakebed.reports.derived import DerivedFile, DerivedFiles, DerivedTable
from lakebed.reports.topics import TopicInfo
from lakebed.spark.tables.bucket import DELETED
from lakebed.spark.tables.history import TIME
from lakebed.spark.tables.merging import apply
from lakebed.spark.tables.reading import open_log
from lakebed.types import Progress, say_nothing

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from lakebed.api.log import Log

_BUCKET_RECORDS: Final = 500_000
_BUCKETS: Final = (4, 512)
_ORDER: Final = ("partition", "offset", "timestamp")
_MOVED: Final = (2, 0, 1)
"""The order of records of a key that are in several partitions: by timestamp first."""


@dataclass(frozen=True)
class MaterialiseReport:
    """What a run did."""

    table: str
    topic: str
    version: int
    records: int = 0
    """Offsets between the old positions and the new ones."""
    inserted: int = 0
    """Rows written, those of updated keys included."""
    removed: int = 0
    """Rows that are not part of the table any more, those of updated keys included."""
    without_key: int = 0
    """Records that have no key, and are no part of the table."""
    ignored_tombstones: int = 0
    """Records without a value, of a table whose key is in the value: they delete nothing."""
    columns_added: int = 0
    created: bool = False


@dataclass(frozen=True)
class _TablePlan:
    """Which fields of a topic become which columns."""

    topic: str
    key: tuple[str, ...]
    own_key: bool
    """Whether the key is in the value, and not the record's key."""
    fields: tuple[str, ...]
    """Fields of the value that become columns; none if the value is one column."""
    schema: pa.Schema


def materialise(
    spark: SparkSession,
    log: Log | str | os.PathLike[str],
    topic: str,
    table: str | None = None,
    *,
    key: str | Sequence[str] | None = None,
    kind: str = "current",
    buckets: int | None = None,
    flatten: bool = True,
    progress: Progress | None = None,
) -> MaterialiseReport:
    """Bring a table up to the present end of a topic, making it if there is none.

    The table is called like the topic, if it is not named. `key` names fields of a typed value;
    without it the record's key is the key, in the column `key`. A typed value becomes a column for
    each field, unless `flatten` is off. `kind` is `current` or `history`.
    """
    if kind not in ("current", "history"):
        raise InvalidArgumentError("kind must be 'current' or 'history'", kind=repr(kind))
    owner = open_log(spark, log)
    tell = progress or say_nothing
    name = table or topic
    existing = _find(owner, name)  # before the topic, so that the topic is never behind the table
    info = owner.describe_topic(topic)
    ends = {part.partition: part.end for part in info.partitions}
    plan = _plan(info, key, flatten=flatten)
    before, created = _table(owner, name, existing, plan, kind, buckets, info)
    made = before.table
    grown = len([column for column in plan.schema.names if column not in made.schema.names])
    if grown:
        before = _same(owner.derived.evolve(name, plan.schema), made.version, before.files)
        made = before.table
    starts = _starts(made, info)
    records = sum(end - starts[partition] for partition, end in ends.items())
    if not records:
        return MaterialiseReport(
            made.name, topic, made.version, columns_added=grown, created=created
        )
    tell("materialising records", 0, records)
    report = _run(spark, owner, before, plan, info, starts, ends, records, grown, created=created)
    tell("materialising records", records, records)
    return report


def _plan(info: TopicInfo, key: str | Sequence[str] | None, *, flatten: bool) -> _TablePlan:
    chosen = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    typed = info.schema is not None
    if chosen and not (typed and flatten):
        raise InvalidArgumentError(
            "only fields of a typed value that becomes columns can be the key", topic=info.name
        )
    if info.schema is None or not flatten:
        value = pa.binary() if info.schema is None else pa.struct(list(info.schema))
        schema = pa.schema([("key", pa.binary()), ("value", value)])
        return _TablePlan(info.name, ("key",), own_key=False, fields=(), schema=schema)
    fields = tuple(info.schema.names)
    if chosen:
        return _TablePlan(info.name, chosen, own_key=True, fields=fields, schema=info.schema)
    name = "record_key" if "key" in (field.lower() for field in fields) else "key"
    schema = pa.schema([pa.field(name, pa.binary()), *info.schema])
    return _TablePlan(info.name, (name,), own_key=False, fields=fields, schema=schema)


def _find(log: Log, name: str) -> DerivedFiles | None:
    try:
        return log.derived.files(name)
    except TableNotFoundError:
        return None


def _same(table: DerivedTable, version: int, files: tuple[DerivedFile, ...]) -> DerivedFiles:
    """Return a table with its files, of a version that must still be the current one."""
    if table.version != version:
        raise TableChangedError(
            "the table was changed concurrently",
            table=table.name,
            expected=version,
            version=table.version,
        )
    return DerivedFiles(table, files)


def _table(
    log: Log,
    name: str,
    files: DerivedFiles | None,
    plan: _TablePlan,
    kind: str,
    buckets: int | None,
    info: TopicInfo,
) -> tuple[DerivedFiles, bool]:
    """Return the table and its files, and whether it was created; raise if it does not fit."""
    created = files is None
    if files is None:
        wanted = buckets or _buckets(info.records)
        made = log.derived.create(name, plan.schema, kind=kind, key=plan.key, buckets=wanted)
        files = _same(made, 0, ())
    table = files.table
    if (table.kind, table.key) != (kind, plan.key) or buckets not in (None, table.buckets):
        raise InvalidArgumentError(
            "the table is of another kind, has another key or another number of buckets: drop it,"
            " or choose another name",
            table=name,
            kind=table.kind,
            key=",".join(table.key),
            buckets=table.buckets,
        )
    return files, created


def _buckets(records: int) -> int:
    low, high = _BUCKETS
    return max(low, min(high, -(-records // _BUCKET_RECORDS)))


def _writer(info: TopicInfo) -> str:
    return f"materialise {info.name} {info.id}"


def _starts(table: DerivedTable, info: TopicInfo) -> dict[int, int]:
    """Return the next offset of each partition; raise if records between were removed."""
    others = [
        writer
        for writer in table.writers
        if writer.startswith(f"materialise {info.name} ") and writer != _writer(info)
    ]
    if others:
        raise InvalidArgumentError(
            "the topic was deleted and created again after the table was created: drop the table",
            table=table.name,
        )
    positions = table.positions.get(info.name, {})
    starts = {}
    for part in info.partitions:
        start = positions.get(part.partition, 0 if positions else part.earliest)
        if start < part.earliest or start > part.end:
            raise OffsetOutOfRangeError(
                "records that the table has not read were removed: drop the table, and create "
                "it again from the remaining records",
                table=table.name,
                topic=info.name,
                partition=part.partition,
                position=start,
                earliest=part.earliest,
                end=part.end,
            )
        starts[part.partition] = start
    return starts


def _run(
    spark: SparkSession,
    log: Log,
    before: DerivedFiles,
    plan: _TablePlan,
    info: TopicInfo,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    records: int,
    grown: int,
    *,
    created: bool,
) -> MaterialiseReport:
    from pyspark.sql import Observation

    from lakebed.spark.batch_reads import read

    table = before.table
    # A partition that was added since is left to the next run: its position is not committed.
    frame = read(spark, plan.topic, log=log, start=starts, until=ends, partitions=sorted(ends))
    counts = Observation()
    changes = _changes(frame, plan, counts, table.kind)
    done = apply(
        log,
        before,
        changes,
        _writer(info),
        sum(ends.values()),
        {plan.topic: dict(ends)},
        _MOVED,
    )
    seen = counts.get
    return MaterialiseReport(
        table=table.name,
        topic=plan.topic,
        version=done.version,
        records=records,
        inserted=done.inserted,
        removed=done.removed,
        without_key=int(seen["keyless"] or 0),
        ignored_tombstones=int(seen["tombstones"] or 0),
        columns_added=grown,
        created=created,
    )


def _changes(frame: DataFrame, plan: _TablePlan, counts: Any, kind: str) -> DataFrame:
    """Return records as changes of the table."""
    from pyspark.sql import functions as f

    value = f.col("value")
    columns: list[Column] = []
    if not plan.own_key:
        columns.append(f.col("key").alias(plan.key[0]))
    if plan.fields:
        columns += [value.getField(name).alias(name) for name in plan.fields]
    else:
        columns.append(value)
    order = f.struct(*_ORDER).alias("_order")
    times = [f.col("timestamp").alias(TIME)] if kind == "history" else []
    changes = frame.select(*columns, value.isNull().alias(DELETED), *times, order)
    missing = f.lit(False)
    for name in plan.key:
        missing = missing | f.col(f"`{name}`").isNull()
    tombstone = f.col(DELETED) & f.lit(plan.own_key)
    counted = changes.observe(
        counts,
        f.sum((missing & ~tombstone).cast("long")).alias("keyless"),
        f.sum(tombstone.cast("long")).alias("tombstones"),
    )
    return counted.where(~missing)
