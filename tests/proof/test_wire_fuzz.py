"""Proof: mutated Arrow streams and predicates are taken or refused; none ends the process.

A child process does what a server does with them. Arrow's debug memory pool ends it when a write
passed the end of an allocation, so that an overflow is seen even where nothing crashes. The input
that ended it is kept under `failures/`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proof.scale import Rounds, kept_on_failure
from tests.proof.wire_fuzz_child import MODES

pytestmark = pytest.mark.proof

FILE = "tests/proof/test_wire_fuzz.py"
_ROOT = Path(__file__).parents[2]
_LOG = """[lake]
iceberg = false
[wal]
sync = "os"
"""


class Child:
    """The process that tries inputs."""

    def __init__(self, mode: str, folder: Path) -> None:
        (folder / "log").mkdir(parents=True)
        (folder / "log" / "lakebed.toml").write_text(_LOG)
        self._errors = (folder / "stderr").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.wire_fuzz_child", mode, str(folder)],
            cwd=_ROOT,
            env={**os.environ, "ARROW_DEBUG_MEMORY_POOL": "abort"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def try_round(self, number: int) -> tuple[int, int]:
        """Return how many inputs a round had and how many were refused; fail if one ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}; see `input` and `stderr`"
        inputs, refused = line.split()
        return int(inputs), int(refused)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("mode", MODES)
def test_no_input_from_the_wire_ends_the_process(mode: str, tmp_path: Path) -> None:
    test = f"{FILE}::test_no_input_from_the_wire_ends_the_process[{mode}]"
    tried = refused = 0
    with kept_on_failure(tmp_path, test, mode):
        child = Child(mode, tmp_path)
        try:
            for number in (rounds := Rounds(test, short=4_000, long=2_000_000, seconds=4)):
                inputs, not_taken = child.try_round(number)
                rounds.count(inputs)
                tried, refused = tried + inputs, refused + not_taken
        finally:
            child.close()
        assert 0 < refused < tried
