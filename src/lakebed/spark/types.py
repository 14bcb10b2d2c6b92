"""Columns of a topic as Spark knows them, and Arrow batches cast to them exactly.

Spark takes a batch only if its schema equals the one that Spark derives from its own types: no
large or dictionary types, microseconds, the same names in the same order. Types that Spark does not
have become the next wider ones: unsigned numbers get one size more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt

from lakebed.errors import InvalidArgumentError, SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

TOPIC: Final = "topic"

_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def spark_schema(schema: pa.Schema, *, topic: bool, headers: bool) -> StructType:
    """Return a topic's columns in Spark's types, with or without the topic's name and headers."""
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [StructField(TOPIC, StringType(), nullable=False)] if topic else []
    for field in schema:
        if field.name == "headers" and not headers:
            continue
        nullable = field.name not in ("partition", "offset", "timestamp")
        fields.append(StructField(field.name, _spark_type(field.type, field.name), nullable))
    return StructType(fields)


def _spark_type(kind: pa.DataType, name: str) -> DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        return from_arrow_type(plain(kind))
    except PySparkException as error:
        raise InvalidArgumentError(
            "Spark has no type for a column of this topic", column=name, type=kind
        ) from error


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark has for an Arrow type."""
    if pt.is_dictionary(kind):
        return plain(kind.value_type)
    if pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pt.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return pa.list_(plain(kind.value_type))
    return _WIDER.get(kind, kind)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def read_columns(schema: StructType) -> list[str]:
    """Return the columns of a topic that a projection needs."""
    return [name for name in schema.fieldNames() if name != TOPIC]


def check_projection(wanted: StructType, whole: StructType) -> None:
    """Raise if a schema has a column that the topic does not have, or with another type."""
    fields = {field.name: field for field in whole.fields}
    for field in wanted.fields:
        column = fields.get(field.name)
        if column is None:
            raise InvalidArgumentError(
                "the schema names an unknown column",
                column=field.name,
                columns=", ".join(fields),
            )
        if not _covers(column.dataType, field.dataType):
            raise InvalidArgumentError(
                "the schema gives a column another type than it has",
                column=field.name,
                type=field.dataType.simpleString(),
                has=column.dataType.simpleString(),
            )


def _covers(has: DataType, wanted: DataType) -> bool:
    """Return whether a type can be read as another: the same, or a struct of some of its fields."""
    from pyspark.sql.types import StructType

    if isinstance(has, StructType) and isinstance(wanted, StructType):
        types = {field.name: field.dataType for field in has.fields}
        return all(
            field.name in types and _covers(types[field.name], field.dataType)
            for field in wanted.fields
        )
    return has.simpleString() == wanted.simpleString()


class Fitter:
    """Casts batches of one topic to the schema that Spark expects."""

    def __init__(self, schema: pa.Schema, topic: str) -> None:
        self._schema = schema
        self._topic = topic

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in Spark's schema; a field that it does not have is null."""
        columns = [self._column(batch, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name == TOPIC:
            return pa.repeat(pa.scalar(self._topic, pa.string()), batch.num_rows)
        return fit(batch.column(field.name), field.type)


def fit(column: Any, kind: pa.DataType) -> Any:
    """Cast a column to an equivalent type; fields of structs are matched by name."""
    if column.type.equals(kind):
        return column
    if pt.is_struct(kind) and pt.is_struct(column.type):
        return _fit_struct(column, kind)
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise SchemaMismatchError(
            "a column cannot be given to Spark", type=column.type, wanted=kind, reason=error
        ) from error


def _fit_struct(column: Any, kind: pa.DataType) -> pa.StructArray:
    names = {field.name for field in column.type}
    children: Sequence[Any] = [
        fit(_child(column, field.name), field.type)
        if field.name in names
        else pa.nulls(len(column), field.type)
        for field in kind
    ]
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _child(column: pa.StructArray, name: str) -> pa.Array:
    """Return a field of a struct column, for the rows that the column has."""
    import pyarrow.compute as pc

    return pc.struct_field(column, name)
