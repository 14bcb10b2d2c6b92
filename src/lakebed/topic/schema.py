"""The schema of a topic: what a typed value may hold, how it may change, and the columns around it.

A typed value lives in Parquet, in an Iceberg table and in Spark, so its schema holds only what all
three hold without loss:

    bool, int32, int64, float, double, string, binary, date32, decimal128(precision, 0..precision),
    timestamp[us], timestamp[us, tz=UTC], and list, struct and map (simple keys) of these

The variants large_string, string_view, large_binary, binary_view and large_list say the same in
another layout and are taken as string, binary and list. Names are unique within a struct without
regard to case, as Spark and Iceberg need them. Metadata is dropped.

A schema is encoded as an Arrow IPC schema message.
"""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa
from pyarrow import types

from lakebed import limits
from lakebed.errors import CorruptionError, InvalidArgumentError, SchemaChangeError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.binary())

_SAME: Final = frozenset(
    [
        pa.bool_(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us"),
        TIMESTAMP,
    ]
)

_NORMAL: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}

_INSTEAD: Final = (
    (types.is_int8, "int32"),
    (types.is_int16, "int32"),
    (types.is_uint64, "decimal128(20, 0), or int64 if the values fit"),
    (types.is_unsigned_integer, "int32 or int64"),
    (types.is_float16, "float"),
    (types.is_decimal, "decimal128 with a precision of up to 38 and a scale from 0 to it"),
    (types.is_timestamp, "timestamp[us] or timestamp[us, tz=UTC]"),
    (types.is_date64, "date32"),
    (types.is_time, "int64 microseconds"),
    (types.is_duration, "int64 microseconds"),
    (types.is_interval, "int32 months or int64 microseconds"),
    (types.is_fixed_size_binary, "binary"),
    (types.is_fixed_size_list, "list"),
    (types.is_list_view, "list"),
    (types.is_large_list_view, "list"),
    (types.is_dictionary, "the dictionary's value type"),
    (types.is_run_end_encoded, "the encoded value type"),
    (types.is_union, "a struct with one nullable field for each case"),
    (types.is_null, "a type that can hold values"),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), "its storage type"),
)


def check_schema(schema: pa.Schema) -> pa.Schema:
    """Return a typed topic's schema in its normal form, or refuse it."""
    if not isinstance(schema, pa.Schema):
        raise InvalidArgumentError(
            "schema must be a pyarrow.Schema, or None for a raw topic",
            got=type(schema).__name__,
        )
    checked = pa.schema(_check_fields(list(schema), "", 1))
    encode_schema(checked)  # it must fit
    return checked


def _check_fields(fields: list[pa.Field], path: str, depth: int) -> list[pa.Field]:
    if not fields:
        raise InvalidArgumentError("a schema or struct needs a field", field=path or "value")
    if depth > limits.SCHEMA_DEPTH_MAX:
        raise InvalidArgumentError(
            "the schema is nested too deeply", field=path, depth_max=limits.SCHEMA_DEPTH_MAX
        )
    _check_names([field.name for field in fields], path)
    return [_check_field(field, _join(path, field.name), depth) for field in fields]


