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
decoder trusts them, and whoever reads a topic could bring the whole server down.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from lakebed import limits
from lakebed.errors import InvalidArgumentError, ProtocolError

_MANY: Final[Mapping[str, Callable[..., Any]]] = {
    "and_kleene": pc.and_kleene,
    "or_kleene": pc.or_kleene,
}
"""Those that take any number of nodes: a long chain of them is wide in the tree, not deep."""
_ONE: Final = "invert is_valid is_nan negate negate_checked utf8_lower utf8_upper"
_TWO: Final = (
    "equal not_equal less less_equal greater greater_equal add add_checked subtract"
    " subtract_checked multiply multiply_checked divide divide_checked"
)
_FIXED: Final[Mapping[str, tuple[int, Callable[..., Any]]]] = {
    name: (arity, getattr(pc, name))
    for arity, names in ((1, _ONE), (2, _TWO))
    for name in names.split()
}
_MATCHES: Final[Mapping[str, Callable[..., Any]]] = {
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "match_substring": pc.match_substring,
}
FUNCTIONS: Final = frozenset([*_MANY, *_FIXED, *_MATCHES, "is_null", "is_in", "cast"])
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
_NATURAL: Final = (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary())
"""Types that a value has without saying so."""
_TYPE_CHARS_MAX: Final = 120
_PATTERN_CHARS_MAX: Final = 4_096
_NAMES_MAX: Final = 64


# On the server


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
            return self._built(kind, rest, depth + 1)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(
                "the predicate cannot be read", node=kind[:40], reason=str(error)[:200]
            ) from error

    def _built(self, kind: str, rest: list[Any], depth: int) -> pc.Expression:
        if kind == "field":
            return _field(rest)
        if kind == "value":
            return _literal(rest)
        if kind in _MANY:
            _expect(kind, len(rest) >= 2)
            return _balanced(_MANY[kind], [self.node(each, depth) for each in rest])
        if kind in _FIXED:
            arity, function = _FIXED[kind]
            _expect(kind, len(rest) == arity)
            return function(*(self.node(each, depth) for each in rest))
        if kind == "is_null":
            _expect(kind, len(rest) == 2 and isinstance(rest[1], bool))
            return self.node(rest[0], depth).is_null(nan_is_null=rest[1])
        if kind == "cast":
            _expect(kind, len(rest) == 3 and isinstance(rest[2], bool))
            return self.node(rest[0], depth).cast(_type(rest[1]), safe=rest[2])
        if kind == "is_in":
            return self._is_in(rest, depth)
        if kind in _MATCHES:
            _expect(kind, len(rest) == 3 and isinstance(rest[2], bool))
            return _MATCHES[kind](
                self.node(rest[0], depth), _pattern(kind, rest[1]), ignore_case=rest[2]
            )
        raise ProtocolError("a predicate does not have this", function=kind[:80])

    def _is_in(self, rest: list[Any], depth: int) -> pc.Expression:
        _expect("is_in", len(rest) == 4 and isinstance(rest[3], bool))
        _expect("is_in", isinstance(rest[2], tuple | list))
        self._values += len(rest[2])
        if self._values > limits.PREDICATE_VALUES_MAX:
            _refuse("the predicate has too many values", values_max=limits.PREDICATE_VALUES_MAX)
        kind = _type(rest[1])
        values = _array(rest[2], kind if any(each is not None for each in rest[2]) else pa.null())
        return pc.is_in(self.node(rest[0], depth), value_set=values, skip_nulls=rest[3])


def _refuse(message: str, **facts: Any) -> NoReturn:
    raise ProtocolError(message, **facts)


def _expect(kind: str, fits: bool) -> None:
    if not fits:
        _refuse("a node of the predicate has other parts", node=kind)


def _balanced(function: Callable[..., Any], nodes: list[Any]) -> Any:
    """Join nodes pairwise: what Arrow works through by recursion stays shallow."""
    while len(nodes) > 1:
        nodes = [reduce(function, nodes[place : place + 2]) for place in range(0, len(nodes), 2)]
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
        kind = _type(rest[1])
        # A null has no type: Arrow crashes when it casts one of large_string or large_binary.
        return pc.scalar(None if rest[0] is None else _array([rest[0]], kind)[0])
    if rest[0] is not None and type(rest[0]) not in (bool, int, float, str, bytes):
        _refuse("a value of a predicate needs a type", got=type(rest[0]).__name__)
    return pc.scalar(rest[0])


def _type(text: Any) -> pa.DataType:
    """Return the type of a name, if it is one that predicates have."""
    if not isinstance(text, str) or len(text) > _TYPE_CHARS_MAX:
        _refuse("a type of the predicate is not a name")
    found = _INTEGERS.get(text) or _PLAIN.get(text) or _TIMES.get(text)
    if found is not None:
        return found
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
    expected = _expected(kind)
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


def _expected(kind: pa.DataType) -> tuple[type, ...]:
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


