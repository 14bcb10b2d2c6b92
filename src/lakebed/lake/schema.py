"""The columns of a segment: their types, their field ids, and how each is encoded.

Field ids are what an Iceberg table finds a column by. They are numbered in the order in which a
reader of the schema meets them: partition 1, offset 2, timestamp 3, key 4, headers 5 (its key 6,
its value 7), value 8, and the fields of a typed value from 9 on, depth first. Fields added at the
end of a typed value therefore leave the ids of the others as they were.

Encodings, each measured against the other choices (see DESIGN.md): integers and times as packed
differences; a raw value plain, because no two are alike; everything else with a dictionary that is
given up early.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
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
_ID: Final = b"PARQUET:field_id"
_INTEGERS: Final = ("INT32", "INT64")


class Encodings(NamedTuple):
    """How the leaf columns of a file are encoded, by path."""

    dictionary: list[str]
    others: dict[str, str]
    statistics: list[str]
    """Those with least and greatest values in the footer: all but a raw value, which nobody seeks
    by its bytes."""


def segment_schema(value: pa.DataType) -> pa.Schema:
    """Give the columns of a topic whose values have this type, as readers see them."""
    return pa.schema(list(zip(COLUMNS, (*_FIXED, value), strict=True)))


def file_schema(schema: pa.Schema) -> pa.Schema:
    """Give the schema that is written: the same columns, with field ids. Others are refused."""
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
    ids = itertools.count(1)
    plain = segment_schema(schema.field("value").type)
    return pa.schema([_rebuilt(field, lambda each: _with_id(each, next(ids))) for field in plain])


def without_ids(field: pa.Field) -> pa.Field:
    """Give a field as it was before it got ids: what is read has the type of what was written."""
    return _rebuilt(field, _without_id)


def chosen(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Give the columns asked for, in their fixed order; all if none are named."""
    if columns is None:
        return COLUMNS
    wanted = set(columns)
    unknown = wanted.difference(COLUMNS)
    if unknown or not wanted:
        raise InvalidArgumentError(
            "columns are some of " + ", ".join(COLUMNS), unknown=",".join(sorted(unknown))
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
    found = pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata.schema
    return [found.column(number) for number in range(len(found))]


def _with_id(field: pa.Field, number: int) -> pa.Field:
    kept = dict(field.metadata or {})
    return field.with_metadata({**kept, _ID: str(number).encode()})


def _without_id(field: pa.Field) -> pa.Field:
    kept = {name: value for name, value in (field.metadata or {}).items() if name != _ID}
    return field.with_metadata(kept) if kept else field.remove_metadata()


def _rebuilt(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """Apply `change` to a field, and to every field within it, outermost first."""
    field = change(field)
    kind = field.type

    def inner(child: pa.Field) -> pa.Field:
        return _rebuilt(child, change)

    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([inner(each) for each in kind]))
    if pa.types.is_map(kind):
        key, item = inner(kind.key_field), inner(kind.item_field)
        return field.with_type(pa.map_(key, item, keys_sorted=kind.keys_sorted))
    if pa.types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(inner(kind.value_field), kind.list_size))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(inner(kind.value_field)))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(inner(kind.value_field)))
    return field
