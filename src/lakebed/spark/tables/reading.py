"""A derived table as a DataFrame: its files by Spark's own reader, without the deleted rows.

Spark comes without Iceberg. Files of buckets in which nothing is deleted are read as they are; of
the others the deleted positions are taken away by a join. Files that Spark cannot open (an object
store that it has no library for) are read by Python workers, bucket by bucket.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed.host.table_files import TableFiles
from lakebed.reports.derived import BUCKET, DATA, DELETES, DerivedFiles
from lakebed.spark.stores import table_files
from lakebed.spark.tables.folding import by_bucket

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from lakebed.api.log import Log


def read_table(
    spark: SparkSession, log: Log | str | os.PathLike[str], name: str, *, technical: bool = False
) -> DataFrame:
    """Return a derived table as a DataFrame of what it holds now.

    What is committed later is not part of it. Files stay for the lake's grace time after a commit
    has replaced them; call `read_table` again for a DataFrame that is used for longer. With
    `technical` it has the column `_bucket` too.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from lakebed.spark.batch_reads import reads_natively

    owner = open_log(spark, log)
    derived = owner.derived.files(name)
    schema = from_arrow_schema(_without_ids(derived.table.schema))
    if not derived.files:
        frame = spark.createDataFrame([], schema)
    elif reads_natively(spark, derived.table.location):
        frame = _native(spark, derived, schema)
    else:
        frame = _by_workers(spark, derived, schema, table_files(owner.derived))
    return frame if technical else frame.drop(BUCKET)


def open_log(spark: SparkSession, log: Log | str | os.PathLike[str]) -> Log:
    """Return an open log as it is; connect to the server of a folder or URL."""
    from lakebed.api.log import Log
    from lakebed.client.config import ClientConfig
    from lakebed.spark.connection import connect
    from lakebed.spark.options import Target
    from lakebed.spark.session import log_of

    if isinstance(log, Log):
        return log
    return connect(Target(log_of(spark, log), ClientConfig()))


def _without_ids(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _native(spark: SparkSession, derived: DerivedFiles, schema: StructType) -> DataFrame:
    from lakebed.spark.batch_reads import parquet

    whole: list[str] = []
    cut: list[str] = []
    positions: list[str] = []
    for files in by_bucket(derived.files).values():
        deletes = [file.location for file in files if file.content == DELETES]
        places = [file.location for file in files if file.content == DATA]
        (cut if deletes else whole).extend(places)
        positions += deletes
    parts = []
    if whole:
        parts.append(parquet(spark, whole, schema))
    if cut:
        parts.append(_cut(spark, cut, positions, schema))
    return parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])


def _cut(
    spark: SparkSession, places: list[str], positions: list[str], schema: StructType
) -> DataFrame:
    """Read files without the rows whose positions are deleted.

    Files are matched by their unique names; paths are written in more than one way.
    """
    from pyspark.sql import functions as f

    from lakebed.spark.batch_reads import parquet

    rows = parquet(spark, places, schema)
    numbered = rows.select(
        "*",
        f.col("_metadata.file_name").alias("_file"),
        f.col("_metadata.row_index").alias("_row"),
    )
    deleted = parquet(spark, positions, "file_path string, pos long")
    gone = deleted.select(
        f.element_at(f.split("file_path", "/"), -1).alias("_file"), f.col("pos").alias("_row")
    )
    return numbered.join(gone, ["_file", "_row"], "left_anti").drop("_file", "_row")


def _by_workers(
    spark: SparkSession, derived: DerivedFiles, schema: StructType, store: TableFiles
) -> DataFrame:
    buckets = by_bucket(derived.files)
    if not derived.table.key:  # every file alone
        buckets = dict(enumerate((file,) for file in derived.files))
    columns = derived.table.schema

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from lakebed.spark.tables.bucket import living_rows

        for batch in batches:
            for bucket in batch.column(0).to_pylist():
                yield from _plain_batches(living_rows(buckets[bucket], store, columns))

    numbers = spark.createDataFrame([(bucket,) for bucket in sorted(buckets)], "bucket int")
    return numbers.repartition(len(buckets), "bucket").mapInArrow(rows, schema)


def _plain_batches(tables: Iterator[pa.Table]) -> Iterator[Any]:
    for table in tables:
        yield from table.cast(_without_ids(table.schema)).to_batches(max_chunksize=100_000)
