"""From an expression of pyarrow to the tree that a server takes.

pyarrow has no documented way to look into an expression. Substrait is none: what pyarrow writes
doubles with each level, and a null in `is_in` changes its meaning (docs/decisions/034). So the form
in which pyarrow pickles an expression is read, and the reading is verified: an expression is built
from it, and pyarrow must find it equal to the one that was passed. A pyarrow with another
form leads to a typed error that advises filters (`filters.py`), never to another predicate.

The pickled form is a batch of one row in Arrow's IPC format. Literals and options are its columns.
The nodes are in the metadata of its schema, in order, those of a call between `call` and `end`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import InvalidArgumentError
from lakebed.wire.filters import check_tree, plain_values, predicate_error, type_name, value_node
from lakebed.wire.predicates import FIXED, MANY, MATCHES


def pack_predicate(where: pc.Expression) -> Any:
    """Return an expression as the tree that a server takes, or raise `InvalidArgumentError`."""
    buffer = _pickle(where)
    with pa.ipc.open_file(buffer) as reader:
        batch = reader.get_batch(0)
    try:
        predicate = _ExpressionReader(batch).read()
    except UnicodeDecodeError as error:
        raise predicate_error("match", reason="a pattern must be UTF-8") from error
    except (LookupError, ValueError, TypeError, struct.error) as error:
        raise _unreadable(repr(error)) from error
    # A NaN among the values of `is_in` equals no other for Arrow: those are compared as bytes.
    if not (predicate.expression.equals(where) or _pickle(predicate.expression).equals(buffer)):
        raise _unreadable("it is read as another expression")
    return check_tree(predicate.tree)


def _pickle(where: pc.Expression) -> pa.Buffer:
    (buffer,) = where.__reduce__()[1]
    return buffer


def _unreadable(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "this version of pyarrow pickles expressions in a form that is not known: pass filters,"
        " such as [('offset', '>', 5)]",
        pyarrow=pa.__version__,
        reason=reason,
    )


class _Node(NamedTuple):
    """A node as it travels, and the expression that it was read from."""

    tree: list[Any]
    expression: pc.Expression


class _ExpressionReader:
    """Reads Arrow's serialized form of an expression of this process."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._items = iter(schema_metadata(batch.schema))

    def read(self) -> _Node:
        """Return the outermost node."""
        # A frame is a call that has not ended: its function, its nodes, the column of its options.
        frames: list[tuple[str, list[_Node], list[int]]] = [("", [], [])]
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
                column = self._batch.column(int(text))
                nodes.append(_Node(value_node(column), pc.scalar(column[0])))
            elif key == "field_ref":
                nodes.append(_field([text]))
            elif key == "nested_field_ref":
                nodes.append(_field([next(self._items)[1] for _ in range(int(text))]))
            else:
                raise predicate_error(key)
        (node,) = frames[0][1]
        return node

    def _call(self, function: str, nodes: list[_Node], columns: list[int]) -> _Node:
        options = self._batch.column(columns[0]) if columns else None
        arguments = [node.expression for node in nodes]
        trees = [node.tree for node in nodes]
        if function in MANY:
            flat = (tree[1:] if tree[0] == function else [tree] for tree in trees)
            tree = [function, *(part for parts in flat for part in parts)]
            return _Node(tree, MANY[function](*arguments))
        if function == "is_null":
            return _is_null(nodes[0], options)
        if options is None:
            if function not in FIXED:
                raise predicate_error(function)
            return _Node([function, *trees], FIXED[function][1](*arguments))
        if function == "is_in":
            return _is_in(nodes[0], options)
        if function in MATCHES:
            pattern, ignore_case = (options.field(part)[0].as_py() for part in _MATCH_PARTS)
            expression = MATCHES[function](*arguments, pattern, ignore_case=ignore_case)
            return _Node([function, *trees, pattern, ignore_case], expression)
        if function == "cast":
            return _cast(nodes[0], options)
        raise predicate_error(function)


_MATCH_PARTS: Final = ("pattern", "ignore_case")


def _field(names: list[str]) -> _Node:
    return _Node(["field", *names], pc.field(*names))


def _is_null(node: _Node, options: pa.StructArray | None) -> _Node:
    if options is None:
        return _Node(["is_null", node.tree, False], pc.is_null(node.expression))
    nan_is_null = options.field("nan_is_null")[0].as_py()
    expression = node.expression.is_null(nan_is_null=nan_is_null)
    return _Node(["is_null", node.tree, nan_is_null], expression)


def _is_in(node: _Node, options: pa.StructArray) -> _Node:
    values = options.field("value_set").flatten()
    nulls = options.field("null_matching_behavior")[0].as_py()
    if nulls not in (0, 1):  # those of `is_in`; others are of functions that have no name here
        raise predicate_error("is_in", null_matching_behavior=nulls)
    skip_nulls = nulls == 1
    return _Node(
        ["is_in", node.tree, type_name(values.type), plain_values(values), skip_nulls],
        pc.is_in(node.expression, value_set=values, skip_nulls=skip_nulls),
    )


def _cast(node: _Node, options: pa.StructArray) -> _Node:
    allowed = {
        options.field(part.name)[0].as_py()
        for part in options.type
        if part.name.startswith("allow_")
    }
    if len(allowed) != 1:
        raise predicate_error("cast", reason="its options are neither safe nor unsafe")
    kind = options.type.field("to_type").type
    safe = allowed == {False}
    expression = node.expression.cast(kind, safe=safe)
    return _Node(["cast", node.tree, type_name(kind), safe], expression)


# Metadata


def schema_metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Return the items of a schema's metadata in order; pyarrow shows one for each key.

    They are read from the schema's message in the IPC format, which Arrow documents: a flatbuffer
    after two words, `Message.header` (field 2) is a `Schema`, its `custom_metadata` (field 2) a
    vector of `KeyValue`.
    """
    flat = _Flatbuffer(schema.serialize().to_pybytes())
    message = flat.follow(8)
    header = flat.follow(flat.field(message, 2))
    items = flat.field(header, 2)
    if items == 0:
        return
    vector = flat.follow(items)
    for index in range(flat.word(vector)):
        item = flat.follow(vector + 4 + 4 * index)
        yield flat.text(flat.field(item, 0)), flat.text(flat.field(item, 1))


class _Flatbuffer:
    """The few parts of the flatbuffer format that metadata needs; positions are bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def word(self, position: int) -> int:
        """Return an unsigned word."""
        return int(struct.unpack_from("<I", self._data, position)[0])

    def follow(self, position: int) -> int:
        """Return where an offset leads."""
        return position + self.word(position)

    def field(self, table: int, index: int) -> int:
        """Return the position of a table's field; 0 if it is not there."""
        vtable = table - int(struct.unpack_from("<i", self._data, table)[0])
        size = int(struct.unpack_from("<H", self._data, vtable)[0])
        slot = 4 + 2 * index
        if slot >= size:
            return 0
        offset = int(struct.unpack_from("<H", self._data, vtable + slot)[0])
        return table + offset if offset else 0

    def text(self, position: int) -> str:
        """Return the text that a field leads to; nothing if the field is not there."""
        if position == 0:
            return ""
        start = self.follow(position)
        return self._data[start + 4 : start + 4 + self.word(start)].decode()
