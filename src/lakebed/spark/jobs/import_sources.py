"""Where an import reads: files of a format, or the files of an Iceberg table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import InvalidArgumentError, MissingFileError
from lakebed.spark.batch_reads import PAGE_INDEXES
from lakebed.spark.jobs.storage import StoredFile, list_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

FORMATS: Final = ("parquet", "json", "csv", "iceberg")

CORRUPT: Final = "_corrupt_record"
"""The column in which Spark puts the text of a row that it could not read."""

_CSV: Final = {"header": "true", "enforceSchema": "false", "escape": '"'}
_PARQUET: Final = {PAGE_INDEXES: "false"}
"""What is imported may be files of a log, this one or another."""
_FIELD_ID: Final = "parquet.field.id"
_BY_ID: Final = "spark.sql.parquet.fieldId.read.enabled"
_DEFAULTS: Final = {"csv": _CSV, "parquet": _PARQUET, "iceberg": _PARQUET}


def source_of(
    spark: SparkSession,
    kind: str,
    paths: Sequence[str],
    options: dict[str, str],
    catalog: str | None,
) -> ImportSource:
    """Return what an import reads."""
    if kind == "iceberg":
        return IcebergSource(spark, paths, catalog)
    return ImportSource(spark, kind, paths, options)


class ImportSource:
    """Files of one format, or a table: what an import reads."""

    def __init__(
        self, spark: SparkSession, kind: str, paths: Sequence[str], options: dict[str, str]
    ) -> None:
        self._spark = spark
        self.kind = kind
        self._paths = paths
        self._options = {**_DEFAULTS.get(kind, {}), **options}
        self.may_be_bad = kind in ("json", "csv")

    def files(self) -> list[StoredFile]:
        """Return the files that there are now."""
        return list_files(self._spark, self._paths)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Set the session up for reading within the block, and restore it afterwards."""
        yield

    def schema(self, files: Sequence[str]) -> StructType:
        """Return the columns of files; those of JSON and CSV are inferred by reading everything."""
        reader = self._spark.read.options(**self._options)
        if self.kind == "parquet":
            return reader.option("mergeSchema", "true").parquet(*files).schema
        if self.kind == "csv":
            reader = reader.option("inferSchema", "true")
        reader = reader.option("columnNameOfCorruptRecord", CORRUPT).format(self.kind)
        return reader.load(list(files)).schema

    def read(self, files: Sequence[str], schema: StructType) -> DataFrame:
        """Read files; rows of JSON and CSV that cannot be read have text in the corrupt column."""
        from pyspark.sql.types import StringType, StructField, StructType

        reader = self._spark.read.options(**self._options)
        if not self.may_be_bad:
            return reader.schema(schema).parquet(*files)
        whole = StructType([*schema.fields, StructField(CORRUPT, StringType())])
        reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", CORRUPT)
        return reader.schema(whole).format(self.kind).load(list(files))


class IcebergSource(ImportSource):
    """The files of an Iceberg table's present snapshot; one with deleted rows is refused."""

    def __init__(self, spark: SparkSession, paths: Sequence[str], catalog: str | None) -> None:
        super().__init__(spark, "iceberg", paths, {})
        if len(paths) != 1:
            raise InvalidArgumentError("one Iceberg table is imported at a time", got=len(paths))
        self._table = _table(paths[0], catalog)

    def files(self) -> list[StoredFile]:
        """Return the data files of the table."""
        files = []
        for task in self._table.scan().plan_files():
            if task.delete_files:
                raise InvalidArgumentError(
                    "the table has delete files, which Spark cannot read without Iceberg: "
                    "compact the table first",
                    table=self._paths[0],
                    file=task.file.file_path,
                )
            file = task.file
            if str(file.file_format.value).upper() != "PARQUET":
                raise InvalidArgumentError(
                    "only tables of Parquet files can be imported",
                    table=self._paths[0],
                    format=file.file_format,
                )
            files.append(StoredFile(file.file_path, file.file_size_in_bytes, 0))
        return sorted(files, key=lambda file: file.path)

    def schema(self, files: Sequence[str]) -> StructType:  # noqa: ARG002  # the table knows
        """Return the columns of the table, with the ids by which files have them."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyspark.sql.pandas.types import from_arrow_schema

        from lakebed.spark.types import plain

        arrow = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        import pyarrow as pa

        schema = from_arrow_schema(pa.schema([(field.name, plain(field.type)) for field in arrow]))
        numbered: StructType = _with_field_ids(schema, self._table.schema().as_struct())
        return numbered

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Make Spark match columns by their ids within the block: names may have changed."""
        before = self._spark.conf.get(_BY_ID, None)
        self._spark.conf.set(_BY_ID, "true")
        try:
            yield
        finally:
            if before is None:
                self._spark.conf.unset(_BY_ID)
            else:
                self._spark.conf.set(_BY_ID, before)

    def read(self, files: Sequence[str], schema: StructType) -> DataFrame:
        """Read files by the ids of their columns; evaluate the frame within `reading`."""
        return self._spark.read.options(**self._options).schema(schema).parquet(*files)


def _table(path: str, catalog: str | None) -> Any:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import StaticTable

    try:
        if catalog is not None:
            with load_catalog(catalog) as connected:
                return connected.load_table(path)
        return StaticTable.from_metadata(path)
    except (NoSuchTableError, OSError, ValueError) as error:
        raise MissingFileError(
            "the Iceberg table does not exist", table=path, reason=str(error)[:200]
        ) from error


def _with_field_ids(kind: DataType, iceberg_type: Any) -> Any:
    """Return Spark's type with the ids of an Iceberg type."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        ids = {field.name: field for field in iceberg_type.fields}
        return StructType(
            [
                StructField(
                    field.name,
                    _with_field_ids(field.dataType, ids[field.name].field_type),
                    field.nullable,
                    {_FIELD_ID: ids[field.name].field_id},
                )
                for field in kind.fields
            ]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(
            _with_field_ids(kind.elementType, iceberg_type.element_type), kind.containsNull
        )
    if isinstance(kind, MapType):
        return MapType(
            _with_field_ids(kind.keyType, iceberg_type.key_type),
            _with_field_ids(kind.valueType, iceberg_type.value_type),
            kind.valueContainsNull,
        )
    return kind
