"""Predicates on the wire: a small tree of lists, of which a server builds the expression itself.

    ["field", name, ...]                a column, or a field within it
    ["value", value]                    nil, boolean, int64, double, text or bytes
    ["value", value, type]              any other type, as Arrow names it: "timestamp[us, tz=UTC]"
    [function, node, ...]               a function of `FUNCTIONS`, by Arrow's name
    ["is_null", node, nan_is_null]
    ["is_in", node, type, values, skip_nulls]
    ["starts_with", node, text, ignore_case], likewise "ends_with" and "match_substring"
    ["cast", node, type, safe]

Times, dates and durations are integers of their type's unit, decimals are text. `and_kleene`
and `or_kleene` take two nodes or more. Arrow's own serialized form is not for foreign bytes: its
decoder trusts them, and a reader of a topic could crash the server. A client makes the tree from
filters (`filters.py`) or from an expression of pyarrow (`expressions.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from lakebed import limits
from lakebed.errors import ProtocolError

MANY: Final[Mapping[str, Callable[..., Any]]] = {
    "and_kleene": pc.and_kleene,
    "or_kleene": pc.or_kleene,
}
"""Those that take any number of nodes: a long chain of them is wide in the tree, not deep."""
_ONE: Final = "invert is_valid is_nan negate negate_checked utf8_lower utf8_upper"
_TWO: Final = (
    "equal not_equal less less_equal greater greater_equal add add_checked subtract"
    " subtract_checked multiply multiply_checked divide divide_checked"
)
FIXED: Final[Mapping[str, tuple[int, Callable[..., Any]]]] = {
    name: (arity, getattr(pc, name))
    for arity, names in ((1, _ONE), (2, _TWO))
    for name in names.split()
}
MATCHES: Final[Mapping[str, Callable[..., Any]]] = {
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "match_substring": pc.match_substring,
}
FUNCTIONS: Final = frozenset([*MANY, *FIXED, *MATCHES, "is_null", "is_in", "cast"])
"""The functions that a predicate may have."""

_INTEGERS: Final = {
    str(kind): kind
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    )
}
_PLAIN: Final = {
    str(kind): kind
    for kind in (
        *(pa.null(), pa.bool_(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.string_view()),
        *(pa.binary(), pa.large_binary(), pa.binary_view()),
    )
}
_TIMES: Final = {
    str(kind): kind
    for kind in (
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us")),
        *(pa.time64("ns"), *(pa.duration(unit) for unit in ("s", "ms", "us", "ns"))),
    )
}
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=([A-Za-z0-9_+:/-]{1,64}))?\]")
_DECIMAL: Final = re.compile(r"decimal(128|256)\((\d{1,2}), (-?\d{1,2})\)")
_FIXED_SIZE: Final = re.compile(r"fixed_size_binary\[(\d{1,5})\]")
_NUMBER: Final = re.compile(r"-?\d{1,90}(\.\d{1,90})?")
_TYPE_CHARS_MAX: Final = 120
_PATTERN_CHARS_MAX: Final = 4_096
_NAMES_MAX: Final = 64


def unpack_predicate(tree: Any) -> pc.Expression:
    """Build the expression of a tree from outside; anything wrong is a `ProtocolError`."""
    return _Builder().node(tree, 1)


class _Builder:
    """Builds one expression, and counts."""

    def __init__(self) -> None:
        self._nodes = 0
        self._values = 0

    def node(self, tree: Any, depth: int) -> pc.Expression:
        """Build the expression of a node."""
        self._nodes += 1
        if depth > limits.PREDICATE_DEPTH_MAX:
            _refuse("the predicate is nested too deeply", depth_max=limits.PREDICATE_DEPTH_MAX)
        if self._nodes > limits.PREDICATE_NODES_MAX:
            _refuse("the predicate has too many nodes", nodes_max=limits.PREDICATE_NODES_MAX)
        if not isinstance(tree, tuple | list) or not tree or not isinstance(tree[0], str):
            _refuse("a node of a predicate is a list that begins with its kind")
        kind, *rest = tree
        try:
            return self._build(kind, rest, depth + 1)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(
                "the predicate cannot be read", node=kind[:40], reason=str(error)[:200]
            ) from error

    def _build(self, kind: str, rest: list[Any], depth: int) -> pc.Expression:
        if kind == "field":
            return _field(rest)
        if kind == "value":
            return _literal(rest)
        if kind in MANY:
            _expect(kind, len(rest) >= 2)
            return _balance(MANY[kind], [self.node(child, depth) for child in rest])
        if kind in FIXED:
            arity, function = FIXED[kind]
            _expect(kind, len(rest) == arity)
            return function(*(self.node(child, depth) for child in rest))
        if kind == "is_null":
            _expect(kind, len(rest) == 2 and isinstance(rest[1], bool))
            return self.node(rest[0], depth).is_null(nan_is_null=rest[1])
        if kind == "cast":
            _expect(kind, len(rest) == 3 and isinstance(rest[2], bool))
            return self.node(rest[0], depth).cast(type_of(rest[1]), safe=rest[2])
        if kind == "is_in":
            return self._is_in(rest, depth)
        if kind in MATCHES:
            _expect(kind, len(rest) == 3 and isinstance(rest[2], bool))
            return MATCHES[kind](
                self.node(rest[0], depth), _pattern(kind, rest[1]), ignore_case=rest[2]
            )
        raise ProtocolError("a predicate does not have this", function=kind[:80])

    def _is_in(self, rest: list[Any], depth: int) -> pc.Expression:
        _expect("is_in", len(rest) == 4 and isinstance(rest[3], bool))
        _expect("is_in", isinstance(rest[2], tuple | list))
        self._values += len(rest[2])
        if self._values > limits.PREDICATE_VALUES_MAX:
            _refuse("the predicate has too many values", values_max=limits.PREDICATE_VALUES_MAX)
        kind = type_of(rest[1])
        values = _array(rest[2], kind if any(value is not None for value in rest[2]) else pa.null())
        return pc.is_in(self.node(rest[0], depth), value_set=values, skip_nulls=rest[3])


def _refuse(message: str, **facts: Any) -> NoReturn:
    raise ProtocolError(message, **facts)


def _expect(kind: str, fits: bool) -> None:
    if not fits:
        _refuse("a node of the predicate has other parts", node=kind)


def _balance(function: Callable[..., Any], nodes: list[Any]) -> Any:
    """Join nodes pairwise: what Arrow works through by recursion stays shallow."""
    while len(nodes) > 1:
        nodes = [reduce(function, nodes[start : start + 2]) for start in range(0, len(nodes), 2)]
    return nodes[0]


def _field(names: list[Any]) -> pc.Expression:
    _expect("field", 1 <= len(names) <= _NAMES_MAX)
    _expect("field", all(isinstance(name, str) for name in names))
    return pc.field(*names)


def _pattern(kind: str, pattern: Any) -> str:
    """Return a pattern as text: pyarrow cannot show an expression with other bytes in it."""
    _expect(kind, isinstance(pattern, str | bytes) and len(pattern) <= _PATTERN_CHARS_MAX)
    try:
        return pattern if isinstance(pattern, str) else bytes(pattern).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a pattern must be UTF-8", node=kind, reason=str(error)) from error


def _literal(rest: list[Any]) -> pc.Expression:
    _expect("value", len(rest) in (1, 2))
    if len(rest) == 2:
        kind = type_of(rest[1])
        # A null has no type: Arrow crashes when it casts one of large_string or large_binary.
        return pc.scalar(None if rest[0] is None else _array([rest[0]], kind)[0])
    if rest[0] is not None and type(rest[0]) not in (bool, int, float, str, bytes):
        _refuse("a value of a predicate needs a type", got=type(rest[0]).__name__)
    return pc.scalar(rest[0])


def type_of(text: Any) -> pa.DataType:
    """Return the type of a name, if it is one that predicates have."""
    if not isinstance(text, str) or len(text) > _TYPE_CHARS_MAX:
        _refuse("a type of the predicate is not a name")
    plain = _INTEGERS.get(text) or _PLAIN.get(text) or _TIMES.get(text)
    if plain is not None:
        return plain
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _FIXED_SIZE.fullmatch(text):
        return pa.binary(int(match[1]))
    if match := _DECIMAL.fullmatch(text):
        make = pa.decimal128 if match[1] == "128" else pa.decimal256
        return make(int(match[2]), int(match[3]))
    raise ProtocolError("a predicate does not have this type", type=text)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array, none of which is converted from another type."""
    expected = _types_of(kind)
    for value in values:
        if value is not None and type(value) not in expected:
            _refuse(
                "a value of the predicate is of another type",
                type=str(kind),
                got=type(value).__name__,
            )
    if pa.types.is_decimal(kind):
        return pa.array([_decimal(value) for value in values], kind)
    if pa.types.is_temporal(kind):
        stored = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values, stored).view(kind)
    return pa.array(values, kind)


def _types_of(kind: pa.DataType) -> tuple[type, ...]:
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return (int,)
    if pa.types.is_floating(kind):
        return (float, int)
    if pa.types.is_boolean(kind):
        return (bool,)
    if pa.types.is_null(kind):
        return ()
    text = kind in (pa.string(), pa.large_string(), pa.string_view())
    return (str,) if text or pa.types.is_decimal(kind) else (bytes,)


def _decimal(text: str | None) -> Decimal | None:
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        _refuse("a decimal of the predicate is not digits")
    return Decimal(text)
