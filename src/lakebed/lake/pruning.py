"""Leaves out row groups that cannot hold a record a predicate wants, by what the footer says.

What is known of a row group is written as an expression that is true of each of its records: bounds
of its offsets and times, and of each column with statistics its least and greatest value and
whether it has nulls; a field that was added to the schema later is null in all of them. The
expression library then decides whether a record can satisfy both. It knows such expressions as
those of a partitioned data set, and a row group is offered to it as one file of such a set; the
file itself is never looked for.

Floating point numbers are left out: the statistics do not say whether there are NaNs, which neither
are within bounds nor fail every negated comparison with them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from lakebed.lake.open_segment import OpenSegment
from lakebed.lake.segment_index import RowGroup

_TIME: Final = pa.timestamp("us", "UTC")
Path = tuple[str, ...]


def may_match(
    opened: OpenSegment,
    numbers: Sequence[int],
    predicate: pc.Expression,
    schema: pa.Schema,
    names: Sequence[str],
) -> list[int]:
    """Return those of some row groups that may hold a record that satisfies the predicate.

    `schema` is that of the reader, over which the predicate is bound; `names` are the columns in
    it.
    """
    facts = [facts_of(opened, row_group, schema, names) for row_group in numbers]
    may = _satisfiable(facts, predicate, schema)
    return [row_group for row_group, possible in zip(numbers, may, strict=True) if possible]


def facts_of(
    opened: OpenSegment, row_group: int, schema: pa.Schema, names: Sequence[str]
) -> pc.Expression:
    """Return an expression that is true of every record of a row group."""
    facts = _bounds(opened.index.row_groups[row_group])
    if "key" in names:
        leaf = opened.leaves.index("key")
        facts += _of_leaf(opened, row_group, leaf, ("key",), pa.binary())
    if "value" in names:
        value = schema.field("value").type
        leaf = opened.leaves.index("value")
        for path, kind, offset in _leaves(opened.value_type, value, ("value",), 0):
            if offset is None:
                facts.append(pc.field(*path).is_null())
            else:
                facts += _of_leaf(opened, row_group, leaf + offset, path, kind)
    return functools.reduce(lambda all_known, fact: all_known & fact, facts)


def _bounds(group: RowGroup) -> list[pc.Expression]:
    least, greatest = (pa.scalar(time, _TIME) for time in (group.time_min_us, group.time_max_us))
    return [
        *_between(pc.field("offset"), pa.scalar(group.first), pa.scalar(group.last)),
        *_between(pc.field("timestamp"), least, greatest),
    ]


def _between(field: pc.Expression, least: pa.Scalar, greatest: pa.Scalar) -> list[pc.Expression]:
    return [field >= least, field <= greatest]


def _of_leaf(
    opened: OpenSegment, row_group: int, leaf: int, path: Path, kind: pa.DataType
) -> list[pc.Expression]:
    """Return what the statistics of a column chunk say."""
    statistics = opened.chunk(row_group, leaf).statistics
    if statistics is None or types.is_floating(kind):
        return []
    field = pc.field(*path)
    rows = opened.index.row_groups[row_group].rows
    if statistics.has_null_count and statistics.null_count == rows:
        return [field.is_null()]
    if not statistics.has_min_max:
        return []
    try:
        bounds = _between(field, *(_scalar(statistics, name, kind) for name in ("min", "max")))
    except (OverflowError, ValueError):
        return []  # a time that Python's calendar does not have: the records will tell
    if statistics.has_null_count and not statistics.null_count:
        return bounds
    # Each bound separately: so the library knows it as one that nulls are excepted from.
    return [bound | field.is_null() for bound in bounds]


def _scalar(statistics: Any, name: str, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(getattr(statistics, name), kind)


def _leaves(
    stored: pa.DataType, wanted: pa.DataType, path: Path, offset: int
) -> Iterator[tuple[Path, pa.DataType, int | None]]:
    """Return each simple field within a value as the reader sees it: its path, its type, its leaf.

    The leaf counts from the value's first one; None for a field that the segment lacks.
    """
    if not types.is_struct(wanted):
        if not types.is_nested(wanted):
            yield path, wanted, offset
        return
    for index, field in enumerate(wanted):
        inner = (*path, field.name)
        if index < stored.num_fields:
            child = stored.field(index).type
            yield from _leaves(child, field.type, inner, offset)
            offset += _width(child)
        else:
            yield from _lacking(field.type, inner)


def _lacking(kind: pa.DataType, path: Path) -> Iterator[tuple[Path, pa.DataType, None]]:
    yield path, kind, None
    if types.is_struct(kind):
        for field in kind:
            yield from _lacking(field.type, (*path, field.name))


def _width(kind: pa.DataType) -> int:
    """Count the leaves of a type."""
    if types.is_nested(kind):
        return sum(_width(kind.field(index).type) for index in range(kind.num_fields))
    return 1


def _satisfiable(
    facts: Sequence[pc.Expression], predicate: pc.Expression, schema: pa.Schema
) -> Iterator[bool]:
    """Return of each expression whether a record can satisfy it and the predicate."""
    # Loaded late: most logs are never asked with a predicate, and importing lakebed stays quick.
    from pyarrow import dataset, fs

    nowhere = fs.LocalFileSystem()
    kind = dataset.ParquetFileFormat()
    pieces = [
        kind.make_fragment(str(index), filesystem=nowhere, partition_expression=fact)
        for index, fact in enumerate(facts)
    ]
    files = dataset.FileSystemDataset(pieces, schema, kind, filesystem=nowhere)
    try:
        left = {piece.path for piece in files.get_fragments(filter=predicate)}
    except pa.ArrowException:
        # It has a part that cannot be worked out, such as a division by 0; the records will tell.
        return (True for _ in facts)
    return (str(index) in left for index in range(len(facts)))
