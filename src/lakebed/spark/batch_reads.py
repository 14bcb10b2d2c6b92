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
from lakebed.spark.connection import connect
from lakebed.spark.options import Target
from lakebed.spark.session import target_of
from lakebed.spark.types import check_projection, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakebed.api.log import Log
    from lakebed.reports.topics import HotRange, ScanPlan, SealedFile

_SIGNS: Final = re.compile(r"[{}\[\]*?\\]")
"""Characters that make a path a pattern for Spark unless a backslash precedes them."""
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
    DataFrame is used. Files stay for the lake's grace time after the log has dropped them; call
    `read` again for a DataFrame that is used for longer.
    """
    target = target_of(spark, log, client)
    connection = connect(target)
    table = connection.table(topic)
    plan = table.plan(partitions=partitions, start=start, until=until)
    schema = spark_schema(
        table.schema, topic=False, headers=headers or "headers" in (columns or ())
    )
    if columns is not None:
        schema = _projection(schema, columns)
    return frame_of_plan(spark, target, plan, schema)


def frame_of_plan(
    spark: SparkSession, target: Target, plan: ScanPlan, schema: StructType
) -> DataFrame:
    """Return the records of a plan as a DataFrame; `schema` has some of the topic's columns."""
    native = {file.location for file in plan.files if reads_natively(spark, file.location)}
    parts = [
        *_native_frames(spark, [file for file in plan.files if file.location in native], schema),
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
    """Return whether Spark can open files at this location."""
    scheme = urlsplit(location).scheme
    if scheme in ("", "file"):
        return True
    implementation = spark.conf.get(f"spark.hadoop.fs.{scheme}.impl", None)
    return implementation is not None


def _native_frames(
    spark: SparkSession, files: Sequence[SealedFile], schema: StructType
) -> list[DataFrame]:
    """Read files natively: whole ones in one frame, each partial one with its bounds."""
    whole = [file for file in files if file.whole]
    frames = []
    if whole:
        frames.append(parquet(spark, [file.location for file in whole], schema))
    frames += [_cut(spark, file, schema) for file in files if not file.whole]
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
    """Read these files; special characters in their paths are escaped, so none is a pattern."""
    # Spark's option for that reads N files with such characters N times each.
    places = [_SIGNS.sub(r"\\\g<0>", location) for location in locations]
    # Without page indexes: Spark 4.3's reader fails in them now and then, once it is warm. Row
    # groups are left out by their statistics all the same.
    return spark.read.option(PAGE_INDEXES, "false").schema(schema).parquet(*places)


def _others(plan: ScanPlan, native: set[str]) -> dict[int, list[tuple[int, int]]]:
    """Return the ranges that Spark does not read natively, by partition."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    rest: list[SealedFile | HotRange] = [file for file in plan.files if file.location not in native]
    for span in [*rest, *plan.hot]:
        merged = ranges.setdefault(span.partition, [])
        if merged and merged[-1][1] == span.start:
            merged[-1] = (merged[-1][0], span.until)
        else:
            merged.append((span.start, span.until))
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
    rounds = max((len(spans) for spans in ranges.values()), default=0)
    for index in range(rounds):
        chosen = {part: spans[index] for part, spans in ranges.items() if index < len(spans)}
        # Partitions that are named on neither side are not read, including any added later.
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
    options = [("log", target.folder or target.log), ("topic", topic)]
    if headers is not None:
        options.append(("includeHeaders", str(headers).lower()))
    client = target.client
    for name in ("token", "ca", "cert", "key"):
        value = getattr(client, name)
        if value is not None:
            options.append((name, value))
    return options
