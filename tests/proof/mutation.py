"""Change one place of the source that is located by structure.

A `Mutant` names a function, such as `lakebed.wal.appender:Appender.write` (without a colon: a whole
module), and one or more changes. A change names a place in that function by a pattern. The pattern
(`tests.proof.syntax_pattern`) is compared with the syntax tree, so formatting, comments, messages
and other lines do not matter, and it must match exactly one place.

| change | effect |
|---|---|
| `drop(pattern)` | remove the statement that the pattern matches or is part of |
| `replace(pattern, new)` | put another expression in its place |
| `never(pattern)`, `always(pattern)` | replace a condition by False or True |
| `omit(pattern)` | remove an operand of `and` or `or` |
| `before(pattern, new)`, `after(pattern, new)` | insert statements next to that statement |
| `instead(pattern, new)` | replace that statement by others |

`within=pattern` restricts the search to the one place that this second pattern matches.
"""

from __future__ import annotations

import ast
import builtins
import dis
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from tests.proof.syntax_pattern import Bound, DoesNotFitError, fill, find

ROOT = Path(__file__).parents[2]
_GLOBALS = {*dir(builtins), "__file__", "__path__"}


@dataclass(frozen=True)
class Change:
    """One edit at the place that a pattern matches."""

    pattern: str
    edit: Callable[[Site], None]
    within: str | None = None
    operand: bool = False
    """Only operands of `and` and `or` count."""

    def apply(self, root: ast.AST) -> None:
        """Change a tree, which has the pattern exactly once."""
        path = [root]
        if self.within is not None:
            path, _ = find(path, self.within)
        self.edit(Site(*find(path, self.pattern, operand=self.operand)))


@dataclass(frozen=True)
class Mutant:
    """A deliberate fault: what it breaks, where, and which tests must fail."""

    name: str
    breaks: str
    at: str
    """`module:function`, by its qualified name, or a module."""
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    seconds: int
    """How long its tests take, once passing and once failing, on an idle machine: 5, 15, 60."""

    @property
    def module(self) -> str:
        """Return the module that is changed."""
        return self.at.partition(":")[0]

    def compile(self) -> CodeType:
        """Return the code of the module with the fault in it."""
        path = _path(self.module)
        try:
            tree = self._tree(path)
        except DoesNotFitError as error:
            raise DoesNotFitError(f"{self.name}: {error} in {self.at}") from None
        code: CodeType = compile(tree, str(path), "exec")
        unknown = sorted(_undefined(code))
        if unknown:
            raise DoesNotFitError(f"{self.name}: {self.at} would use undefined names {unknown}")
        return code

    def _tree(self, path: Path) -> ast.Module:
        tree = ast.parse(_text(path))
        scope = _scope(tree, self.at.partition(":")[2])
        original = ast.dump(scope)
        for change in self.changes:
            change.apply(scope)
        if ast.dump(scope) == original:
            raise DoesNotFitError("the changes have no effect")
        return ast.fix_missing_locations(tree)


# The changes


def drop(pattern: str, *, within: str | None = None) -> Change:
    """Remove the statement that the pattern matches or is part of."""
    return instead(pattern, "pass", within=within)


def replace(pattern: str, new: str, *, within: str | None = None) -> Change:
    """Put another expression in the place of the one that the pattern matches."""
    return Change(pattern, lambda site: site.put(*site.parse(new, expression=True)), within)


def never(pattern: str) -> Change:
    """Let a condition be False."""
    return replace(pattern, "False")


def always(pattern: str, *, within: str | None = None) -> Change:
    """Let a condition be True."""
    return replace(pattern, "True", within=within)


def omit(pattern: str) -> Change:
    """Remove an operand of `and` or `or`."""
    return Change(pattern, lambda site: site.omit(), operand=True)


def before(pattern: str, new: str) -> Change:
    """Insert statements before the statement that the pattern matches or is part of."""
    return Change(pattern, lambda site: site.put_statements(*site.parse(new), site.statement))


def after(pattern: str, new: str) -> Change:
    """Insert statements after the statement that the pattern matches or is part of."""
    return Change(pattern, lambda site: site.put_statements(site.statement, *site.parse(new)))


def instead(pattern: str, new: str, *, within: str | None = None) -> Change:
    """Replace the statement that the pattern matches or is part of by others."""
    return Change(pattern, lambda site: site.put_statements(*site.parse(new)), within)


class Site:
    """The place that a pattern matches: a node, the path to it, and what `$X` stands for."""

    def __init__(self, path: list[ast.AST], bound: Bound) -> None:
        self.node = path[-1]
        self._path = path
        self._bound = bound

    @property
    def statement(self) -> ast.AST:
        """Return the smallest statement that holds the node."""
        return next(node for node in reversed(self._path) if isinstance(node, ast.stmt))

    def parse(self, text: str, *, expression: bool = False) -> list[Any]:
        """Return the nodes of a replacement, with what `$X` stands for."""
        tree = fill(text, self._bound, expression=expression)
        for node in ast.walk(tree):
            ast.copy_location(node, self.node)
        return tree.body if isinstance(tree, ast.Module) else [tree]

    def put(self, *new: ast.AST) -> None:
        """Put nodes in the place of this one."""
        _put(self._path[-2], self.node, new)

    def put_statements(self, *new: ast.AST) -> None:
        """Put statements in the place of the one that holds this node."""
        statement = self.statement
        _put(self._path[self._path.index(statement) - 1], statement, new)

    def omit(self) -> None:
        """Remove the node from the operands of its parent."""
        parent = self._path[-2]
        assert isinstance(parent, ast.BoolOp)
        parent.values.remove(self.node)  # type: ignore[arg-type]
        if len(parent.values) == 1:
            _put(self._path[-3], parent, parent.values)


def _put(parent: ast.AST, old: ast.AST, new: Any) -> None:
    for name, value in ast.iter_fields(parent):
        if value is old:
            (only,) = new
            setattr(parent, name, only)
        elif isinstance(value, list) and any(item is old for item in value):
            index = next(index for index, item in enumerate(value) if item is old)
            value[index : index + 1] = new


# Locating


def _path(module: str) -> Path:
    path = ROOT.joinpath("src", *module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        raise DoesNotFitError(f"no module {module}")
    return file


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf8")


def _scope(tree: ast.Module, qualified_name: str) -> ast.AST:
    scope: Any = tree
    for name in filter(None, qualified_name.split(".")):
        same = [node for node in scope.body if getattr(node, "name", None) == name]
        if len(same) != 1:
            raise DoesNotFitError(f"`{name}` is defined {len(same)} times")
        (scope,) = same
    return scope  # type: ignore[no-any-return]


def _undefined(code: CodeType) -> set[str]:
    """Return the global names that functions use and the module does not define."""
    defined, used = set(_GLOBALS), set()
    pending = [code]
    for inner in pending:
        for instruction in dis.get_instructions(inner):
            if instruction.opname == "LOAD_GLOBAL":
                used.add(instruction.argval)
            elif instruction.opname == "STORE_GLOBAL" or (
                instruction.opname == "STORE_NAME" and inner is code
            ):
                defined.add(instruction.argval)
        pending += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
    return used - defined - {"__name__", "__doc__"}
