"""Proof: the tests see each deliberate fault, so a promise cannot be broken unnoticed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.mutants import MUTANTS, Mutant
from tests.proof.scale import LONG

_ROOT = Path(__file__).parents[2]
_CHOSEN = [mutant for mutant in MUTANTS if LONG or mutant.quick]
_NOT_THE_FAULT = re.compile(
    r"^FAILED .* - (Name|Attribute|Type|Syntax|Indentation|Import|ModuleNotFound|UnboundLocal)Error"
)
"""Failures that say no more than that the mutant is not a program."""


def _copy(to: Path) -> Path:
    """Copy source and tests, without anything compiled."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "tests"):
        shutil.copytree(_ROOT / folder, to / folder, ignore=ignored)
    shutil.copy(_ROOT / "pyproject.toml", to)
    return to


def _apply(mutant: Mutant, copy: Path) -> None:
    """Make the change; the text must be there exactly once."""
    path = copy / "src" / "lakebed" / mutant.file
    text = path.read_text()
    count = text.count(mutant.old)
    assert count == 1, f"{mutant.name}: its text is found {count} times in {mutant.file}"
    changed = text.replace(mutant.old, mutant.new)
    compile(changed, str(path), "exec")
    path.write_text(changed)


def _environment(copy: Path) -> dict[str, str]:
    """Let the copy be imported, whatever is installed, and tests run short and alone."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "LAKEBED_", "PYTHON"))
    }
    return {**kept, "PYTHONPATH": str(copy / "src")}


def _run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env=_environment(copy),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _test(copy: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy against its own source."""
    where = _run(copy, "-c", "import lakebed; print(lakebed.__file__)")
    assert where.stdout.strip() == str(copy / "src" / "lakebed" / "__init__.py"), where
    options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--timeout=120")
    return _run(copy, "-m", "pytest", *options, *tests)


@pytest.mark.proof
def test_the_tests_pass_without_a_mutant(tmp_path: Path) -> None:
    """So that a failure with a mutant is due to the mutant."""
    tests = sorted({test for mutant in _CHOSEN for test in mutant.tests})
    done = _test(_copy(tmp_path), tests)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proof
@pytest.mark.parametrize("mutant", _CHOSEN, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    """The tests named for a fault fail on it, by what it does and not by failing to run."""
    copy = _copy(tmp_path)
    _apply(mutant, copy)
    done = _test(copy, list(mutant.tests))
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    said = f"{mutant.name} breaks: {mutant.breaks}\n{done.stdout}{done.stderr}"
    assert done.returncode == 1, f"the tests did not see it: {said}"
    assert failures, f"no test failed: {said}"
    assert not any(_NOT_THE_FAULT.match(line) for line in failures), said


@pytest.mark.proof
def test_every_mutant_fits_the_code() -> None:
    """Each text is found exactly once, also of the mutants that only run in the long form."""
    for mutant in MUTANTS:
        text = (_ROOT / "src" / "lakebed" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has changed"
        assert mutant.new != mutant.old
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
    assert sum(mutant.quick for mutant in MUTANTS) >= 5