# At the client


def pack_predicate(where: pc.Expression) -> Any:
    """Return a predicate as the tree that a server takes, or raise `InvalidArgumentError`."""
    (buffer,) = where.__reduce__()[1]
    with pa.ipc.open_file(buffer) as reader:
        batch = reader.get_batch(0)
    try:
        tree = _Reader(batch).tree()
    except UnicodeDecodeError as error:
        raise _untaken("match", reason="a pattern must be UTF-8") from error
    try:
        unpack_predicate(tree)
    except ProtocolError as error:
        raise InvalidArgumentError(
            "a served log does not take this predicate; filter the result instead",
            reason=str(error),
        ) from error
    return tree


class _Reader:
    """Reads Arrow's serialized form of an expression of this process.

    It is a batch of one row, with literals and options as its columns; the nodes stand one after
    another in the metadata, calls between `call` and `end`.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._items = iter(_metadata(batch.schema))

    def tree(self) -> Any:
        """Return the tree."""
        # A frame is a call that has not ended: its function, its nodes, the number of its options.
        frames: list[tuple[str, list[Any], list[int]]] = [("", [], [])]
        for key, text in self._items:
            _, nodes, options = frames[-1]
            if key == "call":
                frames.append((text, [], []))
            elif key == "options":
                options.append(int(text))
            elif key == "end":
                function, nodes, options = frames.pop()
                frames[-1][1].append(self._call(function, nodes, options))
            elif key == "literal":
                nodes.append(self._value(int(text)))
            elif key == "field_ref":
                nodes.append(["field", text])
            elif key == "nested_field_ref":
                nodes.append(["field", *(next(self._items)[1] for _ in range(int(text)))])
            else:
                raise _untaken(key)
        (tree,) = frames[0][1]
        return tree

    def _value(self, number: int) -> list[Any]:
        column = self._batch.column(number)
        (value,) = _values(column)
        return ["value", value] if column.type in _NATURAL else ["value", value, str(column.type)]

    def _call(self, function: str, nodes: list[Any], numbers: list[int]) -> list[Any]:
        options = self._batch.column(numbers[0]) if numbers else None
        if function in _MANY:
            flat = (each[1:] if each[0] == function else [each] for each in nodes)
            return [function, *(each for some in flat for each in some)]
        if function == "is_null":
            nan_is_null = options is not None and options.field("nan_is_null")[0].as_py()
            return [function, *nodes, nan_is_null]
        if options is None:
            if function not in _FIXED:
                raise _untaken(function)
            return [function, *nodes]
        if function == "is_in":
            return [function, *nodes, *_value_set(options)]
        if function in _MATCHES:
            return [function, *nodes, *(options.field(part)[0].as_py() for part in _MATCH_PARTS)]
        if function == "cast":
            return [function, *nodes, *_cast(options)]
        raise _untaken(function)


_MATCH_PARTS: Final = ("pattern", "ignore_case")


def _value_set(options: pa.StructArray) -> tuple[str, list[Any], bool]:
    values = options.field("value_set").flatten()
    nulls = options.field("null_matching_behavior")[0].as_py()
    if nulls not in (0, 1):  # those of `is_in`; others are of functions that have no name here
        raise _untaken("is_in", null_matching_behavior=nulls)
    return str(_checked(values.type)), _values(values), nulls == 1


def _cast(options: pa.StructArray) -> tuple[str, bool]:
    allowed = {
        options.field(each.name)[0].as_py()
        for each in options.type
        if each.name.startswith("allow_")
    }
    if len(allowed) != 1:
        raise _untaken("cast", reason="its options are neither safe nor unsafe")
    return str(_checked(options.type.field("to_type").type)), allowed == {False}


def _checked(kind: pa.DataType) -> pa.DataType:
    """Return a type, if it is one that a server takes."""
    try:
        if _type(str(kind)) == kind:
            return kind
    except ProtocolError:
        pass
    raise _untaken("value", type=str(kind))


def _values(column: pa.Array) -> list[Any]:
    """Return values as they travel."""
    kind = _checked(column.type)
    if pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in values]
    return values


def _untaken(function: str, **facts: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a served log does not take this in a predicate; filter the result instead",
        function=function,
        **facts,
    )


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Return the items of a schema's metadata in order, of which pyarrow shows one for each key.

    They are read as the C data interface has them: a count, then the length and the bytes of each.
    """
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    # The third member of an ArrowSchema, which lives as long as the capsule.
    address = (ctypes.c_void_p * 3).from_address(pointer(capsule, b"arrow_schema"))[2]
    if address is None:
        return

    def number() -> int:
        nonlocal address
        found = ctypes.c_int32.from_address(address).value
        address += 4
        return found

    def text() -> str:
        nonlocal address
        size = number()
        found = ctypes.string_at(address, size).decode()
        address += size
        return found

    for _ in range(number()):
        yield text(), text()
    del capsule
