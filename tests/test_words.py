"""Pages and source are written in plain technical English: phrases that were dropped stay out."""

from __future__ import annotations

import re
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
}
"""Phrases that read as translated, and what to write instead."""

GENERATED = {"docs/python.md"}
"""Pages made of docstrings, which are the source's concern."""


def pages() -> list[Path]:
    """Return the pages that a user or a contributor reads."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
    return sorted(page for page in found if name_of(page) not in GENERATED)


def phrases(text: str, dropped: dict[str, str]) -> list[str]:
    """Return what the text contains of the dropped phrases, with what to write instead."""
    plain = " ".join(text.split())
    return [
        f"{phrase!r}: write {instead!r}"
        for phrase, instead in dropped.items()
        if re.search(rf"\b{re.escape(phrase)}\b", plain, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_page_has_no_dropped_phrase(page: Path) -> None:
    """Blocks are excluded: they show output and code, which have their own tests."""
    assert phrases(without_blocks(page.read_text(encoding="utf8")), DROPPED) == []


DROPPED_IN_SOURCE = {
    "whatever is killed": "even if a process is killed",
    "of yours": "your",
    "the till": "the writer",
}
"""Phrases that no source file has any more."""

CLEANED = ("demo",)
"""Folders of the source that are held to the list of the pages."""

DOCSTRING = re.compile(r'"""(Give the|Tell whether) ')
"""How a docstring does not begin: "Return the", "Return True if"."""


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=name_of)
def test_a_source_file_has_no_dropped_phrase(path: Path) -> None:
    text = path.read_text(encoding="utf8")
    cleaned = path.parent.name in CLEANED
    assert phrases(text, DROPPED if cleaned else DROPPED_IN_SOURCE) == []
    assert DOCSTRING.findall(text) == []


def test_a_dropped_phrase_is_recognized_across_lines() -> None:
    assert phrases("opened by\nitself", DROPPED) == ["'by itself': write 'automatically, alone'"]
    assert phrases("a nobody's record", DROPPED) != []
    assert phrases("resomebodying", DROPPED) == []
