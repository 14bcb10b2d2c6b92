"""No package index has Lakebed: no page and no message says to install it from one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakebed import __version__
from tests.documents.pages import ROOT, all_pages, name_of

FROM_INDEX = re.compile(r"lakebed(\[[\w,{}-]*\])?([=<>~!].*)?")
"""What pip looks up in an index: a name, perhaps with extras and a version."""


def texts() -> list[Path]:
    """Return every page, and every file of which a part is shown to a user."""
    found = [*all_pages(), *ROOT.glob("deploy/*"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    for folder in ("src", "tools", "examples", "bench"):
        found += ROOT.glob(f"{folder}/**/*.py")
    return sorted({path for path in found if path.is_file()})


def from_index(text: str) -> list[str]:
    """Return what a text tells the reader to install from a package index, of Lakebed."""
    calls = re.findall(r"\b(?:pip3?|pipx|uv) (?:install|add|download|run)\b([^\n`;&|]*)", text)
    words = [word.strip("\"',.:)") for call in calls for word in call.split()]
    return [word for word in words if FROM_INDEX.fullmatch(word)]


@pytest.mark.parametrize("path", texts(), ids=name_of)
def test_nothing_is_installed_from_an_index_that_does_not_have_it(path: Path) -> None:
    assert from_index(path.read_text(encoding="utf8")) == []


@pytest.mark.parametrize(
    "call",
    [
        "pip install lakebed",
        "/opt/bin/pip install lakebed\n",
        "`pip install 'lakebed[spark]'`, Java",
        "pip install lakebed[spark] venv-pack && x",
        "pip install --upgrade 'lakebed==0.6.0'",
        "pip install 'lakebed[{extra}]'",
        "uv add lakebed",
    ],
)
def test_a_call_that_needs_an_index_is_recognized(call: str) -> None:
    assert len(from_index(call)) == 1


@pytest.mark.parametrize(
    "call",
    [
        "pip install .",
        "pip install '.[spark]'",
        "pip install 'dist/lakebed-0.6.0-py3-none-any.whl[spark]'",
        "/opt/lakebed/bin/pip install --constraint constraints.txt .",
    ],
)
def test_a_call_that_works_from_a_clone_is_accepted(call: str) -> None:
    assert from_index(call) == []


@pytest.mark.parametrize("path", all_pages(), ids=name_of)
def test_a_wheel_that_a_page_names_has_the_current_version(path: Path) -> None:
    versions = re.findall(r"lakebed-([\d.]+)-py3", path.read_text(encoding="utf8"))
    assert set(versions) <= {__version__}
