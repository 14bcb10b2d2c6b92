"""Functions are named by verbs or nouns, variables by the thing they hold, classes uniquely."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.documents.pages import ROOT

SOURCE: Final = ROOT / "src" / "lakebed"

VAGUE: Final = frozenset(["each", "number", "found", "given", "known", "place", "at"])
"""Names that say nothing of what a variable holds: name the thing (`segment`, `topic_id`)."""

IRREGULAR: Final = frozenset(
    [
        *("begun", "bound", "brought", "built", "chosen", "drawn", "found", "given", "gone"),
        *("held", "kept", "known", "laid", "left", "lost", "made", "meant", "met", "paid"),
        *("said", "seen", "sent", "shown", "taken", "thrown", "told", "understood", "written"),
    ]
)
NOT_PARTICIPLES: Final = frozenset(["embed", "exceed", "feed", "need", "proceed", "seed", "shed"])

PROTOCOL: Final = frozenset(
    ["connection_made", "connection_lost", "data_received", "_deleted_entries"]
)
"""Callbacks that asyncio and pyiceberg name."""

PUBLIC: Final = {
    "aio/_stubs.py:commit": {"number"},
    "aio/_stubs.py:committed": {"committed"},
    "aio/_stubs.py:committed_number": {"committed_number"},
    "aio/consumer.py:given": {"given"},
    "aio/log.py:commit_together": {"number"},
    "aio/remote_consumer.py:given": {"given"},
    "api/backend.py:committed": {"committed"},
    "api/consumer.py:given": {"given"},
    "api/derived.py:commit": {"number"},
    "api/derived_change.py:check_change": {"number"},
    "api/log.py:commit_together": {"number"},
    "api/log.py:committed": {"committed"},
    "api/log.py:committed_number": {"committed_number"},
    "api/log.py:_committed_number": {"_committed_number"},
    "api/parts.py:commit": {"number"},
    "api/together.py:command_of": {"number"},
    "client/config.py:resolved": {"resolved"},
    "client/groups.py:committed": {"committed"},
    "client/log.py:_committed_number": {"_committed_number"},
    "config/topic.py:changed": {"changed"},
    "config/topic.py:stored_config": {"stored_config"},
    "engine/groups.py:committed": {"committed"},
    "engine/log.py:_committed_number": {"_committed_number"},
    "serve/calls.py:_committed_number": {"_committed_number"},
    "spark/tables/appending.py:append": {"number"},
    "spark/tables/merging.py:merge": {"number"},
}
"""Names of the public interface, and of what implements it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_participle(name: str) -> bool:
    """Return whether a function is named by a past participle: `checked`, `parsed_schema`."""
    word = name.strip("_").split("_")[0]
    return word in IRREGULAR or (word.endswith("ed") and word not in NOT_PARTICIPLES)


def is_property(function: Function) -> bool:
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(name.endswith(("property", ".setter")) for name in decorators)


def fields(tree: ast.Module) -> set[ast.expr]:
    """Return the fields of classes, which are attributes, and often keys of a report."""
    return {
        field.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    }


def arguments(function: Function | ast.Lambda) -> Iterator[str]:
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            yield argument.arg


def faults(path: Path) -> Iterator[str]:
    """Yield each name of a file that breaks a rule, with where it is."""
    file = path.relative_to(SOURCE)
    tree = ast.parse(path.read_text(encoding="utf8"))
    excepted = fields(tree)
    for node in ast.walk(tree):
        if isinstance(node, Function):
            public = PUBLIC.get(f"{file}:{node.name}", set())
            excused = is_property(node) or node.name in public | PROTOCOL
            if is_participle(node.name) and not excused:
                yield f"{file}:{node.lineno}: name the function {node.name} by a verb"
            names = VAGUE.intersection(arguments(node)) - public
        elif isinstance(node, ast.Lambda):
            names = VAGUE.intersection(arguments(node))
        elif (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in excepted
        ):
            names = VAGUE.intersection([node.id])
        else:
            continue
        for name in sorted(names):
            yield f"{file}:{node.lineno}: name the variable {name} by what it holds"


def test_names_say_what_they_stand_for() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert files
    assert [fault for path in files for fault in faults(path)] == []


def test_a_class_has_a_name_of_no_other_class() -> None:
    files: dict[str, set[Path]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        if path.name == "gateway_models.py":
            continue  # its classes are named as in the HTTP document
        for name in re.findall(r"^ *class (\w+)", path.read_text(encoding="utf8"), re.MULTILINE):
            files[name].add(path.relative_to(SOURCE))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}
