"""Runs the fast tests on every supported Python that is installed, and prints a table.

    python3 tools/all_pythons.py [3.12 3.13 ...]

`python3.X` is looked up on PATH and among the versions of pyenv. Each version has its environment,
`.venv-3.X`. A version that is not installed is a row of the table, and no failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.environment import ROOT, create, version_of

VERSIONS = ("3.11", "3.12", "3.13")
FAST = "not proof and not prove and not spark"
COLUMNS = "{:<8} {:<44} {:>7}\n"


@dataclass(frozen=True)
class Outcome:
    """What came of the tests on one version."""

    version: str
    summary: str
    seconds: float
    ok: bool


def find(version: str) -> str | None:
    """Return an interpreter of a version that runs, or None."""
    wanted = tuple(map(int, version.split(".")))
    return next((each for each in _candidates(version) if version_of(each) == wanted), None)


def _candidates(version: str) -> Iterator[str]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield str(Path(folder) / f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python")):
        yield str(path)


def run(version: str) -> Outcome:
    """Run the fast tests on a version, if it is installed."""
    python, begun = find(version), time.monotonic()
    if python is None:
        return Outcome(version, "not installed", 0, ok=True)
    try:
        program = create(python, ROOT / f".venv-{version}")
    except subprocess.CalledProcessError as error:
        return Outcome(version, f"setup failed: {error}", time.monotonic() - begun, ok=False)
    begun, lines = time.monotonic(), []
    command = [str(program), "-m", "pytest", "-q", "-n", "2", "-m", FAST]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
    return Outcome(version, summarize(lines), time.monotonic() - begun, ok=tests.returncode == 0)


def summarize(lines: list[str]) -> str:
    """Return the counts of pytest's last line, without the time."""
    counts = re.findall(r"\d+ (?:passed|failed|errors?|skipped)\b", lines[-1] if lines else "")
    return ", ".join(counts) or "pytest did not finish"


def main() -> int:
    """Run the tests on each version, print the table, and return the exit code."""
    outcomes = []
    for version in sys.argv[1:] or VERSIONS:
        sys.stdout.write(f"Python {version}\n")
        outcomes.append(run(version))
    sys.stdout.write("\n" + COLUMNS.format("python", "tests", "seconds"))
    for outcome in outcomes:
        seconds = f"{outcome.seconds:.0f}"
        sys.stdout.write(COLUMNS.format(outcome.version, outcome.summary, seconds))
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
