"""Signatures, attributes and docstrings of the package's names, as Markdown."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final, ForwardRef, NamedTuple

WIDTH: Final = 128


class Attribute(NamedTuple):
    """A field, property or member of a class."""

    name: str
    declared: str
    """Its type and default, as they are declared."""
    text: str


def wrapped(text: str, indent: str = "") -> str:
    """Break a text between words."""
    lead = text[: len(text) - len(text.lstrip())]
    return textwrap.fill(
        text.strip(),
        WIDTH,
        initial_indent=lead,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def prose(text: str) -> str:
    """Return a paragraph."""
    return wrapped(text) + "\n"


def paragraphs(thing: Any) -> str:
    """Return a docstring: paragraphs wrapped again, what is set in as it is."""
    return "\n\n".join(_paragraphs(inspect.getdoc(thing) or "")) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    for block in text.split("\n\n"):
        yield block if block.startswith("    ") else wrapped(" ".join(block.split()))


def first_sentence(thing: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def entry(name: str, signature: str, thing: Any) -> str:
    """Return an item for a function: its signature, and its docstring below."""
    head = wrapped(f"* `{name}{signature}`", indent="  ")
    text = "\n\n".join(_paragraphs(_without_headings(inspect.getdoc(thing) or "")))
    return f"{head}\n\n{textwrap.indent(text, '  ')}\n"


_SECTION: Final = re.compile(r"^(Args|Returns|Raises):\n((?:    .*\n?)+)", re.M)
_ITEM: Final = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.M)
_OBVIOUS: Final = (
    *("name of ", "number of ", "names of ", "the topic.", "for tests", "called with the "),
    *("as in ", "action of ", "pattern of ", "maximum number of ", "seconds; default"),
)
"""How the text of an argument begins that its name says already."""


def _without_headings(text: str) -> str:
    """Return a docstring whose sections are sentences: arguments with text, errors by name."""
    return _SECTION.sub(lambda section: _sentence(section[1], section[2]), text).strip()


def _sentence(heading: str, body: str) -> str:
    items = [(item[1], " ".join(item[2].split()).rstrip(".")) for item in _ITEM.finditer(body)]
    if heading == "Raises":
        return f"Raises {', '.join(f'`{name}`' for name, _ in items)}.\n"
    if heading == "Args":
        told = [f"`{name}`: {text}" for name, text in items if not f"{text}.".startswith(_OBVIOUS)]
        return ". ".join(told) + ".\n" if told else ""
    return f"Returns {' '.join(body.split())}\n"


def signature_of(function: Any) -> str:
    """Return a signature without `self`, the types of arguments, and a result that is None."""
    found = inspect.signature(function)
    shown: list[str] = []
    starred = False
    for each in found.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not starred:
            starred = True
            shown.append("*")
        starred = starred or each.kind is each.VAR_POSITIONAL
        shown.append(_parameter(each))
    gives = found.return_annotation
    result = "" if gives in (found.empty, None, "None") else f" -> {_type(gives)}"
    return f"({', '.join(shown)}){result}"


def _parameter(each: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    text = stars.get(each.kind.name, "") + each.name
    return text if each.default is each.empty else f"{text}={_literal(each.default)}"


def _type(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:lakebed|collections|typing)\.(?:\w+\.)*(\w+)", r"\1", text)


def _literal(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isfunction(value):
        return "..."  # what it is called changes from run to run
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:_}"
    return repr(value).replace("'", '"')


def methods_of(kind: type) -> list[tuple[str, Any]]:
    """Return the public methods of a class, in the order in which they are written."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if issubclass(kind, enum.Enum) or not base.__module__.startswith("lakebed"):
            continue
        for name, thing in vars(base).items():
            plain = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
            if not name.startswith("_") and inspect.isfunction(plain):
                found.setdefault(name, plain)
    return list(found.items())


def attributes_of(kind: type) -> list[Attribute]:
    """Return the fields, members and properties of a class with what is said of them."""
    texts = _field_texts(kind)
    if issubclass(kind, enum.Enum):
        return [
            Attribute(each.name, f" = {_literal(each.value)}", texts.get(each.name, ""))
            for each in kind
        ]
    found = []
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        for name, declared in inspect.get_annotations(kind).items():
            if not name.startswith("_"):
                found.append(
                    Attribute(
                        name, f": {_type(declared)}{_default(kind, name)}", texts.get(name, "")
                    )
                )
    for name, thing in vars(kind).items():
        if isinstance(thing, property) and not name.startswith("_"):
            gives = inspect.get_annotations(thing.fget).get("return", "Any") if thing.fget else ""
            found.append(Attribute(name, f": {_type(gives)}", first_sentence(thing)))
    return found


def _default(kind: type, name: str) -> str:
    if dataclasses.is_dataclass(kind):
        default = kind.__dataclass_fields__[name].default
        return "" if default is dataclasses.MISSING else f" = {_literal(default)}"
    defaults: dict[str, Any] = getattr(kind, "_field_defaults", {})
    return f" = {_literal(defaults[name])}" if name in defaults else ""


def _field_texts(kind: type) -> dict[str, str]:
    """Return the texts that stand below the fields of a class in its source."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)  # its source is one
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        name = _assigned(field)
        if name and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[name] = " ".join(str(below.value.value).split())
    return found


def _assigned(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def values_given(functions: Iterable[Any], known: set[Any]) -> list[type]:
    """Return the package's classes of plain values that functions return, and those within them."""
    found: dict[str, type] = {}
    waiting = [_named_in(function) for function in functions]
    while waiting:
        for value in waiting.pop():
            plain = dataclasses.is_dataclass(value) or hasattr(value, "_fields")
            if plain and value not in known and value.__name__ not in found:
                found[value.__name__] = value
                declared = inspect.get_annotations(value).values()
                waiting.append(_named(value.__module__, " ".join(map(_type, declared))))
    return [found[name] for name in sorted(found)]


def _named_in(function: Any) -> list[type]:
    gives = inspect.get_annotations(function).get("return", "")
    return _named(function.__module__, str(gives))


def _named(module: str, annotation: str) -> list[type]:
    scope = {**_imported(module), **vars(importlib.import_module(module))}
    things = (scope.get(word) for word in re.findall(r"[A-Za-z_]\w*", annotation))
    return [
        thing
        for thing in things
        if inspect.isclass(thing) and thing.__module__.startswith("lakebed")
    ]


def _imported(module: str) -> dict[str, Any]:
    """Return what a module imports for types alone."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lakebed"):
            source = importlib.import_module(str(node.module))
            found |= {each.name: getattr(source, each.name, None) for each in node.names}
    return found
