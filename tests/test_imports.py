"""A program that uses a part of Lakebed does not load the rest of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

HEAVY: Final = ("lakebed.engine", "lakebed.lake", "lakebed.wal", "pyiceberg", "pandas")


def loaded_by(code: str) -> set[str]:
    """Run code in a new interpreter; return the modules that it has loaded at the end."""
    program = f"{code}\nimport sys; print(*sorted(sys.modules), sep=chr(10))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def heavy(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith(HEAVY)}


def test_importing_lakebed_loads_neither_the_engine_nor_arrow() -> None:
    modules = loaded_by("import lakebed")
    assert heavy(modules) == set()
    assert {"numpy", "pyarrow"} & modules == set()


def test_every_public_name_can_be_imported_and_listed() -> None:
    code = """
import lakebed
names = set(dir(lakebed))
assert names >= set(lakebed.__all__), set(lakebed.__all__) - names
from lakebed import *
assert isinstance(Log, type)
try:
    lakebed.Logg
except AttributeError as error:
    assert "Logg" in str(error)
else:
    raise AssertionError("a name that does not exist was found")
"""
    assert "lakebed.engine.log" in loaded_by(code)
