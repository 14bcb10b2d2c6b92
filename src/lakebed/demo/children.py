"""Processes that the demonstration starts, listens to, and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lakebed.errors import JobFailedError

_LOOK_SECONDS: Final = 0.1
_TOLD_BYTES: Final = 1500
"""How much of a failed process's last words an error repeats."""


TEMPORARY: Final = "tmp"
"""The folder for what a killed process can no longer remove."""


def _temporary(folder: Path) -> dict[str, str]:
    """Have Python, Spark and Java make their temporary files in a folder."""
    folder.mkdir(exist_ok=True)
    java = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={folder}"
    return {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), "JDK_JAVA_OPTIONS": java}


class Child:
    """A process in a session of its own: a kill reaches all that it has started, Java too.

    `hear` is called with each line that it writes to stdout, in a thread of the child's. Left by an
    exception, also by Ctrl-C, the block of a child kills it.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], folder: Path, hear: Callable[[str], None]
    ) -> None:
        """Start a module of Lakebed; what it writes besides stdout goes below the folder."""
        self._said = said = folder / f"{module.rpartition('.')[2]}.log"
        self._hear = hear
        self.killed_at: float | None = None
        """When it was killed on purpose, by the clock `time.monotonic`."""
        with said.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # a module of ours
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **_temporary(folder.resolve() / TEMPORARY)},
                start_new_session=True,
            )
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  # it was started with a pipe
        for line in self._process.stdout:
            if line.endswith("\n"):  # what a kill has cut off was not said
                self._hear(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._signal()
        self._process.wait()
        self._listening.join()
        assert self._process.stdout is not None  # noqa: S101  # it was started with a pipe
        self._process.stdout.close()

    def kill(self) -> None:
        """Kill it and all that it has started, without warning; any thread may."""
        if self.killed_at is None:
            self.killed_at = time.monotonic()
            self._signal()

    def _signal(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Wait for its end; an end that was not asked for is an error with its last words."""
        while self._process.poll() is None:
            meanwhile()
            time.sleep(_LOOK_SECONDS)  # somebody watches: this is how often the picture changes
        self._listening.join()
        meanwhile()
        if self._process.returncode != 0 and self.killed_at is None:
            words = self._said.read_bytes()[-_TOLD_BYTES:].decode(errors="replace").strip()
            raise JobFailedError(
                "a process of the demonstration failed",
                exit_code=self._process.returncode,
                said=words,
            )
