"""Batch reads by Spark's own Parquet reader: sealed files natively, the hot tail beside them.

The log says which files hold a range and what is in none yet. Spark reads the files with its
vectorised reader, prunes columns and row groups as for any Parquet file, and gets the rest through
`format("lakebed")`. Files that Spark cannot open (an object store that it has no library for) are
read that way too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lakebed.client.config import ClientConfig
from lakebed.errors import InvalidArgumentError
from lakebed.spark.connection import connected
from lakebed.spark.options import Target
from lakebed.spark.session import target_of
from lakebed.spark.types import check_projection, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakebed.api.log import Log
    from lakebed.reports.topics import HotRange, ScanPlan, SealedFile

_SIGNS: Final = re.compile(r"[{}\[\]*?\\]")
"""What makes a path a pattern for Spark, unless a backslash stands before it."""
Points = int | Mapping[int, int]
"""An offset for every partition, or one for each that is named."""


def read(
    spark: SparkSession,
    topic: str,
    *,
    log: Log | str | os.PathLike[str] | None = None,
    start: Points | None = None,
    until: Points | None = None,
    partitions: Collection[int] | None = None,
    columns: Sequence[str] | None = None,
    headers: bool = False,
    client: ClientConfig | None = None,
) -> DataFrame:
    """Return a topic as a DataFrame of what it holds now, as fast as Spark reads Parquet.

    The columns are those of `format("lakebed")`: partition, offset, timestamp, key, value, and
    headers if they are asked for. `start` and `until` (exclusive) bound the offsets, a number for
    every partition or a dictionary; `partitions` are those that are read, if not all. The range is
    fixed by the call: records that are written later are not part of it, however often the
    DataFrame is used. Files stay for the lake's grace time after the log has dropped them; a
    DataFrame that is used for longer is read again.
    """
    target = target_of(spark, log, client)
    connection = connected(target)
    table = connection.table(topic)
    plan = table.plan(partitions=partitions, start=start, until=until)
    schema = spark_schema(
        table.schema, topic=False, headers=headers or "headers" in (columns or ())
    )
    if columns is not None:
        schema = _projection(schema, columns)
    return planned_frame(spark, target, plan, schema)


def planned_frame(
    spark: SparkSession, target: Target, plan: ScanPlan, schema: StructType
) -> DataFrame:
    """Return what a plan says as a DataFrame of a schema that has some of the topic's columns."""
    native = {each.location for each in plan.files if reads_natively(spark, each.location)}
    parts = [
        *_sealed(spark, [each for each in plan.files if each.location in native], schema),
        *_hot(spark, target, plan.topic, _others(plan, native), schema),
    ]
    if not parts:
        return spark.createDataFrame([], schema)
    frame = parts[0]
    for part in parts[1:]:
        frame = frame.unionAll(part)
    return frame


def _projection(schema: StructType, columns: Sequence[str]) -> StructType:
    from pyspark.sql.types import StructType

    names = schema.fieldNames()
    unknown = [name for name in columns if name not in names]
    if unknown or not columns:
        raise InvalidArgumentError("columns must be some of " + ", ".join(names), got=list(columns))
    wanted = StructType([schema[name] for name in columns])
    check_projection(wanted, schema)
    return wanted


def reads_natively(spark: SparkSession, location: str) -> bool:
    """Return whether Spark itself can open files there."""
    scheme = urlsplit(location).scheme
    if scheme in ("", "file"):
        return True
    known = spark.conf.get(f"spark.hadoop.fs.{scheme}.impl", None)
    return known is not None


def _sealed(
    spark: SparkSession, files: Sequence[SealedFile], schema: StructType
) -> list[DataFrame]:
    """Read files natively: whole ones together, those that are cut each with its bounds."""
    whole = [each for each in files if each.whole]
    frames = []
    if whole:
        frames.append(parquet(spark, [each.location for each in whole], schema))
    frames += [_cut(spark, each, schema) for each in files if not each.whole]
    return frames


def _cut(spark: SparkSession, file: SealedFile, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import LongType, StructField, StructType

    names = schema.fieldNames()
    needed = schema
    if "offset" not in names:
        needed = StructType([*schema.fields, StructField("offset", LongType())])
    frame = parquet(spark, [file.location], needed)
    inside = (f.col("offset") >= file.start) & (f.col("offset") < file.until)
    return frame.where(inside).select(*names)


PAGE_INDEXES: Final = "parquet.filter.columnindex.enabled"
"""The option of Spark's Parquet reader that has to be false for files of a log: see `parquet`."""


def parquet(spark: SparkSession, locations: list[str], schema: StructType | str) -> DataFrame:
    """Read these files; they are no patterns, whatever signs the log's folder has in its name."""
    # Spark's own option for that reads N files with such signs N times each.
    places = [_SIGNS.sub(r"\\\g<0>", each) for each in locations]
    # Without page indexes: Spark 4.3's reader fails in them now and then, once it is warm. Row
    # groups are left out by their statistics all the same.
    return spark.read.option(PAGE_INDEXES, "false").schema(schema).parquet(*places)


def _others(plan: ScanPlan, native: set[str]) -> dict[int, list[tuple[int, int]]]:
    """Return the ranges that Spark does not read natively, by partition."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    rest: list[SealedFile | HotRange] = [each for each in plan.files if each.location not in native]
    for each in [*rest, *plan.hot]:
        known = ranges.setdefault(each.partition, [])
        if known and known[-1][1] == each.start:
            known[-1] = (known[-1][0], each.until)
        else:
            known.append((each.start, each.until))
    return ranges


def _hot(
    spark: SparkSession,
    target: Target,
    topic: str,
    ranges: Mapping[int, Sequence[tuple[int, int]]],
    schema: StructType,
) -> list[DataFrame]:
    import json

    frames = []
    rounds = max((len(each) for each in ranges.values()), default=0)
    for number in range(rounds):
        chosen = {part: spans[number] for part, spans in ranges.items() if number < len(spans)}
        # Partitions that are named on neither side are not read, those of tomorrow included.
        starts = {str(part): start for part, (start, _) in chosen.items()}
        ends = {str(part): until for part, (_, until) in chosen.items()}
        reader = spark.read.format("lakebed").schema(schema)
        for name, value in target_options(target, topic, headers="headers" in schema.fieldNames()):
            reader = reader.option(name, value)
        frames.append(
            reader.option("startingOffsets", json.dumps({topic: starts}))
            .option("endingOffsets", json.dumps({topic: ends}))
            .load()
        )
    return frames


def target_options(
    target: Target, topic: str, *, headers: bool | None = None
) -> list[tuple[str, Any]]:
    """Return the options of `format("lakebed")` that name a topic of a log."""
    given = [("log", target.folder or target.log), ("topic", topic)]
    if headers is not None:
        given.append(("includeHeaders", str(headers).lower()))
    client = target.client
    for name in ("token", "ca", "cert", "key"):
        value = getattr(client, name)
        if value is not None:
            given.append((name, value))
    return given
