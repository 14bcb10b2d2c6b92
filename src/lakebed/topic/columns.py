"""Arrow columns as a caller gives them, brought to the types that are stored.

The same content in another layout (large, view, dictionary, other order of fields) is converted;
a column that is right already is not touched. Content of another type is refused: a number is never
made from a text, nor cut to a smaller one. Memory for a conversion is taken out of a `Room` first.
"""

from __future__ import annotations

import functools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lakebed.errors import InvalidArgumentError, SchemaMismatchError
from lakebed.topic.expansion import ExpansionBudget, has_negative_view
from lakebed.topic.schema import HEADERS, TIMESTAMP
from lakebed.topic.times import check_array


def mismatch(column: str, expected: object, got: object, **facts: object) -> SchemaMismatchError:
    """Return which column is not what the topic expects."""
    return SchemaMismatchError(
        "a column does not fit the topic", column=column, expected=expected, got=got, **facts
    )


def constant_timestamps(time_us: int, rows: int) -> pa.Array:
    """Return the same time for each row."""
    times = np.full(rows, time_us, np.int64)
    return pa.Array.from_buffers(TIMESTAMP, rows, [None, pa.py_buffer(times)], 0)


def timestamp_column(array: pa.Array, now_us: int) -> pa.Array:
    """Return timestamps in microseconds, UTC; what has no zone is UTC, and what is null is now."""
    kind = array.type
    if types.is_null(kind):
        return constant_timestamps(now_us, len(array))
    if not types.is_timestamp(kind):
        raise mismatch("timestamp", "a timestamp", kind)
    check_array(array, "timestamp")
    if kind != TIMESTAMP:
        # Nanoseconds are cut to microseconds.
        array = _convert(array, pa.timestamp("us", kind.tz), "timestamp", safe=kind.unit != "ns")
        array = array.view(TIMESTAMP)
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(now_us, TIMESTAMP))
    return array


def binary_column(array: pa.Array, column: str, room: ExpansionBudget) -> pa.Array:
    """Return the bytes of a key or raw value; text is its UTF-8 encoding."""
    kind = array.type
    if kind == pa.binary():
        return array
    if types.is_dictionary(kind):
        return _decode(array, binary_column(array.dictionary, column, room), room)
    if types.is_null(kind):
        return _nulls(pa.binary(), len(array), room)
    if not (_is_text(kind) or _is_bytes(kind)):
        raise mismatch(column, "binary or string", kind)
    return _cast(array, pa.binary(), column, room)


def headers_column(array: pa.Array, room: ExpansionBudget) -> pa.Array:
    """Return the headers as a map of text to bytes."""
    kind = array.type
    if kind == HEADERS:
        return array
    if types.is_null(kind):
        return _nulls(HEADERS, len(array), room)
    if not (
        types.is_map(kind)
        and _is_text(kind.key_type)
        and (_is_text(kind.item_type) or _is_bytes(kind.item_type))
    ):
        raise mismatch("headers", HEADERS, kind)
    return _cast(array, HEADERS, "headers", room)


def column_of_type(
    array: pa.Array, kind: pa.DataType, room: ExpansionBudget, path: str = "value"
) -> pa.Array:
    """Return the values of a typed topic, the fields of structs matched by name."""
    got = array.type
    if got == kind:
        return array
    if types.is_null(got):
        return _nulls(kind, len(array), room)
    if types.is_dictionary(got):
        if types.is_nested(kind):
            raise mismatch(path, kind, got)
        return _decode(array, column_of_type(array.dictionary, kind, room, path), room)
    if types.is_struct(kind) and types.is_struct(got):
        return _struct(array, kind, room, path)
    if not _same_content(got, kind):
        raise mismatch(path, kind, got)
    return _cast(array, kind, path, room)


def _decode(array: pa.DictionaryArray, values: pa.Array, room: ExpansionBudget) -> pa.Array:
    """Write out a dictionary whose values have the stored type."""
    room.take_dictionary(array.indices, values)
    return pa.DictionaryArray.from_arrays(array.indices, values, safe=False).dictionary_decode()


