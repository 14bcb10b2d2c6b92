"""A real process that reports in lines, and can be killed or stopped at any moment."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


class Child:
    """A Python module run as a process of its own, whose lines go to `take` as they come.

    Its errors go to the file `errors`. Use it as a context manager: it never outlives the test.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        take: Callable[[str], None],
        errors: Path,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.lines = 0
        self._take = take
        self._errors = errors
        self._rest = b""
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                env={**os.environ, **(environment or {})},
            )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        os.set_blocking(self._pipe, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if error is not None and self.errors():
            error.add_note(f"the child says:\n{self.errors()}")

    def errors(self) -> str:
        """Return what it wrote to its standard error."""
        return self._errors.read_text(errors="replace")

    def listen(self, until: Callable[[], bool]) -> bool:
        """Take lines until `until` holds; False if the child ended before."""
        while not until():
            more = self._read(PATIENCE_SECONDS)
            assert more is not None, f"the child said nothing for {PATIENCE_SECONDS} s"
            if not more:
                return until()
        return True

    def listen_for(self, seconds: float) -> None:
        """Take lines for some time, or until the child ends."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._read(left):
            pass

    def kill(self) -> int:
        """Kill it with SIGKILL, take what it had written, return its exit code."""
        self._process.send_signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Take lines to the end and return the exit code: negative if a signal ended it."""
        self.listen(lambda: False)
        assert not self._rest, f"a line was cut: {self._rest!r}"
        return self._process.wait()

    def stop(self) -> None:
        """Stop every thread of it (SIGSTOP) and take what it had written."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        while self._read(0):
            pass

    def resume(self) -> None:
        """Let it run on."""
        self._process.send_signal(signal.SIGCONT)

    def _read(self, seconds: float) -> bool | None:
        """Take what comes within some time: None if nothing did, False at the end."""
        if not select.select([self._pipe], [], [], seconds)[0]:
            return None
        data = os.read(self._pipe, 1 << 20)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.lines += 1
            self._take(line.decode())
        return bool(data)
