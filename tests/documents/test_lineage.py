"""The page about lineage names files and tests that there are."""

from __future__ import annotations

import ast
import re

import pytest

from tests.documents.pages import ROOT

PAGE = (ROOT / "docs" / "lineage.md").read_text(encoding="utf8")
ROWS = [
    row
    for row in re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    if row[1] not in ("where", "---") and not row[0].startswith("--")
]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:50] for row in ROWS])
def test_a_row_names_files_and_tests_that_exist(row: tuple[str, str, str]) -> None:
    files, tests = named(row[1]), named(row[2])
    assert files
    assert tests
    for file in files:
        assert (ROOT / "src" / "lakebed" / file).is_file(), file
    for test in tests:
        path, _, function = test.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf8"))
        found = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        tested = any(name.startswith("test_") for name in found) or "TestCase" in ast.dump(tree)
        assert function in found if function else tested, test


def test_every_one_of_the_four_designs_has_its_rows() -> None:
    assert len(ROWS) >= 35
    for design in ("Apache Iggy", "Rivven", "merutable", "raft-io"):
        assert f"\n## {design}: " in PAGE
