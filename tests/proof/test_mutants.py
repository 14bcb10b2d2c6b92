"""Proof: the tests fail on each deliberate fault, so no promise can be broken unnoticed.

`make test` runs three mutants, chosen by the seed, and `make prove` runs all of them. To run one:

    LAKEBED_PROVE=1 .venv/bin/pytest tests/proof/test_mutants.py -k no-fdatasync
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof import mutant_hook
from tests.proof.mutants import MUTANTS, affordable, choose
from tests.proof.mutation import ROOT, Mutant
from tests.proof.scale import LONG, SEED
from tests.proof.syntax_pattern import DoesNotFitError

_PER_RUN = 3
_LIMIT_SECONDS = 600
_OPTIONS = ("-x", "-q", "--tb=short", "-p", "no:cacheprovider", f"--timeout={_LIMIT_SECONDS}")
_NOT_THE_FAULT = re.compile(
    r"^(FAILED .* - |E +)"
    r"((Name|Attribute|Type|Syntax|Indentation|Import|ModuleNotFound|UnboundLocal)Error"
    r"|Failed: Timeout)\b",
    re.MULTILINE,
)
"""Failures that say no more than that the mutant is not a program, or that a test hangs."""


_CHOSEN = list(MUTANTS) if LONG else choose(SEED, _PER_RUN)


def _run_tests(tests: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run tests in their short form, with the hook in `folder` if there is one."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "LAKEBED_", "PYTHON"))
    }
    environment = {
        **kept,
        "PYTHONPATH": str(folder),
        "COLUMNS": "1000",  # or pytest cuts the error off its summary
        "LAKEBED_FAILURES": str(folder / "failures"),
        "LAKEBED_PROVE": "short",
        "LAKEBED_PATIENCE_SECONDS": "120",  # what never happens is what many mutants cause
        "LAKEBED_SEED": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", *_OPTIONS, f"--basetemp={folder / 'tests'}", *tests],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.prove  # `make test` runs these tests anyway
@pytest.mark.timeout(2 * _LIMIT_SECONDS)
def test_the_tests_pass_without_a_mutant(tmp_path: Path) -> None:
    """So that a failure with a mutant is due to the mutant."""
    tests = sorted({test for mutant in _CHOSEN for test in mutant.tests})
    done = _run_tests(tests, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.proof
@pytest.mark.timeout(2 * _LIMIT_SECONDS)
@pytest.mark.parametrize("mutant", _CHOSEN, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    """The tests named for a fault fail on it, by its effect and not by failing to run."""
    mutant_hook.install(str(tmp_path), mutant.module, mutant.compile())
    done = _run_tests(list(mutant.tests), tmp_path)
    said = f"{mutant.name} breaks: {mutant.breaks}\n{done.stdout}{done.stderr}"
    assert mutant_hook.was_loaded(str(tmp_path)), f"no process loaded {mutant.module}: {said}"
    assert done.returncode == 1, f"the tests did not see it: {said}"
    assert re.search(r"^FAILED ", done.stdout, re.MULTILINE), f"no test failed: {said}"
    assert not _NOT_THE_FAULT.search(done.stdout), f"failed for another reason: {said}"


def test_every_mutant_fits_the_code() -> None:
    """Each is located exactly once, including those that only `make prove` runs."""
    problems = []
    for mutant in MUTANTS:
        try:
            mutant.compile()
        except DoesNotFitError as error:
            problems.append(str(error))
    assert not problems, "\n".join(problems)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_test_of_a_mutant_exists() -> None:
    for mutant in MUTANTS:
        for test in mutant.tests:
            path, _, function = test.partition("::")
            text = (ROOT / path).read_text(encoding="utf8")
            assert f"def {function.partition('[')[0]}" in text, f"{mutant.name}: no {test}"


def test_the_rotation_visits_every_affordable_mutant() -> None:
    runs = -(-len(affordable()) // _PER_RUN)
    visited = {mutant for seed in range(runs) for mutant in choose(seed, _PER_RUN)}
    assert visited == set(affordable())
    assert len(visited) > len(MUTANTS) / 2


def test_the_page_says_how_many_mutants_run() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf8")
    (row,) = [line for line in page.splitlines() if line.startswith("| mutants |")]
    assert f"| {_PER_RUN}, by rotation | all |" in row
    assert "`make test` runs three of" in page
