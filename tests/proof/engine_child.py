"""A real process that lives a life of a log, forked from one that has everything imported.

Starting Python and importing Arrow takes half a second; most lives take a tenth of that.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.forked import FORKS
from tests.proof.child import Child

_WRITER = "tests.proof.engine_writer"


def _run(pipe: Connection, errors: str, failpoint: str, module: str, arguments: list[str]) -> None:
    """Be the child: lines go to the pipe, errors to a file."""
    os.dup2(pipe.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # for as long as the process
    program = importlib.import_module(module)
    if failpoint:
        importlib.import_module(
            "lakebed.host.conditional_folder"
        )  # defines failpoints; loaded late
        importlib.import_module("lakebed.host.failpoints").arm(failpoint)
    program.main(*arguments)


class ForkedChild(Child):
    """A child as `Child` is, that runs the `main` of a module; its events go to `take`."""

    def __init__(
        self,
        *arguments: object,
        take: Callable[[list[Any]], None],
        errors: Path,
        failpoint: str = "",
        module: str = _WRITER,
    ) -> None:
        self.lines = 0
        self._take = lambda line: take(json.loads(line))
        self._errors = errors
        self._rest = b""
        self._reader, writer = FORKS.Pipe(duplex=False)
        words = [str(each) for each in arguments]
        self._child = FORKS.Process(
            target=_run, args=(writer, str(errors), failpoint, module, words)
        )
        self._child.start()
        writer.close()
        self._pipe = self._reader.fileno()
        os.set_blocking(self._pipe, False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._child.kill()
        self._child.join()
        self._child.close()
        self._reader.close()
        if error is not None and self.errors():
            error.add_note(f"the child says:\n{self.errors()}")

    def errors(self) -> str:
        """Return what it wrote to its standard error."""
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    def kill(self) -> int:
        """Kill it with SIGKILL, take what it had written, return its exit code."""
        assert self._child.pid is not None
        os.kill(self._child.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Take events to the end and return the exit code: negative if a signal ended it."""
        self.listen(lambda: False)
        assert not self._rest, f"a line was cut: {self._rest!r}"
        self._child.join()
        code = self._child.exitcode
        assert code is not None
        return code
