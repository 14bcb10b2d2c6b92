"""A derived table as a Spark source that is read again for each batch of a stream.

(A DataFrame of files would always show the table as it was when the query began.) Spark plans the
tasks of a Python source once for a query, so there is one task without a list of files: it asks for
them when it runs, and reads one version of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakebed.client.config import ClientConfig
from lakebed.reports.derived import BUCKET, DATA
from lakebed.spark.connection import connect
from lakebed.spark.options import Target
from lakebed.spark.stores import table_files
from lakebed.spark.tables.bucket import read_deleted_positions
from lakebed.spark.tables.rows import conform, without
from lakebed.spark.types import arrow_schema, fit, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakebed.client.log import RemoteLog

FORMAT: Final = "lakebed-table"
_ROWS: Final = 65_536
"""How many rows Spark gets at a time."""


def read_each_batch(spark: SparkSession, table: str, log: str) -> DataFrame:
    """Return a derived table as a DataFrame that reads its current rows for every batch."""
    spark.dataSource.register(TableSource)
    return spark.read.format(FORMAT).option("log", log).option("table", table).load()


class TableSource(DataSource):
    """The rows of a derived table."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the table's columns, without the one that only says where a row is."""
        from pyspark.sql.pandas.types import from_arrow_type

        schema = StructType()
        for field in _log(self.options["log"]).derived.describe(self.options["table"]).schema:
            if field.name != BUCKET:
                schema = schema.add(field.name, from_arrow_type(plain(field.type)), True)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what the table holds when the task runs."""
        return TableReader(self.options["log"], self.options["table"], schema)


def _log(url: str) -> RemoteLog:
    return connect(Target(url, ClientConfig()))


class TableReader(DataSourceReader):
    """Reads a table as it is when the task runs."""

    def __init__(self, log: str, table: str, schema: StructType) -> None:
        self._log = log
        self._table = table
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Plan one task."""
        return [InputPartition(0)]

    def read(self, _partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of all files of one version."""
        derived = _log(self._log).derived
        store = table_files(derived)
        files = derived.files(self._table).files
        gone = read_deleted_positions(files, store)
        wanted = arrow_schema(self._schema)
        for file in files:
            if file.content == DATA:
                rows = without(store.read(file.location), gone.get(file.location, ()))
                rows = conform(rows, wanted)
                columns = [fit(rows.column(field.name), field.type) for field in wanted]
                yield from pa.table(columns, schema=wanted).to_batches(_ROWS)
