"""From rows of files to records: value, key and timestamp, and rows that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lakebed.errors import InvalidArgumentError, TopicNotFoundError
from lakebed.spark.failures import cause_in
from lakebed.spark.jobs.import_sources import CORRUPT, ImportSource
from lakebed.spark.jobs.storage import StoredFile

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from lakebed.api.log import Log

LAYOUTS: Final = ("fields", "json", "records")
BAD: Final = "lakebed: a row cannot be read"
"""The message of a task that reads one."""
_NOISE: Final = re.compile(r"^\[[\w.]+\] |\.? SQLSTATE: \w+")
"""The parts of Spark's messages that are for programs."""
_RECORD: Final = ("key", "value", "headers", "timestamp")


def schema_for(
    owner: Log,
    source: ImportSource,
    columns: StructType | None,
    topic: str,
    layout: str,
    files: Sequence[StoredFile],
) -> StructType:
    """Return the columns to read: `columns`, those of the topic, or those of the files."""
    from pyspark.sql.types import StructType

    from lakebed.spark.types import spark_schema

    if columns is not None:
        return columns
    if source.may_be_bad and layout == "fields":
        try:
            topic_schema = owner.describe_topic(topic).schema
        except TopicNotFoundError:
            topic_schema = None
        if topic_schema is not None:
            return spark_schema(topic_schema, topic=False, headers=True)
    schema = source.schema([file.path for file in files])
    return StructType([field for field in schema.fields if field.name != CORRUPT])


def columns_of(text: str) -> StructType:
    """Parse columns in SQL syntax; raise `InvalidArgumentError` if they are not valid."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(text)
    except PySparkException as error:
        raise _bad_schema(text, _NOISE.sub("", cause_in(str(error)))) from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise _bad_schema(text, "it names no columns")
    names = [name.lower() for name in schema.fieldNames()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _bad_schema(text, f"it names {twice} twice")
    return schema


def _bad_schema(text: str, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the given schema is wrong, nothing was read: a schema is like id BIGINT, name STRING",
        schema=repr(text),
        reason=reason,
    )


def _of_records(schema: StructType, kind: str) -> StructType:
    """Return the columns of files that hold records."""
    from pyspark.sql.types import StructType

    if kind == "csv":
        raise InvalidArgumentError("CSV cannot hold records: use Parquet, or the layout fields")
    if "value" not in schema.fieldNames():
        raise InvalidArgumentError(
            "files of records have a column value", columns=", ".join(schema.fieldNames())
        )
    return StructType([field for field in schema.fields if field.name in _RECORD])


class ImportRows:
    """Makes records of rows."""

    def __init__(
        self, source: ImportSource, schema: Any, layout: str, key: str | None, timestamp: str | None
    ) -> None:
        from pyspark.sql.types import StructType

        self._source = source
        self._schema = StructType.fromJson(schema)
        self._layout = layout
        self._key = key
        self._timestamp = timestamp
        self.may_be_bad = source.may_be_bad
        if layout == "records":
            self._schema = _of_records(self._schema, source.kind)
        names = self._schema.fieldNames()
        if not names:
            raise InvalidArgumentError("the files have no columns")
        for role, column in (("key", key), ("timestamp", timestamp)):
            if column is not None and column not in names:
                raise InvalidArgumentError(
                    f"the column for the {role} does not exist",
                    column=column,
                    columns=", ".join(names),
                )

    def topic_schema(self) -> pa.Schema | None:
        """Return the schema of a topic for these rows; None for a raw one."""
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        if self._layout == "json":
            return None
        fields: Any = self._schema
        if self._layout == "records":
            fields = self._schema["value"].dataType
            if not isinstance(fields, StructType):
                return None
        arrow = to_arrow_schema(fields, timezone="UTC")
        return pa.schema([pa.field(field.name, field.type) for field in arrow])

    def read(self, files: Sequence[str]) -> DataFrame:
        """Read files."""
        return self._source.read(files, self._schema)

    def good(self, frame: DataFrame) -> DataFrame:
        """Return the records of rows that can be read."""
        from pyspark.sql import functions as f

        if self.may_be_bad:
            frame = frame.where(f.col(CORRUPT).isNull())
        return frame.select(*self._columns())

    def records_or_fail(self, frame: DataFrame) -> DataFrame:
        """Return the records of rows; a row that cannot be read fails its task."""
        from pyspark.sql import functions as f

        if self.may_be_bad:
            fine = f.when(f.col(CORRUPT).isNull(), f.lit(True)).otherwise(
                f.raise_error(f.lit(BAD)).cast("boolean")
            )
            frame = frame.where(fine)
        return frame.select(*self._columns())

    def bad(self, frame: DataFrame) -> DataFrame:
        """Return the rows that cannot be read as records: their text, and the file they are in."""
        from pyspark.sql import functions as f

        # Spark finds a row corrupt by the columns that a query names: here, as elsewhere, all.
        row = f.to_json(f.struct(*(f.col(f"`{name}`") for name in self._schema.fieldNames())))
        text = f.coalesce(f.col(CORRUPT), row).cast("binary")
        file = f.create_map(f.lit("file"), f.input_file_name().cast("binary"))
        rows = frame.where(f.col(CORRUPT).isNotNull())
        return rows.select(text.alias("value"), file.alias("headers"))

    def _columns(self) -> list[Column]:
        from pyspark.sql import functions as f

        names = self._schema.fieldNames()
        if self._layout == "records":
            return [f.col(name) for name in _RECORD if name in names]
        fields = f.struct(*(f.col(f"`{name}`") for name in names))
        value = (
            f.to_json(fields, {"ignoreNullFields": "false"}) if self._layout == "json" else fields
        )
        columns = [value.alias("value")]
        if self._key is not None:
            columns.append(self._key_column())
        if self._timestamp is not None:
            columns.append(f.col(f"`{self._timestamp}`").cast("timestamp").alias("timestamp"))
        return columns

    def _key_column(self) -> Column:
        """Return the key as bytes: text as UTF-8, anything else as it is written."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import BinaryType

        assert self._key is not None  # noqa: S101  # asked before
        column = f.col(f"`{self._key}`")
        if not isinstance(self._schema[self._key].dataType, BinaryType):
            column = column.cast("string").cast("binary")
        return column.alias("key")
