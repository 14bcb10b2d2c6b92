"""Runs the tests with lint and types beside them, and prints last how long everything took.

    python -m tools.run_tests [check] [--busy] [argument of pytest ...]

`check` runs the quick tests only. With `--busy` two processes keep the machine's cores busy for as
long as the tests run: nothing may depend on a deadline that a slow machine misses.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICK = [
    *("--quick", "-m", "not proof and not prove and not spark"),
    "--ignore=tests/serve/test_engine_over_the_wire.py",  # the embedded ones run
]
ALL = ["-m", "not prove"]
_BUSY = "while True: pass"
_WORKERS = str((os.cpu_count() or 1) + 1)
"""One more than cores: tests also wait for the disk and for processes."""


def lint_commands() -> list[list[str]]:
    """Return what checks format, lint and types; each may run beside the tests."""
    tools = Path(sys.executable).parent
    return [
        [str(tools / "ruff"), "format", "--check", "--quiet"],
        [str(tools / "ruff"), "check", "--quiet"],
        [str(tools / "mypy"), "--no-error-summary"],
    ]


class Lint:
    """Lint and types, run one after the other in a process beside the tests."""

    def __init__(self) -> None:
        script = " && ".join(" ".join(command) for command in lint_commands())
        self._process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> int:
        """Wait for the end, print what was found, and return the exit code."""
        print(self._process.communicate()[0], end="")
        code = self._process.returncode
        print("format, lint and types:", "failed" if code else "passed", flush=True)
        return code

    def stop(self) -> None:
        """End it if it still runs."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def busy_cores(processes: int) -> Iterator[None]:
    """Keep so many cores busy for as long as the block runs."""
    running = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run(arguments: list[str], *, busy: bool) -> int:
    """Run lint and tests; return 0 if both passed."""
    lint = Lint()
    try:
        with busy_cores(os.cpu_count() or 1 if busy else 0):
            command = [sys.executable, "-m", "pytest", "-q", "-n", _WORKERS, *arguments]
            tests = subprocess.run(command, cwd=ROOT, check=False).returncode
            return lint.finish() or tests
    finally:
        lint.stop()


def main() -> None:
    """Run what the arguments ask for."""
    arguments = sys.argv[1:]
    busy = "--busy" in arguments
    quick = "check" in arguments
    further = [word for word in arguments if word not in ("--busy", "check")]
    started = time.monotonic()
    code = run([*(QUICK if quick else ALL), *further], busy=busy)
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    print(f"{'failed' if code else 'passed'} after {minutes} min {seconds} s")
    sys.exit(code)


if __name__ == "__main__":
    main()
