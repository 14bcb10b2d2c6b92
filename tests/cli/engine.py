"""Calling commands on a log of the engine, in this process and as a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from lakebed.cli import cli
from tests import forked

PROGRAM = [sys.executable, "-m", "lakebed.cli"]


class Shell:
    """Runs commands on one folder, which they get as a user would give it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *arguments: object, given: str | bytes | None = None, code: int = 0) -> Result:
        """Run a command in this process; anything but this exit code fails the test."""
        result = CliRunner(env={"LAKEBED_DATA": str(self.folder)}).invoke(
            cli, [str(each) for each in arguments], input=given, prog_name="lakebed"
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        assert result.exit_code == code, result.output
        return result

    def text(self, *arguments: object, given: str | bytes | None = None) -> str:
        """Return what a command that succeeds writes."""
        result = self.run(*arguments, given=given)
        assert result.stderr == ""
        return str(result.stdout)

    def json(self, *arguments: object, given: str | bytes | None = None) -> list[dict[str, Any]]:
        """Return the JSON objects that a command writes."""
        text = self.text(*arguments, "--json", given=given)
        return [json.loads(line) for line in text.splitlines()]

    def error(self, *arguments: object, given: str | bytes | None = None) -> dict[str, Any]:
        """Return the error that a command ends with."""
        result = self.run(*arguments, "--json", given=given, code=1)
        found: dict[str, Any] = json.loads(result.stderr)
        assert found["type"] == "error"
        return found

    def usage(self, *arguments: object) -> str:
        """Return what a command says that is called wrongly."""
        return str(self.run(*arguments, code=2).stderr)

    def start(self, *arguments: object, **more: Any) -> subprocess.Popen[bytes]:
        """Start a command as a program of its own."""
        return forked.Popen(
            [*PROGRAM, *(str(each) for each in arguments)],
            env={**os.environ, "LAKEBED_DATA": str(self.folder)},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )

    def values(self, topic: str, *more: object) -> list[Any]:
        """Return the values of a topic."""
        return [line["value"] for line in self.json("consume", topic, *more)]
