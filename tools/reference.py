"""Writes what the documents say about names, commands and settings from the code itself.

    python -m tools.reference          write docs/python.md, and the help texts of docs/cli.md
    python -m tools.reference --check  only say whether they are as they would be written

`tests/test_reference.py` fails when a page is not what this prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.cli_page import with_help
from tools.python_page import python_page

ROOT: Final = Path(__file__).parents[1]


def pages() -> dict[Path, Callable[[str], str]]:
    """Return what makes each page of what it is now."""
    return {
        ROOT / "docs" / "python.md": lambda _: python_page(),
        ROOT / "docs" / "cli.md": with_help,
    }


def main() -> int:
    """Write the pages, or check them; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for path, make in pages().items():
        page = path.read_text(encoding="utf8") if path.exists() else ""
        made = make(page)
        if made != page:
            stale.append(path.name)
            if not check:
                path.write_text(made, encoding="utf8")
    verb = "is not as the code says" if check else "written"
    for name in stale:
        sys.stdout.write(f"docs/{name}: {verb}\n")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
