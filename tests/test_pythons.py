"""`make` takes any supported Python: .venv follows PYTHON, and others are found and tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import all_pythons
from tools.environment import version_of

ROOT = Path(__file__).parents[1]
CURRENT = "{}.{}".format(*sys.version_info[:2])


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def planned(venv: Path, *variables: str) -> str:
    """Return what `make setup` would do."""
    inherited = ("PYTHON", "MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES")
    environment = {name: value for name, value in os.environ.items() if name not in inherited}
    call = ["make", "--dry-run", "setup", f"VENV={venv}", *variables]
    done = subprocess.run(
        call, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_venv_is_made_once_and_again_for_another_version(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    python = f"PYTHON={sys.executable}"
    assert f"{sys.executable} tools/environment.py {venv} dev" in planned(venv, python)
    program(venv / "bin" / "python", f'exec {sys.executable} "$@"')
    (venv / f".installed-{CURRENT}").touch()
    assert "environment.py" not in planned(venv, python)
    assert "environment.py" not in planned(venv), "without PYTHON, the venv stays as it is"
    newer = program(tmp_path / "python3.99", "echo 3.99")
    assert f"{newer} tools/environment.py {venv} dev" in planned(venv, f"PYTHON={newer}")


def test_a_venv_whose_python_is_gone_is_made_with_the_default(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python", "exit 127")
    assert "python3 tools/environment.py" in planned(tmp_path)


def test_an_interpreter_that_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = program(tmp_path / "shims" / f"python{CURRENT}", "echo not selected >&2; exit 127")
    link = tmp_path / "versions" / f"{CURRENT}.0" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(shim.parent))
    assert version_of(str(shim)) is None
    assert version_of(str(tmp_path / "none")) is None
    assert version_of(sys.executable) == sys.version_info[:2]
    assert all_pythons.find(CURRENT) == str(link)
    assert all_pythons.find("3.99") is None


def test_a_version_that_is_not_installed_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["all_pythons", "3.99"])
    assert all_pythons.main() == 0
    assert "3.99     not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "summary"),
    [
        ("5788 passed, 12 deselected in 300.10s (0:05:00)\n", "5788 passed"),
        ("=== 8 failed, 5780 passed, 2 errors in 1s ===\n", "8 failed, 5780 passed, 2 errors"),
        ("Killed\n", "pytest did not finish"),
    ],
)
def test_the_table_has_the_counts_of_pytest(line: str, summary: str) -> None:
    assert all_pythons.summarize(["...\n", line]) == summary
    assert all_pythons.summarize([]) == "pytest did not finish"
