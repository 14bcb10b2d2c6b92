"""Programs of Python as forks of a process that has imported lakebed already.

Starting Python and importing what a server needs takes more than a second of a core; a fork takes
milliseconds. A fork is a process like any other: it has a pid, takes signals and can be killed.
What it does not show is what starting a program does, or how much memory a fresh one takes.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
"""Where forks come from: one process for each process of tests."""
FORKS.set_forkserver_preload(
    [
        "pytest",
        "tests.proof.engine_writer",
        "tests.proof.lake_writer",
        "lakebed.cli.serve",
        "lakebed.client.log",
        "lakebed.engine.by_url",
        "lakebed.engine.log",
        "lakebed.iceberg.lake",
        "lakebed.kafka.server",
        "lakebed.serve.http_app",
        "lakebed.serve.server",
        "pyarrow.parquet",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
    ]
)


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` for commands that begin with `sys.executable`."""

    _process: multiprocessing.process.BaseProcess

    def _execute_child(  # how the standard library starts it, too
        self, args: Sequence[str], _executable: Any, *more: Any
    ) -> None:
        command = [os.fspath(word) for word in args]
        assert command[0] == sys.executable, f"not a program of Python: {command}"
        folder, environment = more[3], more[4]
        streams = more[8:14]
        input_read, _, _, output_write, _, errors_write = streams
        given = ((input_read, 0), (output_write, 1), (errors_write, 2))
        self._process = FORKS.Process(
            target=_become,
            args=(
                command,
                os.fspath(folder or os.getcwd()),
                dict(os.environ if environment is None else environment),
                [_Descriptor(target if stream < 0 else stream) for stream, target in given],
            ),
            daemon=True,  # never outlives the tests
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            self.returncode = self._process.exitcode
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        self._process.join(timeout)
        if self._internal_poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return int(self.returncode)


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    capture_output: bool = False,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as `subprocess.run` does."""
    text, timeout = options.pop("input", None), options.pop("timeout", None)
    if text is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(text, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


class _Descriptor:
    """A file descriptor that a fork receives with its arguments."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _take, (reduction.DupFd(self._descriptor),)


def _take(passed: Any) -> int:
    descriptor: int = passed.detach()
    return descriptor


def _become(
    command: list[str], folder: str, environment: dict[str, str], streams: list[int]
) -> None:
    """Be the program: its streams, folder and environment, then what it runs."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # for as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, folder)
    _python, *words = command
    match words:
        case ["-c", code, *_]:
            sys.argv = words[:1] + words[2:]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        case ["-m", module, *_]:
            sys.argv = words[1:]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case _:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
