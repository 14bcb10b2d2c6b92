"""The page about tables: other engines read the log that its first program leaves behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.documents.pages import Block, blocks_of


def programs(section: str) -> list[Block]:
    return [
        each
        for each in blocks_of("docs/tables.md")
        if each.language == "python" and each.section == section
    ]


def test_other_engines_read_what_the_page_says(tmp_path: Path) -> None:
    """The last program only loads DuckDB's extensions; it has a test with the query below it."""
    (writing,) = programs("In Python")
    reading, loading = programs("With other engines")
    assert loading.output is None
    for block in (writing, reading, loading):
        done = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-c", block.text],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert (done.stdout, done.returncode) == (block.output or "", 0), done.stderr
