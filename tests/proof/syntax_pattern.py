"""Find the one place of a syntax tree that a pattern matches.

A pattern is Python, an expression or a statement, with two additions:

* `$X` matches any expression; where the name is repeated, the same expression.
* `...` in arguments, elements or a block matches any number of them. In the arguments of a call it
  also stands for keywords that the pattern does not name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

_ANY = "_any_"
"""What `$` becomes, so that a pattern is Python."""
_IGNORED = {"ctx", "kind", "type_comment"}

Bound = dict[str, ast.expr]
"""The expressions that `$X` and the like stand for."""


class DoesNotFitError(Exception):
    """A function or pattern was not found exactly once."""


def find(start: list[ast.AST], text: str, *, operand: bool = False) -> tuple[list[ast.AST], Bound]:
    """Return the path to the only match below the end of `start`, and what its `$X` stand for.

    With `operand`, only operands of `and` and `or` count. Raises `DoesNotFitError` unless there is
    exactly one match.
    """
    pattern = _pattern(text)
    matches = []
    for path in _paths(start):
        bound: Bound = {}
        if operand and not (len(path) > 1 and isinstance(path[-2], ast.BoolOp)):
            continue
        if _fits(pattern, path[-1], bound):
            matches.append((path, bound))
    if len(matches) != 1:
        raise DoesNotFitError(f"`{text}` was found {len(matches)} times, not once,")
    return matches[0]


def fill(text: str, bound: Bound, *, expression: bool) -> ast.AST:
    """Return an expression, or a module of statements, with `$X` filled in."""
    source = text.replace("$", _ANY)
    tree = ast.parse(source, mode="eval").body if expression else ast.parse(source)
    filled: ast.AST = _Fill(bound).visit(tree)
    return filled


class _Fill(ast.NodeTransformer):
    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not node.id.startswith(_ANY):
            return node
        # A copy: one expression may be used twice, and each has its own context.
        return ast.parse(ast.unparse(self._bound[node.id]), mode="eval").body


def _paths(path: list[ast.AST]) -> Iterator[list[ast.AST]]:
    yield path
    for child in ast.iter_child_nodes(path[-1]):
        yield from _paths([*path, child])


def _pattern(text: str) -> ast.AST:
    source = text.replace("$", _ANY)
    try:
        return ast.parse(source, mode="eval").body
    except SyntaxError:
        (statement,) = ast.parse(source).body
        return statement


def _fits(pattern: Any, node: Any, bound: Bound) -> bool:
    if isinstance(pattern, ast.Name) and pattern.id.startswith(_ANY):
        if not isinstance(node, ast.expr):
            return False
        return ast.unparse(bound.setdefault(pattern.id, node)) == ast.unparse(node)
    if isinstance(pattern, list):
        return isinstance(node, list) and _fits_items(pattern, node, bound)
    if not isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and bool(pattern == node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call) and any(map(_is_rest, pattern.args)):
        assert isinstance(node, ast.Call)
        node = _with_keywords(node, [keyword.arg for keyword in pattern.keywords])
    names = [name for name in pattern._fields if name not in _IGNORED]
    return all(_fits(getattr(pattern, name), getattr(node, name), bound) for name in names)


def _fits_items(pattern: list[Any], nodes: list[Any], bound: Bound) -> bool:
    if not pattern:
        return not nodes
    if not _is_rest(pattern[0]):
        fits = bool(nodes) and _fits(pattern[0], nodes[0], bound)
        return fits and _fits_items(pattern[1:], nodes[1:], bound)
    for skipped in range(len(nodes) + 1):
        attempt = dict(bound)
        if _fits_items(pattern[1:], nodes[skipped:], attempt):
            bound.update(attempt)
            return True
    return False


def _is_rest(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and value.value is ...


def _with_keywords(call: ast.Call, names: list[str | None]) -> ast.Call:
    """Return a call without the keywords that a pattern does not name."""
    given = {keyword.arg: keyword for keyword in call.keywords}
    return ast.Call(call.func, call.args, [given[name] for name in names if name in given])
