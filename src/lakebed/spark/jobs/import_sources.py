"""Where an import reads: files of a format, or the files of an Iceberg table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import InvalidArgumentError, MissingFileError
from lakebed.spark.frames import PAGE_INDEXES
from lakebed.spark.jobs.storage import StoredFile, found_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

FORMATS: Final = ("parquet", "json", "csv", "iceberg")

CORRUPT: Final = "_corrupt_record"
"""The column in which Spark says what a row was that it could not read."""

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
    """Files of one format."""

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
        return found_files(self._spark, self._paths)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Have the session as reading needs it within the block, and as it was afterwards."""
        yield

    def schema(self, files: Sequence[str]) -> StructType:
        """Find out the columns that files have; of JSON and CSV by reading everything."""
        reader = self._spark.read.options(**self._options)
        if self.kind == "parquet":
            return reader.option("mergeSchema", "true").parquet(*files).schema
        if self.kind == "csv":
            reader = reader.option("inferSchema", "true")
        found = reader.option("columnNameOfCorruptRecord", CORRUPT).format(self.kind)
        return found.load(list(files)).schema

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
        found = []
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
            found.append(StoredFile(file.file_path, file.file_size_in_bytes, 0))
        return sorted(found, key=lambda each: each.path)

    def schema(self, files: Sequence[str]) -> StructType:  # noqa: ARG002  # the table knows
        """Return the columns of the table, with the ids by which files have them."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyspark.sql.pandas.types import from_arrow_schema

        from lakebed.spark.types import plain

        arrow = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        import pyarrow as pa

        found = from_arrow_schema(pa.schema([(each.name, plain(each.type)) for each in arrow]))
        numbered: StructType = _numbered(found, self._table.schema().as_struct())
        return numbered

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Have Spark find columns by their ids within the block: names may have changed since."""
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
        """Read files by the ids of their columns; the rows have to be asked for in `reading`."""
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


def _numbered(kind: DataType, known: Any) -> Any:
    """Return Spark's type with the ids of an Iceberg type."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        ids = {each.name: each for each in known.fields}
        return StructType(
            [
                StructField(
                    each.name,
                    _numbered(each.dataType, ids[each.name].field_type),
                    each.nullable,
                    {_FIELD_ID: ids[each.name].field_id},
                )
                for each in kind.fields
            ]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_numbered(kind.elementType, known.element_type), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(
            _numbered(kind.keyType, known.key_type),
            _numbered(kind.valueType, known.value_type),
            kind.valueContainsNull,
        )
    return kind