def _check_names(names: list[str], path: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise InvalidArgumentError("a field needs a name", struct=path or "value")
        if "." in name:  # Parquet and Iceberg name a field within another with a dot between them
            raise InvalidArgumentError("a field's name may not have a dot", field=name)
        if name.lower() in seen:
            raise InvalidArgumentError(
                "two fields have the same name, apart from upper and lower case",
                field=_join(path, name),
                other=_join(path, seen[name.lower()]),
            )
        seen[name.lower()] = name


def _check_field(field: pa.Field, path: str, depth: int) -> pa.Field:
    return pa.field(field.name, _check_type(field.type, path, depth), field.nullable)


def _check_type(kind: pa.DataType, path: str, depth: int) -> pa.DataType:
    if kind in _SAME:
        return kind
    if kind in _NORMAL:
        return _NORMAL[kind]
    if types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return kind
    if types.is_struct(kind):
        return pa.struct(_check_fields(list(kind), path, depth + 1))
    if types.is_list(kind) or types.is_large_list(kind):
        element = pa.field("element", kind.value_type, kind.value_field.nullable)
        return pa.list_(*_check_fields([element], path, depth + 1))
    if types.is_map(kind):
        return _check_map(kind, path, depth)
    raise _type_error(kind, path)


def _check_map(kind: pa.MapType, path: str, depth: int) -> pa.DataType:
    if types.is_nested(kind.key_type):
        raise InvalidArgumentError(
            "a map's key must not be nested: use string", field=path, type=kind
        )
    key = pa.field("key", kind.key_type, nullable=False)
    item = pa.field("value", kind.item_type, kind.item_field.nullable)
    return pa.map_(*_check_fields([key, item], path, depth + 1))


def _type_error(kind: pa.DataType, path: str) -> InvalidArgumentError:
    instead = next((use for is_kind, use in _INSTEAD if is_kind(kind)), "another type")
    return InvalidArgumentError(
        "a field has a type that Parquet, Iceberg and Spark do not all hold",
        field=path,
        type=kind,
        use=instead,
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def check_change(old: pa.Schema, new: pa.Schema) -> None:
    """Refuse a change of a checked schema, unless it only adds nullable fields at the end.

    Fields may be added at the end of the value and of structs directly within it, to any depth;
    not to structs inside lists and maps.
    """
    _check_fields_change(list(old), list(new), "")


def _check_fields_change(old: list[pa.Field], new: list[pa.Field], path: str) -> None:
    for was, wanted in zip(old, new, strict=False):
        _check_field_change(was, wanted, path)
    for gone in old[len(new) :]:
        raise _change_refused("a field would be gone", _join(path, gone.name), gone, "nothing")
    for added in new[len(old) :]:
        if not added.nullable:
            name = _join(path, added.name)
            raise _change_refused("an added field must be nullable", name, "nothing", added)


def _check_field_change(was: pa.Field, wanted: pa.Field, path: str) -> None:
    name = _join(path, was.name)
    if was.equals(wanted):
        return
    if was.name != wanted.name:
        raise _change_refused("a field would move or be renamed", name, was, wanted)
    if was.nullable != wanted.nullable:
        raise _change_refused("a field would change its nullability", name, was, wanted)
    if not (types.is_struct(was.type) and types.is_struct(wanted.type)):
        raise _change_refused("a field would change its type", name, was, wanted)
    _check_fields_change(list(was.type), list(wanted.type), name)


def _change_refused(message: str, field: str, was: object, wanted: object) -> SchemaChangeError:
    return SchemaChangeError(message, field=field, was=_describe(was), wanted=_describe(wanted))


def _describe(field: object) -> str:
    if not isinstance(field, pa.Field):
        return str(field)
    return f"{field.name}: {field.type}{'' if field.nullable else ' not null'}"


def encode_schema(schema: pa.Schema) -> bytes:
    """Return a checked schema's bytes: equal schemas have equal bytes."""
    data: bytes = schema.serialize().to_pybytes()
    if len(data) > limits.SCHEMA_BYTES_MAX:
        raise InvalidArgumentError(
            "the schema is too large", bytes=len(data), bytes_max=limits.SCHEMA_BYTES_MAX
        )
    return data


def decode_schema(data: bytes) -> pa.Schema:
    """Return the schema that was encoded; anything else is a `CorruptionError`."""
    if len(data) > limits.SCHEMA_BYTES_MAX:
        raise CorruptionError(
            "a schema is too large", bytes=len(data), bytes_max=limits.SCHEMA_BYTES_MAX
        )
    try:
        return check_schema(pa.ipc.read_schema(pa.py_buffer(data)))
    except (pa.ArrowException, InvalidArgumentError, OSError, ValueError) as error:
        raise CorruptionError(f"a schema cannot be read: {error}", bytes=len(data)) from error


def value_type(schema: pa.Schema | None) -> pa.DataType:
    """Return the type of the column `value`: binary for a raw topic, a struct for a typed one."""
    return pa.binary() if schema is None else pa.struct(list(schema))


@functools.lru_cache(maxsize=1024)
def storage_schema(value_type: pa.DataType) -> pa.Schema:
    """Return the columns of a batch as it is written."""
    return pa.schema(
        [
            pa.field("timestamp", TIMESTAMP, nullable=False),
            pa.field("key", pa.binary()),
            pa.field("headers", HEADERS),
            pa.field("value", value_type),
        ]
    )


@functools.lru_cache(maxsize=1024)
def reader_schema(value_type: pa.DataType) -> pa.Schema:
    """Return the columns of a batch as a reader gets it."""
    stored = storage_schema(value_type)
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            *((field.name, field.type) for field in stored),
        ]
    )


def evolve(batch: pa.RecordBatch, value_type: pa.DataType) -> pa.RecordBatch:
    """Return the batch with the value's type as it is now: fields added since are null.

    What was there is not copied. A batch without the column `value` is given back as it is.
    """
    index = batch.schema.get_field_index("value")
    if index < 0 or batch.schema.field(index).type == value_type:
        return batch
    field = batch.schema.field(index).with_type(value_type)
    return batch.set_column(index, field, _grow(batch.column(index), value_type, "value"))


def _grow(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    if array.type == kind:
        return array
    if not (types.is_struct(array.type) and types.is_struct(kind)):
        raise SchemaChangeError(
            "a stored value does not fit the schema", field=path, was=array.type, wanted=kind
        )
    _check_fields_change(list(array.type), list(kind), path)
    children = [
        _grow(array.field(index), field.type, _join(path, field.name))
        if index < array.type.num_fields
        else pa.nulls(len(array), field.type)
        for index, field in enumerate(kind)
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
