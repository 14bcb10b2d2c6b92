"""The page of every public name of the package, for docs/python.md."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import lakebed
from lakebed import aio, errors
from lakebed.client.access import RemoteAccess
from lakebed.client.derived import RemoteDerived
from lakebed.client.lake import RemoteLake
from lakebed.engine.access import Access
from lakebed.iceberg.derived_table import Derived
from lakebed.iceberg.lake import Lake
from tools.python_names import (
    Attribute,
    attributes_of,
    entry,
    first_sentence,
    methods_of,
    paragraphs,
    prose,
    signature_of,
    values_given,
    wrapped,
)

__all__ = ["python_page"]

_HEAD: Final = (
    "Every public name, written from the code by `python -m tools.reference`. What is not on this"
    " page may change in any version. Types of arguments are in the code, for editors and mypy.",
)
_URL: Final = (
    "With a URL, `open` returns a log with the same methods; [server](server.md) lists the"
    " differences. `lakebed.__version__` is the version; `LakebedError` the root of all"
    " [errors](#lakebederrors)."
)
_GIVEN: Final = (
    "Results are immutable. A field without a type is a number, a text or a flag; the docstrings of"
    " the classes explain each. Later versions may add fields."
)
_TWIN: Final = "The classes have the methods, arguments and results of their synchronous twins."
_WAL: Final = (
    "The write-ahead log alone, for other uses; Lakebed's topics are entries of it."
    " [formats](formats.md#the-write-ahead-log) describes its bytes."
)
_TREE: Final = (
    "Its three branches are what a caller can do: correct and repeat (`RejectedError`), check"
    " before repeating (`UnknownOutcomeError`), stop (`StopError`). Each error has `message` and"
    " `facts` (a dictionary), and its class `code` (stable, also over HTTP and in commands),"
    " `retriable` (the same call may succeed later) and `advice`, here in italics."
)
_ALIASES: Final = (
    (
        "Rows",
        "an Arrow table, a record batch or a list of rows. A row is a dictionary with `value` and"
        " optionally `key`, `headers` and `timestamp`; for a raw topic also bytes or text",
    ),
    (
        "Offsets",
        "offsets by partition: `{(topic, partition): offset}`; the offset is that of the"
        " next record",
    ),
    ("Points", "an offset for every partition, or `{partition: offset}`"),
    ("Callback", "called with a list of `TopicPartition`"),
    ("Positions", "`{topic: {partition: offset}}`: the part of topics that is in a table"),
    ("AnyLog", "an open log, its folder, or the URL of a served one"),
    ("Time", "a datetime (naive means UTC), or microseconds since 1970"),
    ("Expect", "by name: a condition, or a condition and what happens to rows that fail it"),
    ("Watch", "called with a list of `FlowStatus` at intervals"),
    ("Progress", "called with a description of the work, the amount done and the total"),
)

_SYNC: Final = ("Log", "Producer", "Sent", "Transaction", "Consumer", "Table", "Ack", "Acks")
_SETTINGS: Final = ("LogConfig", "WalConfig", "LakeConfig", "ServeConfig", "TopicConfig")
_PARTS: Final = (
    ("log.lake", Lake, RemoteLake),
    ("log.access", Access, RemoteAccess),
    ("log.derived", Derived, RemoteDerived),
)
"""What a log has as attributes: of the methods, those are public that a served log has too."""

_TWINS: Final = (
    ("AsyncLog", "Log"),
    ("AsyncProducer", "Producer"),
    ("AsyncTransaction", "Transaction"),
    ("AsyncConsumer", "Consumer"),
    ("AsyncTable", "Table"),
)
_INNER: Final = {
    "Log": {"tick"},  # for tests, which have no threads
    "Wal": {"announce", "check_may_wait", "commit", "holds", "post", "request", "ride"},
    "Consumer": {"given"},  # for asyncio
    "Producer": {"after_fork"},
    "Transaction": {"after_fork"},
}
"""Methods of public classes that are for the package itself."""


def python_page() -> str:
    """Return the whole page."""
    return (
        "\n".join(
            [
                "# Python\n",
                *map(prose, _HEAD),
                *_lakebed(),
                *_values(),
                *_aio(),
                *_spark(),
                *_wal(),
                *_errors(),
            ]
        ).rstrip()
        + "\n"
    )


def _lakebed() -> Iterator[str]:
    yield "## `lakebed`\n"
    yield entry("lakebed.open", signature_of(lakebed.open), lakebed.open)
    yield prose(_URL)
    for name in _SYNC:
        yield from _class(f"lakebed.{name}", getattr(lakebed, name))
    for name, kind, served in _PARTS:
        yield from _class(name, kind, only=set(dir(served)))
    yield from _class("lakebed.TopicPartition", lakebed.TopicPartition)
    yield "### Settings\n"
    yield prose(
        "Frozen dataclasses, checked when they are made; [settings](settings.md) has the fields of "
        + ", ".join(f"`{name}`" for name in _SETTINGS)
        + " with defaults, bounds and meaning."
    )
    yield from _class("lakebed.ClientConfig", lakebed.ClientConfig)
    yield from _class("lakebed.SyncMode", lakebed.SyncMode)
    yield from _class("lakebed.AckMode", lakebed.AckMode)


def _class(name: str, kind: type, only: set[str] | None = None) -> Iterator[str]:
    yield f"### `{name}`\n"
    yield paragraphs(kind)
    if kind.__name__ == "Pipeline":
        call = signature_of(kind).removesuffix(" -> None")
        yield wrapped(f"* `{kind.__name__}{call}`", indent="  ") + "\n"
    shown = [_shown(each) for each in attributes_of(kind) if only is None or each.name in only]
    if shown:
        yield "\n".join(shown) + "\n"
    hidden = _INNER.get(kind.__name__, set())
    for method, function in methods_of(kind):
        if method not in hidden and (only is None or method in only):
            yield entry(method, signature_of(function), function)


def _shown(attribute: Attribute) -> str:
    text = f"* `{attribute.name}{attribute.declared}`"
    return wrapped(f"{text}: {attribute.text}" if attribute.text else text, indent="  ")


def _field(attribute: Attribute) -> str:
    """Return a field of a value, with its type if it is not a number, a text or a flag."""
    declared = attribute.declared.partition(" = ")[0]
    plain = re.fullmatch(r": (?:int|str|float|bool)", declared)
    return f"`{attribute.name}`" if plain else f"`{attribute.name}{declared}`"


def _values() -> Iterator[str]:
    yield "## Arguments and results\n"
    for name, text in _ALIASES:
        yield wrapped(f"* `{name}`: {text}.", indent="  ")
    yield ""
    yield prose(_GIVEN)
    known = {getattr(lakebed, name) for name in lakebed.__all__}
    for kind in values_given(_functions(), known):
        fields = ", ".join(map(_field, attributes_of(kind)))
        yield wrapped(f"* `{kind.__name__}`: {fields}.", indent="  ")
    yield ""


def _functions() -> Iterator[Any]:
    """Return every function whose results are explained."""
    for name in _SYNC:
        kind = getattr(lakebed, name)
        hidden = _INNER.get(name, set())
        yield from (each for method, each in methods_of(kind) if method not in hidden)
    for _, kind, served in _PARTS:
        yield from (each for method, each in methods_of(kind) if hasattr(served, method))
    spark = importlib.import_module("lakebed.spark")
    for name in spark.__all__:
        thing = getattr(spark, name)
        yield from (each for _, each in methods_of(thing)) if inspect.isclass(thing) else (thing,)


# asyncio


def _aio() -> Iterator[str]:
    yield "## `lakebed.aio`\n"
    yield paragraphs(aio)
    yield entry("lakebed.aio.open", signature_of(aio.open), aio.open)
    yield prose(_TWIN)
    yield "| class | is | lacks | has more |"
    yield "|---|---|---|---|"
    pairs = [(name, getattr(lakebed, twin), twin) for name, twin in _TWINS]
    served: dict[str, type] = {}
    for name, kind, remote in _PARTS:
        twin = f"Async{kind.__name__}"
        pairs.append((twin, kind, name))
        served[twin] = remote
    for name, kind, twin in pairs:
        mine = _names(getattr(aio, name))
        theirs = _names(served.get(name, kind)) - _INNER.get(kind.__name__, set())
        attributes = {attribute.name for attribute in attributes_of(kind)}
        lacks, more = theirs - mine, mine - theirs - attributes - _instance_names(kind)
        more -= _INNER.get(kind.__name__, set())
        yield f"| `{name}` | `{twin}` | {_listed(lacks)} | {_listed(more)} |"
    yield ""
    yield from _class("lakebed.aio.Opening", aio.Opening)


def _names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def _instance_names(kind: type) -> set[str]:
    """Return what `__init__` sets, which the asyncio twin has as a property."""
    found = set()
    for base in kind.__mro__[:-1]:
        init = vars(base).get("__init__")
        if inspect.isfunction(init):
            found |= set(init.__code__.co_names)
    return found


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


# Spark, the write-ahead log, errors


def _spark() -> Iterator[str]:
    spark = importlib.import_module("lakebed.spark")
    yield "## `lakebed.spark`\n"
    yield prose(
        "Needs the extra `spark` ([install](getting-started.md#install)) and Java 17 or newer. "
        + first_sentence(spark)
    )
    for name in spark.__all__:
        thing = getattr(spark, name)
        if inspect.isclass(thing):
            yield from _class(f"lakebed.spark.{name}", thing)
            yield "### Jobs and tables\n"
        else:
            call = f"lakebed.spark.{name}{signature_of(thing)}"
            yield wrapped(f"* `{call}`: {first_sentence(thing)}", indent="  ") + "\n"


def _wal() -> Iterator[str]:
    wal = importlib.import_module("lakebed.wal")
    yield "## `lakebed.wal`\n"
    yield prose(_WAL)
    for name in wal.__all__:
        thing = getattr(wal, name)
        if hasattr(lakebed, name):
            continue
        yield f"* `{name}`: {first_sentence(thing)}"
        for method, function in methods_of(thing) if name == "Wal" else ():
            if method in _INNER["Wal"]:
                continue
            yield wrapped(
                f"  * `{method}{signature_of(function)}`: {first_sentence(function)}", indent="    "
            )
    yield ""


def _errors() -> Iterator[str]:
    yield "## `lakebed.errors`\n"
    yield prose(_TREE)
    yield from _error(errors.LakebedError, 0)
    yield ""


def _error(kind: type[errors.LakebedError], depth: int) -> Iterator[str]:
    retriable = ", retriable" if kind.retriable else ""
    text = f"* `{kind.__name__}` (`{kind.code}`{retriable}): {first_sentence(kind)}"
    inherited = kind.__mro__[1]
    if "advice" in vars(kind) and getattr(inherited, "advice", None) != kind.advice:
        text += f" *{_capital(kind.advice)}.*"
    yield wrapped("  " * depth + text, indent="  " * (depth + 1))
    for below in vars(errors).values():
        if inspect.isclass(below) and issubclass(below, kind) and kind in below.__bases__:
            yield from _error(below, depth + 1)


def _capital(text: str) -> str:
    """Return a text as a sentence; names in code keep their case."""
    return text[:1].upper() + text[1:]
