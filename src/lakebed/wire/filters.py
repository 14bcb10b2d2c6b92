"""Filters as plain data, in the form of pyarrow's `filters`, and their trees.

    [("offset", ">", 5), (("value", "city"), "in", ["Rome", "Oslo"])]    all of them hold
    [[("partition", "=", 0)], [("offset", "<", 7)]]                      one of the lists does

A column is a name, or a tuple of names for a field within a value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import InvalidArgumentError, ProtocolError
from lakebed.wire.predicates import type_of, unpack_predicate

_COMPARISONS: Final = {
    "=": "equal",
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
OPERATORS: Final = (*_COMPARISONS, "in", "not in")
"""What a filter compares by."""
_NATURAL: Final = (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary())
"""Types that a value has without saying so."""


def is_filters(where: object) -> bool:
    """Return whether a predicate is plain data, and not an expression of pyarrow."""
    return isinstance(where, list | tuple)


def filter_expression(filters: Sequence[Any]) -> pc.Expression:
    """Return filters as an expression, or raise `InvalidArgumentError`."""
    return unpack_predicate(filter_tree(filters))


def filter_tree(filters: Sequence[Any]) -> list[Any]:
    """Return filters as the tree that a server takes, or raise `InvalidArgumentError`."""
    if not filters:
        raise _invalid("where must have at least one filter", filters)
    lists = filters if all(isinstance(row, list) for row in filters) else [filters]
    return check_tree(_join("or_kleene", [_conjunction(row) for row in lists]))


def check_tree(tree: list[Any]) -> list[Any]:
    """Return a tree that a server takes; raise `InvalidArgumentError` for others."""
    try:
        unpack_predicate(tree)
    except ProtocolError as error:
        raise InvalidArgumentError(
            "filters and served logs do not take this predicate; filter the result instead",
            reason=str(error),
        ) from error
    return tree


def _conjunction(filters: Sequence[Any]) -> list[Any]:
    if not filters:
        raise _invalid("where must have at least one filter", filters)
    return _join("and_kleene", [_filter_node(row) for row in filters])


def _join(function: str, nodes: list[list[Any]]) -> list[Any]:
    return nodes[0] if len(nodes) == 1 else [function, *nodes]


def _filter_node(row: Any) -> list[Any]:
    if not isinstance(row, tuple) or len(row) != 3:
        raise _invalid("a filter must be a tuple of column, operator and value", row)
    column, operator, value = row
    names = [column] if isinstance(column, str) else column
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise _invalid("the column of a filter must be a name or a tuple of names", column)
    field = ["field", *names]
    if operator not in OPERATORS:
        raise _invalid("unknown operator of a filter", operator, known=", ".join(OPERATORS))
    if operator in _COMPARISONS:
        return [_COMPARISONS[operator], field, value_node(_arrow([value], value))]
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise _invalid(f"the value of `{operator}` must be a collection", value)
    listed = _arrow(list(value), value)
    member = ["is_in", field, type_name(listed.type), plain_values(listed), False]
    return member if operator == "in" else ["invert", member]


def _arrow(values: list[Any], origin: Any) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _invalid("a value of a filter is not one of Arrow", origin, reason=error) from error


def _invalid(message: str, origin: object, **facts: object) -> InvalidArgumentError:
    return InvalidArgumentError(message, got=repr(origin)[:200], **facts)


# Values, as they travel


def value_node(column: pa.Array) -> list[Any]:
    """Return the only value of a column as a node."""
    (value,) = plain_values(column)
    return ["value", value] if column.type in _NATURAL else ["value", value, str(column.type)]


def plain_values(column: pa.Array) -> list[Any]:
    """Return values as they travel: times as integers, decimals as text."""
    type_name(column.type)
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(column.type):
        return [None if value is None else format(value, "f") for value in values]
    return values


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type, if it is one that a server takes."""
    try:
        if type_of(str(kind)) == kind:
            return str(kind)
    except ProtocolError:
        pass
    raise predicate_error("value", type=str(kind))


def predicate_error(function: str, **facts: Any) -> InvalidArgumentError:
    """Return the error of a predicate that has something which a server does not take."""
    return InvalidArgumentError(
        "filters and served logs do not take this in a predicate; filter the result instead",
        function=function,
        **facts,
    )
