"""What pages name in passing exists: commands, options, files, targets of make, tests to repeat."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from lakebed.cli import cli
from tests.documents.pages import ROOT, all_pages, without_blocks

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf8")
PAGES = [page for page in all_pages() if page.name != "CHANGELOG.md"]
"""What a changelog names was there once."""


def spans(page: Path) -> list[str]:
    """Return what stands between backticks, and lines that are set in as code."""
    text = without_blocks(page.read_text(encoding="utf8"))
    indented = [line.strip() for line in re.findall(r"^    \S.*$", text, re.MULTILINE)]
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", text)] + indented


def all_spans() -> Iterator[str]:
    """Yield the spans of every page."""
    for page in PAGES:
        yield from spans(page)


def test_every_command_that_a_page_names_is_there() -> None:
    for span in all_spans():
        if re.match(r"lakebed [a-z]", span):
            words = shlex.split(span.partition(" #")[0].partition(" >")[0])[1:]
            check_command(words, span)


def check_command(words: list[str], span: str) -> None:
    """Follow the words to a command, and look up the options that it is given."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z-]+", words[0]):
        name, *words = words
        found = command.get_command(click.Context(command), name)
        assert found is not None, span
        command = found
    known = {option for each in command.params for option in each.opts} | {"-h", "--help"}
    options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert isinstance(command, click.Group) or options <= known, span


def test_every_target_of_make_that_a_page_names_is_there() -> None:
    for span in all_spans():
        for target in re.findall(r"^make ([a-z-]+)", span):
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), span


def test_every_file_that_a_page_names_is_there() -> None:
    for span in all_spans():
        for path in re.findall(r"^((?:tests|src|docs|examples|bench|deploy)/[\w./-]+)", span):
            assert (ROOT / path).exists(), span


# The track record


RECORD = (ROOT / "docs" / "track-record.md").read_text(encoding="utf8")
REPEATED = re.findall(r"\| `pytest (.+?)` \|$", RECORD, re.MULTILINE)


@cache
def functions_in(path: str) -> tuple[str, ...]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf8"))
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    return tuple(each.name for each in functions if each.name.startswith("test_"))


def chosen(words: list[str]) -> Iterator[str]:
    """Return the tests that a call of pytest runs: those with any of the words behind `-k`."""
    files = [word for word in words if word.startswith("tests/")]
    wanted = words[words.index("-k") + 1].split(" or ") if "-k" in words else [""]
    for file in files:
        for name in functions_in(file):
            if any(each in f"{file}::{name}" for each in wanted):
                yield name


def test_a_bug_of_the_track_record_has_a_test_that_repeats_it() -> None:
    assert [call for call in REPEATED if not list(chosen(shlex.split(call)))] == []


def test_every_row_of_the_track_record_has_its_command() -> None:
    bugs = RECORD.partition("\n## ")[0]
    rows = [line for line in bugs.splitlines() if line.startswith("| ")][1:]
    assert len(REPEATED) == len(rows) > 40
