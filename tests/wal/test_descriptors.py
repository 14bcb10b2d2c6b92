"""A process without free file descriptors: writes are refused and heal, the log is not poisoned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "case", ["rotation_to_a_spare", "rotation_to_a_new_file", "checkpoint", "read", "catalog"]
)
def test_running_out_of_descriptors_is_refused_and_heals(case: str, tmp_path: Path) -> None:
    """Every failure is a `TooManyFilesError`; nothing acknowledged is lost."""
    command = [sys.executable, "-m", "tests.wal.few_descriptors", case, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
