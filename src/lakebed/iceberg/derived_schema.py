"""The columns of a derived table: types that Iceberg, Parquet and Spark share, and field ids.

Columns are nullable, so that one can be added later. A table with a key has the column `_bucket`
behind those it was made with; a history has `valid_from`, `valid_to` and `is_current` before it.
Field ids are those that a catalog gives to a new table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from lakebed.errors import InvalidArgumentError, SchemaMismatchError, TableExistsError
from lakebed.lake.schema import FIELD_ID, fields_with_ids
from lakebed.reports.derived import (
    BUCKET,
    IS_CURRENT,
    KINDS,
    VALID_FROM,
    VALID_TO,
    DerivedTable,
)

BUCKETS_MAX: Final = 4096
_TIME: Final = pa.timestamp("us", "UTC")
_HISTORY: Final = ((VALID_FROM, _TIME), (VALID_TO, _TIME), (IS_CURRENT, pa.bool_()))
_RESERVED: Final = frozenset([BUCKET, "_deleted", "_order", "_time"])
_WIDER: Final = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
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


def table_schema(schema: pa.Schema, kind: str, key: Sequence[str], buckets: int) -> pa.Schema:
    """Return the columns of a new table, with field ids; refuse what cannot be one."""
    _check_shape(schema, kind, key, buckets)
    fields = [plain_field(field) for field in schema]
    if kind == "history":
        fields += [pa.field(*column) for column in _HISTORY]
    if kind != "append":
        fields.append(pa.field(BUCKET, pa.int32()))
    columns = fields_with_ids(fields)
    _check_key(columns, key)
    return columns


def missing_columns(wanted: pa.Schema, have: pa.Schema) -> list[pa.Field]:
    """Return the columns that a table lacks; refuse those that it has with another type."""
    fields = [plain_field(field) for field in wanted]
    for field in fields:
        if field.name in have.names and have.field(field.name).type != field.type:
            raise SchemaMismatchError(
                "a column of the table has another type",
                column=field.name,
                expected=have.field(field.name).type,
                found=field.type,
            )
    return [field for field in fields if field.name not in have.names]


def check_same_definition(
    table: DerivedTable, schema: pa.Schema, kind: str, key: tuple[str, ...], buckets: int
) -> None:
    """Refuse a table that lacks a column of a schema, or that is made differently."""
    have = {field.name: field.type for field in table.schema}
    missing = [field.name for field in schema if field.name not in have]
    other = [field.name for field in schema if have.get(field.name) not in (None, field.type)]
    shape = (kind, key, buckets)
    if missing or other or (table.kind, table.key, table.buckets) != shape:
        raise TableExistsError(
            "a table of this name exists with another definition",
            table=table.name,
            kind=table.kind,
            key=",".join(table.key),
            buckets=table.buckets,
            columns=",".join(missing + other) or "the same",
        )


def _check_shape(schema: pa.Schema, kind: str, key: Sequence[str], buckets: int) -> None:
    if not isinstance(schema, pa.Schema):
        raise InvalidArgumentError("schema must be a pyarrow.Schema", got=type(schema).__name__)
    if kind not in KINDS:
        raise InvalidArgumentError("kind must be one of " + ", ".join(KINDS), got=repr(kind))
    if (kind == "append") != (not key) or isinstance(key, str):
        raise InvalidArgumentError(
            "a current or history table needs the names of its key columns, another has none",
            kind=kind,
            key=repr(key),
        )
    least = 0 if kind == "append" else 1
    most = 0 if kind == "append" else BUCKETS_MAX
    if not isinstance(buckets, int) or not least <= buckets <= most:
        raise InvalidArgumentError(f"buckets must be from {least} to {most}", got=repr(buckets))
    reserved = _RESERVED if kind != "history" else _RESERVED.union(name for name, _ in _HISTORY)
    lowered = [name.lower() for name in schema.names]
    if not schema.names or len(set(lowered)) != len(lowered):
        raise InvalidArgumentError("column names must differ in more than case")
    taken = sorted(reserved.intersection(lowered))
    if taken:
        raise InvalidArgumentError("this column name is reserved", column=taken[0])


def _check_key(schema: pa.Schema, key: Sequence[str]) -> None:
    for name in key:
        if name not in schema.names:
            raise InvalidArgumentError("a column of the key is not in the schema", column=name)
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise InvalidArgumentError(
                "key columns must be integers, strings, bytes, times or decimals",
                column=name,
                type=kind,
            )


def plain_field(field: pa.Field) -> pa.Field:
    """Return a column as stored: nullable, of a type that all readers know, with its field id."""
    field_id = (field.metadata or {}).get(FIELD_ID)
    kept = None if field_id is None else {FIELD_ID: field_id}
    return pa.field(field.name, _kind(field.type, field.name), metadata=kept)


def _kind(kind: pa.DataType, name: str) -> pa.DataType:
    """Return the type with which a column is kept."""
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type, name)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        key = plain_field(kind.key_field).with_name("key").with_nullable(False)
        return pa.map_(key, plain_field(kind.item_field).with_name("value"))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_field(kind.value_field).with_name("element"))
    if _is_plain(kind):
        return kind
    raise SchemaMismatchError("a table cannot have this type", column=name, type=kind)


def _is_plain(kind: pa.DataType) -> bool:
    return (
        kind in (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
        or kind in (pa.string(), pa.binary(), pa.date32())
        or pa.types.is_decimal128(kind)
    )
