"""A derived table as a Spark source that is read again for each batch of a stream.

(A DataFrame of files would show forever what the table was when the query began.) Spark plans the
tasks of a Python source once for a query, so there is one task that says nothing of files: it asks
for them when it runs, and sees one version of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakebed.client.config import ClientConfig
from lakebed.reports.derived import BUCKET, DATA
from lakebed.spark.connection import connected
from lakebed.spark.options import Target
from lakebed.spark.stores import table_files
from lakebed.spark.tables.bucket import deleted_positions
from lakebed.spark.tables.rows import conformed, without
from lakebed.spark.types import arrow_schema, fitted, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakebed.client.log import RemoteLog

FORMAT: Final = "lakebed-table"
_ROWS: Final = 65_536
"""How many rows Spark gets at a time."""


def read_anew(spark: SparkSession, table: str, log: str) -> DataFrame:
    """Return a derived table, as it is whenever it is looked at."""
    spark.dataSource.register(TableSource)
    return spark.read.format(FORMAT).option("log", log).option("table", table).load()


class TableSource(DataSource):
    """The rows of a derived table."""

    @classmethod
    def name(cls) -> str:
        """Return what it is called in `format(...)`."""
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
        """Read what there is when the task runs."""
        return TableReader(self.options["log"], self.options["table"], schema)


def _log(url: str) -> RemoteLog:
    return connected(Target(url, ClientConfig()))


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
        """Read the rows that live, of all files of one version."""
        derived = _log(self._log).derived
        store = table_files(derived)
        files = derived.files(self._table).files
        gone = deleted_positions(files, store)
        wanted = arrow_schema(self._schema)
        for file in files:
            if file.content == DATA:
                rows = without(store.read(file.location), gone.get(file.location, ()))
                rows = conformed(rows, wanted)
                columns = [fitted(rows.column(each.name), each.type) for each in wanted]
                yield from pa.table(columns, schema=wanted).to_batches(_ROWS)
