"""The page of every public name of the package, for docs/python.md."""

from __future__ import annotations

import importlib
import inspect
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
    "Every public name, with its signature and what it promises. This page is written from the code"
    " by `python -m tools.reference`; a test fails when they differ. [Settings](settings.md) has"
    " the bounds of every setting. [tables](tables.md), [Spark](spark.md), [jobs](jobs.md) and"
    " [pipelines](pipelines.md) explain what belongs together; [protocol](protocol.md) and"
    " [HTTP](http.md) are for other languages.",
    "What is not on this page is not public, and may change in any version. Every error is one of"
    " [`lakebed.errors`](#lakebederrors).",
)
_URL: Final = (
    "With a URL, `open` gives a log with the same methods, whose work is done by the server; what"
    " differs says [server](server.md). `lakebed.__version__` is the version, a text;"
    " `LakebedError` the root of all [errors](#lakebederrors)."
)
_GIVEN: Final = (
    "The others never change, and are made by the log alone. Fields may be added in a later"
    " version; those there are stay."
)
_TWIN: Final = (
    "The classes have the methods of their twins, with the same arguments and results; each is"
    " awaited, or entered with `async with`. `log.lake` is an `AsyncLake`, `log.access` an"
    " `AsyncAccess`, `log.derived` an `AsyncDerived`."
)
_WAL: Final = (
    "The write-ahead log by itself, for whoever builds a log of their own; Lakebed's topics are"
    " entries of it. [formats](formats.md#the-write-ahead-log) has its bytes. `lakebed.raft` keeps"
    " the contract of a Raft node's log on it."
)
_TREE: Final = (
    "One tree. Its three branches are the three things that a caller can do: correct and repeat,"
    " look before repeating, stop. Each error has `message` and `facts` (a dictionary), and of its"
    " class `code` (stable), `retriable` (the same call may succeed later) and `advice`. Over HTTP"
    " and on the command line errors have the same codes."
)
_ALIASES: Final = (
    (
        "Rows",
        "what a batch may be: an Arrow table or record batch, or a list of rows. A row is a"
        " dictionary with `value` and, if wanted, `key`, `headers` and `timestamp`; of a raw topic"
        " also plain bytes or text",
    ),
    (
        "Offsets",
        "offsets by partition: `{(topic, partition): offset}`; the offset is that of the"
        " next record",
    ),
    ("Points", "an offset for every partition, or `{partition: offset}`"),
    ("Callback", "called with a list of `TopicPartition`"),
    ("Positions", "`{topic: {partition: offset}}`: what of topics is in a table"),
    ("AnyLog", "an open log, its folder, or the URL of a served one"),
    ("Time", "a datetime (UTC if it does not say), or microseconds since 1970"),
    ("Expect", "by name: a condition, or one and what becomes of a row that does not meet it"),
    ("Watch", "called with a list of `FlowStatus` now and then"),
    ("Progress", "called with what is being done, how much of it is done, and how much there is"),
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


def _values() -> Iterator[str]:
    yield "## Values that methods take and give\n"
    for name, text in _ALIASES:
        yield wrapped(f"* `{name}`: {text}.", indent="  ")
    yield ""
    yield prose(_GIVEN)
    known = {getattr(lakebed, name) for name in lakebed.__all__}
    for kind in values_given(_functions(), known):
        yield f"### `{kind.__name__}`\n"
        yield paragraphs(kind)
        yield "\n".join(_shown(attribute) for attribute in attributes_of(kind)) + "\n"


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
            yield entry(f"lakebed.spark.{name}", signature_of(thing), thing)


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
        text += f" *Do:* {kind.advice}."
    yield wrapped("  " * depth + text, indent="  " * (depth + 1))
    for below in vars(errors).values():
        if inspect.isclass(below) and issubclass(below, kind) and kind in below.__bases__:
            yield from _error(below, depth + 1)
