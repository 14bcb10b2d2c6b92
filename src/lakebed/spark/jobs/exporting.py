"""A range of a topic as files: Parquet, JSON lines or CSV, all of it or nothing.

The range is fixed when the job begins, and is written under an unfinished name; the folder appears
when it is whole. What a killed job leaves behind is a folder of that other name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import InvalidArgumentError
from lakebed.reports.topics import TopicInfo
from lakebed.spark.failures import translate_failures
from lakebed.spark.jobs.progress import report_tasks
from lakebed.spark.jobs.ranges import Points, Time, resolve_ranges
from lakebed.spark.jobs.storage import ExportFolder
from lakebed.spark.jobs.target import AnyLog, resolve_log
from lakebed.types import Progress

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS: Final = ("parquet", "json", "csv")
RECORDS: Final = "records"
FIELDS: Final = "fields"
LAYOUTS: Final = (RECORDS, FIELDS)
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
"""Times in JSON and CSV; Spark's own way would cut the microseconds off."""


@dataclass(frozen=True)
class ExportReport:
    """What an export did."""

    topic: str
    target: str
    format: str
    records: int
    left_out: int
    """Tombstones, of an export of fields: they have none."""
    files: int
    bytes: int
    offsets: dict[str, tuple[int, int]]
    """First offset and end of each partition of the range."""


def export(
    spark: SparkSession,
    log: AnyLog,
    topic: str,
    target: str,
    *,
    format: str = "parquet",  # noqa: A002  # the word that Spark has for it
    layout: str = RECORDS,
    start: Points | None = None,
    until: Points | None = None,
    from_time: Time | None = None,
    to_time: Time | None = None,
    files: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write a range of a topic into a folder, as it is at the call.

    `records` have the columns partition, offset, timestamp, key, headers and value; `fields` are
    those of a typed value alone. Bytes in JSON and CSV are text; those that are no UTF-8 stand as
    base64 in a separate column, `key_base64` or `value_base64`. `files` is how many are written,
    by default about one for each core.
    """
    _check(format, layout)
    owner, reach = resolve_log(spark, log)
    info = owner.describe_topic(topic)
    if layout == FIELDS and info.schema is None:
        raise InvalidArgumentError("a raw topic has no fields: export its records", topic=topic)
    folder = ExportFolder(spark, str(target))
    folder.check_free(overwrite=overwrite)
    ranges = resolve_ranges(
        owner, topic, start=start, until=until, from_time=from_time, to_time=to_time
    )
    with translate_failures("export", topic=topic, target=folder.path):
        frame = _frame(spark, reach, info, ranges, format, layout)
        frame = frame if files is None else frame.coalesce(files)
        try:
            with report_tasks(spark, "writing files", progress):
                records, left_out = _write(frame, folder.unfinished, format, layout)
            folder.finish()
        except BaseException:
            folder.drop()
            raise
    written = folder.files()
    return ExportReport(
        topic=topic,
        target=folder.path,
        format=format,
        records=records,
        left_out=left_out,
        files=len(written),
        bytes=sum(file.bytes for file in written),
        offsets={str(partition): span for partition, span in ranges.items()},
    )


def _check(kind: str, layout: str) -> None:
    if kind not in FORMATS:
        raise InvalidArgumentError("format must be one of " + ", ".join(FORMATS), got=repr(kind))
    if layout not in LAYOUTS:
        raise InvalidArgumentError("layout must be one of " + ", ".join(LAYOUTS), got=repr(layout))


def _frame(
    spark: SparkSession,
    reach: Any,
    info: TopicInfo,
    ranges: dict[int, tuple[int, int]],
    kind: str,
    layout: str,
) -> DataFrame:
    from lakebed.spark.batch_reads import read

    frame = read(
        spark,
        info.name,
        log=reach.log,
        start={partition: start for partition, (start, _) in ranges.items()},
        until={partition: until for partition, (_, until) in ranges.items()},
        partitions=sorted(ranges),
        headers=True,
        client=reach.client,
    )
    if layout == FIELDS:
        frame = frame.select("value.*", frame["value"].isNull().alias("_gone"))
        return frame if kind == "parquet" else _flat(frame, kind)
    if kind == "parquet":
        return frame
    return frame.select(*_texts(info, kind))


def _texts(info: TopicInfo, kind: str) -> list[Column]:
    """Return a record's columns for a text format."""
    from pyspark.sql import functions as f

    columns = [f.col("partition"), f.col("offset"), f.col("timestamp"), *_text("key")]
    headers = f.transform_values("headers", lambda _, value: value.cast("string"))
    columns.append((f.to_json(headers) if kind == "csv" else headers).alias("headers"))
    if info.schema is None:
        return [*columns, *_text("value")]
    return [*columns, f.to_json("value").alias("value") if kind == "csv" else f.col("value")]


def _text(name: str) -> list[Column]:
    """Return a column of bytes as text, and one of base64 for bytes that are not UTF-8."""
    from pyspark.sql import functions as f

    text = f.col(name).cast("string")
    valid = f.is_valid_utf8(text)
    return [
        f.when(valid, text).alias(name),
        f.when(~valid, f.base64(f.col(name))).alias(f"{name}_base64"),
    ]


def _flat(frame: DataFrame, kind: str) -> DataFrame:
    """Return the frame with nested columns as JSON, for CSV."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    if kind != "csv":
        return frame
    nested = (ArrayType, MapType, StructType)
    return frame.select(
        *(
            f.to_json(f"`{field.name}`").alias(field.name)
            if isinstance(field.dataType, nested)
            else f.col(f"`{field.name}`")
            for field in frame.schema.fields
        )
    )


def _write(frame: DataFrame, path: str, kind: str, layout: str) -> tuple[int, int]:
    """Write files; return how many records they have, and how many were left out."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counts = Observation()
    gone = f.col("_gone") if layout == FIELDS else f.lit(False)
    frame = frame.observe(
        counts,
        f.count(f.lit(1)).alias("all"),
        f.coalesce(f.sum(gone.cast("long")), f.lit(0)).alias("gone"),
    )
    if layout == FIELDS:
        frame = frame.where(~f.col("_gone")).drop("_gone")
    writer = frame.write.mode("errorifexists")
    if kind != "parquet":
        writer = writer.option("timestampFormat", _TIME)
    if kind == "csv":
        writer = writer.option("header", "true").option("escape", '"')
    writer.format(kind).save(path)
    seen = counts.get
    return int(seen["all"]) - int(seen["gone"]), int(seen["gone"])
