"""The source of methods that pass a call on: to a server, or to a thread."""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from lakebed.operations.description import Operation, Owner, Pace, Stream
from lakebed.operations.routes import STREAMS
from lakebed.operations.table import OPERATIONS

SOURCE: Final = Path(__file__).parents[1] / "src"
_BUILT_IN: Final = frozenset(vars(builtins))


class Subject(NamedTuple):
    """A class whose methods are operations, and the classes that pass its methods on."""

    owner: Owner
    origin: str
    """`module:Class` that has the methods, with signatures and docstrings."""
    remote: str
    """The class of a served log; empty if none is generated."""
    awaited: str
    """The class for asyncio; empty if none is generated."""


class Class(NamedTuple):
    """The source of a class, and what it imports."""

    imports: set[str]
    text: str


class _Method(NamedTuple):
    operation: Operation | Stream
    function: ast.FunctionDef
    imports: set[str]

    @property
    def returns(self) -> str:
        return "None" if self.function.returns is None else ast.unparse(self.function.returns)


def module(title: str, classes: Iterable[Class]) -> str:
    """Return the source of a module, not formatted yet."""
    made = list(classes)
    imports = sorted(set().union(*(each.imports for each in made)))
    head = [
        f'"""{title}\n\nWritten by `python -m tools.generate`: edit `operations/table.py`.\n"""\n',
        "from __future__ import annotations",
        *imports,
    ]
    return "\n".join(head) + "\n\n\n" + "\n\n".join(each.text for each in made)


def client_class(subject: Subject) -> Class:
    """Return the class whose methods make one call each."""
    imports = {"from typing import Any", "from collections.abc import Callable"}
    parts = []
    for method in _methods(subject, subject.remote):
        operation = method.operation
        if isinstance(operation, Stream) or operation.composed:
            continue
        if set(_arguments(method.function)) != set(operation.request):
            continue  # a request that is made of more than the arguments
        imports |= method.imports
        sent = [f'"{operation.name}"']
        for name, parameter in operation.request.items():
            sent.append(f"{name}={_sent(name, parameter.send, imports)}")
        parts.append(_method(method, _returned(method, f"self._call({', '.join(sent)})")))
    name = subject.remote.partition(":")[2]
    head = f'class {name}Stub:\n    """The methods of `{name}` that make one call each."""\n\n'
    return Class(imports, f"{head}    _call: Callable[..., Any]\n\n" + "\n".join(parts))


def _sent(name: str, send: Callable[[Any], Any] | None, imports: set[str]) -> str:
    if send is None:
        return name
    if send.__module__ != "builtins":
        imports.add(f"from {send.__module__} import {send.__name__}")
    return f"{send.__name__}({name})"


def _returned(method: _Method, call: str) -> str:
    """Return the body of a method: its call, and the reply as the type that it returns."""
    if method.returns == "None":
        return call
    kind = method.returns.partition("[")[0]
    if kind in ("list", "Secret"):
        return f"return {kind}({call})"
    return f"result: {method.returns} = {call}\nreturn result"


def aio_class(subject: Subject) -> Class:
    """Return the class whose methods run one method in a thread each."""
    origin_module, _, origin = subject.origin.partition(":")
    attribute = f"_{subject.owner.value}"
    imports = {
        f"from {origin_module} import {origin}",
        "from lakebed.aio.delegate import Delegate",
    }
    parts = []
    for method in _methods(subject, subject.awaited):
        imports |= method.imports
        run = "_run" if method.operation.pace is Pace.QUICK else "_run_slowly"
        passed = [f"self.{attribute}.{method.function.name}", *_passed_on(method.function)]
        call = f"await self.{run}({', '.join(passed)})"
        body = call if method.returns == "None" else f"return {call}"
        parts.append(_method(method, body, prefix="async "))
    name = subject.awaited.partition(":")[2]
    head = f'class {name}Stub(Delegate):\n    """The methods of `{name}` that run one of `{origin}`'
    return Class(imports, f'{head} each."""\n\n    {attribute}: {origin}\n\n' + "\n".join(parts))


def _arguments(function: ast.FunctionDef) -> Iterator[str]:
    args = function.args
    yield from (each.arg for each in (*args.args, *args.kwonlyargs) if each.arg != "self")


def _passed_on(function: ast.FunctionDef) -> Iterator[str]:
    keywords = {each.arg for each in function.args.kwonlyargs}
    for name in _arguments(function):
        yield f"{name}={name}" if name in keywords else name


def _method(method: _Method, body: str, prefix: str = "") -> str:
    function = method.function
    doc = ast.get_docstring(function)
    quoted = f'"""{doc}\n"""' if doc and "\n" in doc else f'"""{doc}"""'
    head = f"{prefix}def {function.name}({ast.unparse(function.args)}) -> {method.returns}:"
    inside = textwrap.indent(f"{quoted}\n{body}", "    ")
    return textwrap.indent(f"{head}\n{inside}\n", "    ")


# Methods of the engine


def _methods(subject: Subject, written: str) -> Iterator[_Method]:
    """Yield the operations that a class written by hand leaves out."""
    by_hand = set(_defined(_class(written)[1]))
    rows: list[Operation | Stream] = [*OPERATIONS.values(), *STREAMS.values()]
    for operation in rows:
        if operation.owner is not subject.owner or operation.method in by_hand:
            continue
        origin, function = _function(subject.origin, operation.method)
        yield _Method(operation, function, _imports(origin, function))


def _function(origin: str, name: str) -> tuple[str, ast.FunctionDef]:
    """Return a method of a class or of the classes that it inherits from, with its module."""
    module_name, definition = _class(origin)
    found = _defined(definition).get(name)
    if found is not None:
        return module_name, found
    for base in definition.bases:
        if isinstance(base, ast.Name):
            statement = _origins(module_name)[base.id]  # from MODULE import NAME
            return _function(f"{statement.split()[1]}:{base.id}", name)
    raise LookupError(f"{origin} has no method {name}")


@cache
def _tree(module_name: str) -> ast.Module:
    path = SOURCE / Path(*module_name.split(".")).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf8"))


def _class(name: str) -> tuple[str, ast.ClassDef]:
    module_name, _, wanted = name.partition(":")
    for node in _tree(module_name).body:
        if isinstance(node, ast.ClassDef) and node.name == wanted:
            return module_name, node
    raise LookupError(name)


def _defined(definition: ast.ClassDef) -> dict[str, Any]:
    """Return what a class defines: functions, and names that it assigns."""
    found: dict[str, Any] = {}
    for node in definition.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found


def _imports(module_name: str, function: ast.FunctionDef) -> set[str]:
    """Return the imports of the names in a signature."""
    known = _origins(module_name)
    nodes = [*ast.walk(function.args), *(ast.walk(function.returns) if function.returns else ())]
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - _BUILT_IN
    return {known[name] for name in names}


@cache
def _origins(module_name: str) -> dict[str, str]:
    """Return the import statement for each name that a module has."""
    found: dict[str, str] = {}
    for node in ast.walk(_tree(module_name)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = (
                    f"from {node.module} import {ast.unparse(alias)}"
                )
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name] = f"import {ast.unparse(alias)}"
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.ClassDef):
            for name in _assigned(node):
                found.setdefault(name, f"from {module_name} import {name}")
    return found


def _assigned(node: ast.Assign | ast.AnnAssign | ast.ClassDef) -> Iterator[str]:
    if isinstance(node, ast.ClassDef):
        yield node.name
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Name):
            yield target.id
