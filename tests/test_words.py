"""Pages and source are written in plain technical English: phrases that were dropped stay out.

The pages also stay short: see `WORDS_MAX`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.pages import ROOT, name_of, without_blocks

DROPPED = {
    "somebody": "another process, another client",
    "nobody": "no reader, no other process",
    "everybody": "all clients, every reader",
    "whoever": "the caller, the process that",
    "for ever": "forever",
    "anew": "again",
    "by itself": "automatically, alone",
    "by themselves": "automatically",
    "of its own": "its own, separate",
    "of their own": "their own, separate",
    "of yours": "your",
    "on its way": "in flight",
    "on their way": "in flight",
    "meanwhile": "concurrently, in the meantime",
    "whatever is killed": "even if a process is killed",
    "is told": "receives, is notified",
    "the till": "the writer",
    "there is no such": "does not exist, unknown",
    "that there is not": "unknown",
    "is none of them": "is not one of them",
    "whole number": "integer",
    "whole numbers": "integers",
    "goes on": "continues",
    "go on": "continue",
    "force it": "use force",
    "look after": "manage",
    "made now": "created",
}
"""Phrases that read as translated, and what to write instead."""

WORDS_MAX = 55_000 + 2_000 + 3_000
"""The most words of all pages together, of those on replication and on Kafka's protocol.

A word is what stands between blanks and has a letter or a digit: code, tables and comments count,
bars and bullets do not. `wc -w` counts those too, and gives about 15 % more.
"""

DECISION_WORDS_MAX = 200
"""The most words of a decision record: context, decision, consequence, what was rejected."""


def pages() -> list[Path]:
    """Return the pages that a user or a contributor reads, generated ones and records included."""
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])


def words(page: Path) -> int:
    text = page.read_text(encoding="utf8")
    return sum(1 for word in text.split() if re.search(r"\w", word))


def test_the_pages_have_no_more_words_than_agreed() -> None:
    """Say a fact once, where a reader looks for it, and link to it from elsewhere."""
    counts = {name_of(page): words(page) for page in pages()}
    assert sum(counts.values()) <= WORDS_MAX, sorted(counts.items(), key=lambda page: -page[1])


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/decisions/*.md")), ids=name_of)
def test_a_decision_record_is_short(page: Path) -> None:
    assert words(page) <= DECISION_WORDS_MAX


def phrases(text: str, dropped: dict[str, str]) -> list[str]:
    """Return what the text contains of the dropped phrases, with what to write instead."""
    plain = " ".join(text.split())
    return [
        f"{phrase!r}: write {instead!r}"
        for phrase, instead in dropped.items()
        if re.search(rf"\b{re.escape(phrase)}\b", plain, re.IGNORECASE)
    ]


def further_pages() -> list[Path]:
    """Return pages that are linted and not counted: designs beside the code, policy, deployment."""
    found = [*ROOT.glob("src/**/*.md"), *ROOT.glob("deploy/*.md"), ROOT / "SECURITY.md"]
    return sorted(found)


@pytest.mark.parametrize("page", [*pages(), *further_pages()], ids=name_of)
def test_a_page_has_no_dropped_phrase(page: Path) -> None:
    """Blocks are excluded: they show output and code, which have their own tests."""
    assert phrases(without_blocks(page.read_text(encoding="utf8")), DROPPED) == []


RAISED = ("Error", "BadParameter", "Problem", "complain")
"""How the name of a call ends whose first argument is a message to a user."""


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield the text of every error that a module raises or reports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(RAISED):
            for part in ast.walk(ast.Tuple([*node.args[:2]], ast.Load())):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=name_of)
def test_an_error_has_no_dropped_phrase(path: Path) -> None:
    found = list(messages(ast.parse(path.read_text(encoding="utf8"))))
    assert [text for text in found if phrases(text, DROPPED)] == []


DROPPED_IN_SOURCE = {
    "whatever is killed": "even if a process is killed",
    "of yours": "your",
    "the till": "the writer",
}
"""Phrases that no source file has any more."""

CLEANED = ("aio", "api", "bridge", "cli", "config", "demo", "kafka", "reports", "spark")
"""Folders of the source that are held to the list of the pages."""

DOCSTRING = re.compile(r'"""(Give the|Tell whether) ')
"""How a docstring does not begin: "Return the", "Return True if"."""


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=name_of)
def test_a_source_file_has_no_dropped_phrase(path: Path) -> None:
    text = path.read_text(encoding="utf8")
    cleaned = path.relative_to(ROOT / "src").parts[1] in CLEANED
    assert phrases(text, DROPPED if cleaned else DROPPED_IN_SOURCE) == []
    assert DOCSTRING.findall(text) == []


def test_a_dropped_phrase_is_recognized_across_lines() -> None:
    assert phrases("opened by\nitself", DROPPED) == ["'by itself': write 'automatically, alone'"]
    assert phrases("a nobody's record", DROPPED) != []
    assert phrases("resomebodying", DROPPED) == []
