"""The counts of docs/testing.md are those of the proofs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.documents.pages import ROOT

PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf8")
NOT_PROOFS = ("tests/documents/test_proofs_page.py", "tests/proof/test_scale.py")
STANDS_FOR = {"tests/proof/test_power_cut_ext4.py": "tests/proof/ext4_power_cuts.py"}
"""Proofs whose rounds are in a module that the test starts."""


def counts_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield the short and the long count of each proof of a file, as the page writes them."""
    tree = ast.parse((ROOT / STANDS_FOR.get(path, path)).read_text(encoding="utf8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Rounds":
            given = {each.arg: each.value for each in node.keywords}
            short, long = ast.literal_eval(given["short"]), ast.literal_eval(given["long"])
            yield f"{short:,}", f"{long:,}"


def test_the_page_has_the_counts_of_the_proofs() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| .*`tests/\S+\.py`.* \|$", line)]
    shown: dict[str, str] = {}
    for row in rows:
        for path in re.findall(r"`(tests/\S+\.py)`", row):
            shown[path] = shown.get(path, "") + row
    for path, text in shown.items():
        for short, long in counts_of(path):
            numbers = set(re.findall(r"[\d,]*\d", text))
            assert {short, long} <= numbers, f"{path}: {short} and {long} are not in its rows"


def test_the_page_names_every_file_with_a_proof() -> None:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        if "Rounds(" in path.read_text(encoding="utf8") and name not in NOT_PROOFS:
            assert f"`{name}`" in PAGE, name
