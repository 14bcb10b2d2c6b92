"""The columns of a segment: their types, their field ids, and how each is encoded.

Field ids are what an Iceberg table finds a column by. They are given as Iceberg's catalogs give
them to a new table: all fields of a struct first, then what is inside each of them. So partition is
1, offset 2, timestamp 3, key 4, headers 5, value 6, key and value of the headers 7 and 8, and the
fields of a typed value begin at 9. A field that a later version of the topic's schema adds,
wherever it is, gets the next number: those of the others stay as they were.

Encodings, each measured against the other choices (see DESIGN.md): integers and times as packed
differences; a raw value plain, because no two are alike; everything else with a dictionary that is
given up early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.errors import InvalidArgumentError, SchemaMismatchError

COLUMNS: Final = ("partition", "offset", "timestamp", "key", "headers", "value")
"""The columns of a segment and of every batch that is read, in their order."""

_FIXED: Final = (
    pa.int32(),
    pa.int64(),
    pa.timestamp("us", "UTC"),
    pa.binary(),
    pa.map_(pa.string(), pa.binary()),
)
FIELD_ID: Final = b"PARQUET:field_id"
"""Under this name an Arrow field says its field id."""
_INTEGERS: Final = ("INT32", "INT64")


class Encodings(NamedTuple):
    """How the leaf columns of a file are encoded, by path."""

    dictionary: list[str]
    others: dict[str, str]
    statistics: list[str]
    """Those with least and greatest values in the footer: all but a raw value, which no query seeks
    by its bytes."""


def segment_schema(value: pa.DataType) -> pa.Schema:
    """Return the columns of a topic whose values have this type, as readers see them."""
    return pa.schema(list(zip(COLUMNS, (*_FIXED, value), strict=True)))


def file_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that is written: the same columns, with field ids. Others are refused."""
    if tuple(schema.names) != COLUMNS:
        raise SchemaMismatchError(
            "a segment has the columns " + ", ".join(COLUMNS), found=",".join(schema.names)
        )
    for name, expected in zip(COLUMNS, _FIXED, strict=False):
        if schema.field(name).type != expected:
            raise SchemaMismatchError(
                "a column has the wrong type",
                column=name,
                expected=expected,
                found=schema.field(name).type,
            )
    if all(FIELD_ID in (field.metadata or {}) for field in schema):
        return schema.remove_metadata()
    return schema_with_ids([schema.field("value").type])


def schema_with_ids(values: Sequence[pa.DataType]) -> pa.Schema:
    """Return the columns with field ids, of a topic whose value had these types in turn."""
    ids: dict[tuple[str, ...], int] = {}
    for value in values:
        _number(ids, (), list(segment_schema(value)))
    return pa.schema([_add_ids(field, ids, ()) for field in segment_schema(values[-1])])


def fields_with_ids(fields: Sequence[pa.Field]) -> pa.Schema:
    """Return columns with the field ids that a catalog gives to a new table."""
    ids: dict[tuple[str, ...], int] = {}
    _number(ids, (), list(fields))
    return pa.schema([_add_ids(field, ids, ()) for field in fields])


def _number(ids: dict[tuple[str, ...], int], path: tuple[str, ...], fields: list[pa.Field]) -> None:
    for field in fields:
        ids.setdefault((*path, field.name), len(ids) + 1)
    for field in fields:
        _number(ids, (*path, field.name), _inside(field.type))


def _inside(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields directly within a type."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(index) for index in range(kind.num_fields)]


def _add_ids(field: pa.Field, ids: dict[tuple[str, ...], int], path: tuple[str, ...]) -> pa.Field:
    path = (*path, field.name)
    field = _with_id(field, ids[path])
    return _with_inside(field, [_add_ids(child, ids, path) for child in _inside(field.type)])


def without_ids(field: pa.Field) -> pa.Field:
    """Return a field as it was before it got ids: what is read has the type of what was written."""
    return _rebuilt(field, _without_id)


def choose_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return the columns asked for, in their fixed order; all if none are named."""
    if columns is None:
        return COLUMNS
    wanted = set(columns)
    unknown = wanted.difference(COLUMNS)
    if unknown or not wanted:
        raise InvalidArgumentError(
            "columns must be some of " + ", ".join(COLUMNS), unknown=",".join(sorted(unknown))
        )
    return tuple(name for name in COLUMNS if name in wanted)


def encodings(schema: pa.Schema) -> Encodings:
    """Choose the encoding of each leaf column of a file."""
    leaves = _leaves(schema)
    dictionary, others = [], {}
    for leaf in leaves:
        if leaf.physical_type in _INTEGERS:
            others[leaf.path] = "DELTA_BINARY_PACKED"
        elif leaf.physical_type == "BOOLEAN" or leaf.path == "value":
            others[leaf.path] = "PLAIN"
        else:
            dictionary.append(leaf.path)
    return Encodings(dictionary, others, [leaf.path for leaf in leaves if leaf.path != "value"])


def _leaves(schema: pa.Schema) -> list[Any]:
    """Ask the Parquet library how it lays the columns out, rather than repeat its rules."""
    sink = pa.BufferOutputStream()
    try:
        pq.ParquetWriter(sink, schema).close()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError("a Parquet file cannot hold this type", reason=error) from error
    columns = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata.schema
    return [columns.column(index) for index in range(len(columns))]


def _with_id(field: pa.Field, field_id: int) -> pa.Field:
    kept = dict(field.metadata or {})
    return field.with_metadata({**kept, FIELD_ID: str(field_id).encode()})


def _without_id(field: pa.Field) -> pa.Field:
    kept = {name: value for name, value in (field.metadata or {}).items() if name != FIELD_ID}
    return field.with_metadata(kept) if kept else field.remove_metadata()


def _rebuilt(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Apply `change` to a field, and to every field within it."""
    return _with_inside(change(field), [_rebuilt(child, change) for child in _inside(field.type)])


def _with_inside(field: pa.Field, inside: list[pa.Field]) -> pa.Field:
    """Return a field whose type has other fields within it."""
    kind = field.type
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(inside))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(*inside, keys_sorted=kind.keys_sorted))
    if pa.types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(inside[0], kind.list_size))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(inside[0]))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(inside[0]))
    return field