def _nulls(kind: pa.DataType, rows: int, room: ExpansionBudget) -> pa.Array:
    room.take_nulls(kind, rows)
    return pa.nulls(rows, kind)


def _struct(
    array: pa.StructArray, kind: pa.StructType, room: ExpansionBudget, path: str
) -> pa.Array:
    names = [field.name for field in array.type]
    expected = {field.name for field in kind}
    for name in names:
        if name not in expected:
            raise mismatch(f"{path}.{name}", "no such field", array.type.field(name).type)
        if names.count(name) > 1:
            raise mismatch(f"{path}.{name}", "one field of this name", names.count(name))
    children = [_child(array, names, field, room, f"{path}.{field.name}") for field in kind]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _child(
    array: pa.StructArray, names: list[str], field: pa.Field, room: ExpansionBudget, path: str
) -> pa.Array:
    if field.name in names:
        return column_of_type(array.field(names.index(field.name)), field.type, room, path)
    if not field.nullable:
        raise mismatch(path, f"{field.type} not null", "no such field")
    return _nulls(field.type, len(array), room)


def _same_content(got: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether one type holds what the other does, so that a cast loses nothing."""
    if got == kind or (_is_text(got) and _is_text(kind)) or (_is_bytes(got) and _is_bytes(kind)):
        return True
    if types.is_timestamp(got) and types.is_timestamp(kind):
        return (got.tz is None) == (kind.tz is None)
    if types.is_list(kind) and (types.is_list(got) or types.is_large_list(got)):
        return _same_content(got.value_type, kind.value_type)
    if types.is_map(kind) and types.is_map(got):
        keys = _same_content(got.key_type, kind.key_type)
        return keys and _same_content(got.item_type, kind.item_type)
    if types.is_struct(kind) and types.is_struct(got):
        pairs = list(zip(got, kind, strict=False))
        return got.num_fields == kind.num_fields and all(
            one.name == other.name and _same_content(one.type, other.type) for one, other in pairs
        )
    return False


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _cast(array: pa.Array, kind: pa.DataType, column: str, room: ExpansionBudget) -> pa.Array:
    if has_negative_view(array):
        raise InvalidArgumentError(
            "the Arrow data is not valid: a view has a negative size", column=column
        )
    room.take_cast(array)
    return _convert(array, kind, column)


def _convert(array: pa.Array, kind: pa.DataType, column: str, *, safe: bool = True) -> pa.Array:
    try:
        return array.cast(kind, safe=safe)
    except (pa.ArrowException, NotImplementedError) as error:
        raise mismatch(column, kind, array.type, why=error) from error


def check_required(array: pa.Array, kind: pa.DataType, path: str = "value") -> None:
    """Refuse a null where the schema says that there is always a value."""
    if not types.is_nested(kind) or not _has_required(kind):
        return
    if types.is_struct(kind):
        # Flattening makes a field null where its struct is; those rows have no field to miss.
        absent = array.is_null() if array.null_count else None
        for field, child in zip(kind, array.flatten(), strict=True):
            _check_field(child, field, f"{path}.{field.name}", absent)
    elif types.is_list(kind):
        _check_field(array.flatten(), kind.value_field, f"{path}.element", None)
    elif len(array):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        items = array.items.slice(first, last - first)
        _check_field(items, kind.item_field, f"{path}.value", None)


def _check_field(child: pa.Array, field: pa.Field, path: str, absent: pa.Array | None) -> None:
    if not field.nullable and child.null_count:
        missing = child.is_null()
        if absent is not None:
            missing = pc.and_not(missing, absent)
        row = pc.index(missing, True).as_py()
        if row >= 0:
            raise mismatch(path, f"{field.type} not null", "null", row=row)
    check_required(child, field.type, path)


@functools.lru_cache(maxsize=1024)
def _has_required(kind: pa.DataType) -> bool:
    if types.is_struct(kind):
        return any(not field.nullable or _has_required(field.type) for field in kind)
    if types.is_list(kind):
        return not kind.value_field.nullable or _has_required(kind.value_type)
    if types.is_map(kind):
        return not kind.item_field.nullable or _has_required(kind.item_type)
    return False
