"""Patterns find code by its structure, changes do what they say, and the hook reaches children."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof import mutant_hook
from tests.proof.mutation import (
    Change,
    Mutant,
    after,
    always,
    before,
    drop,
    instead,
    never,
    omit,
    replace,
)
from tests.proof.syntax_pattern import DoesNotFitError

SOURCE = '''
def write(tail, group, sync):
    """Write a group."""
    done = tail.file.put(group, at=tail.position, sync=False)  # a comment
    if sync and not done or tail is None:
        tail.file.sync_data()
    for item in group:
        settle(item)
    return [item for item in group if item not in done]
'''


def changed(change: Change, source: str = SOURCE) -> str:
    tree = ast.parse(source)
    change.apply(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (drop("$F.sync_data()"), "tail.file.sync_data()", "pass"),
        (drop("for $X in group: ..."), "for item in group:\n        settle(item)", "pass"),
        (replace("settle($X)", "fail($X, $X)"), "settle(item)", "fail(item, item)"),
        (replace("$F.put(..., sync=$S)", "$S"), "tail.file.put(GROUP)", "False"),
        (replace("[$X for $X in $Y if $X not in $Z]", "$Z"), "[LIST]", "done"),
        (replace("group", "()", within="for $X in group: ..."), "in group:", "in ():"),
        (never("$X is None"), "tail is None", "False"),
        (always("not done"), "not done", "True"),
        (omit("sync"), "sync and not done", "not done"),
        (omit("$X is None"), " or tail is None", ""),
        (before("settle(...)", "stop()"), "settle(item)", "stop()\n        settle(item)"),
        (after("settle(...)", "stop(1)"), "item)\n", "item)\n        stop(1)\n"),
        (instead("settle($X)", "if $X:\n    pass"), "settle(item)", "if item:\n            pass"),
    ],
)
def test_a_change_does_what_it_says(change: Change, old: str, new: str) -> None:
    old = old.replace("(GROUP)", "(group, at=tail.position, sync=False)")
    old = old.replace("[LIST]", "[item for item in group if item not in done]")
    assert SOURCE.count(old) == 1
    assert changed(change) == ast.unparse(ast.parse(SOURCE.replace(old, new)))


def test_other_lines_comments_and_format_do_not_matter() -> None:
    change = drop("$F.sync_data()")
    reworded = SOURCE.replace("# a comment", "").replace("Write a group", "Other words")
    reworded = reworded.replace("group", "batch").replace("sync_data()", "sync_data(\n)")
    assert "sync_data" not in changed(change, reworded)


@pytest.mark.parametrize(
    ("pattern", "count"), [("$F.gone()", 0), ("tail.file", 2), ("settle()", 0), ("$X($X)", 0)]
)
def test_a_place_that_is_not_found_exactly_once_is_refused(pattern: str, count: int) -> None:
    with pytest.raises(DoesNotFitError, match=f"{count} times"):
        changed(drop(pattern))


def test_a_mutant_that_does_not_fit_says_what_was_not_found_and_where() -> None:
    function = "lakebed.wal.appender:Appender.write"
    with pytest.raises(DoesNotFitError, match=rf"\$F\.gone.* 0 times.* in {function}"):
        _mutant(function, drop("$F.gone()")).compile()
    with pytest.raises(DoesNotFitError, match=r"`gone` is defined 0 times in lakebed.wal"):
        _mutant("lakebed.wal.appender:Appender.gone", drop("$F.sync_data()")).compile()
    with pytest.raises(DoesNotFitError, match=r"no module lakebed\.gone"):
        _mutant("lakebed.gone:f", drop("$X")).compile()
    with pytest.raises(DoesNotFitError, match=r"undefined names \['nowhere'\]"):
        _mutant(function, instead("$F.sync_data()", "nowhere()")).compile()
    with pytest.raises(DoesNotFitError, match="no effect"):
        _mutant(function, replace("$F.sync_data()", "$F.sync_data()")).compile()


def test_children_load_the_mutant_also_without_other_variables(tmp_path: Path) -> None:
    """A child of a child as well, in another folder."""
    mutant = _mutant("lakebed.types:Secret.__repr__", replace("'<secret>'", "'<mutant>'"))
    hook = tmp_path / "hook"
    hook.mkdir()
    mutant_hook.install(str(hook), mutant.module, mutant.compile())
    assert not mutant_hook.was_loaded(str(hook))
    show = "from lakebed.types import Secret; print(repr(Secret('x')))"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}])"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("LAKEBED_")}
    for code in (show, nested):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**kept, "PYTHONPATH": str(hook)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "<mutant>\n"
    assert mutant_hook.was_loaded(str(hook))


def _mutant(function: str, change: Change) -> Mutant:
    return Mutant("test", "nothing", function, (change,), (), 1)
