"""Processes that the demonstration starts, listens to, and kills."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from lakebed.errors import DemoFailedError
from lakebed.types import Closing

_LOOK_SECONDS: Final = 0.1
_TOLD_BYTES: Final = 1500
"""How much of a failed process's last words an error repeats."""


TEMPORARY: Final = "tmp"
"""The folder for what a killed process can no longer remove."""


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment without settings of Lakebed, whose temporary files are in a folder."""
    folder.mkdir(exist_ok=True)
    others = {name: text for name, text in os.environ.items() if not name.startswith("LAKEBED_")}
    java = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={folder}"'
    settings = {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), "JDK_JAVA_OPTIONS": java}
    return others | settings


class Child(Closing):
    """A process in a new session: a kill reaches its Java too, whose workers end with it.

    `hear` is called with the child and each line that it writes to stdout, in a separate thread;
    what it raises ends the child, and is raised by `wait`. Left by an exception, also by Ctrl-C,
    the block of a child kills it.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        folder: Path,
        hear: Callable[[Child, str], None],
    ) -> None:
        """Start a module of Lakebed; what it writes besides stdout goes below the folder."""
        self._said = said = folder / f"{module.rpartition('.')[2]}.log"
        self._hear = hear
        self._failure: BaseException | None = None
        self.killed_at: float | None = None
        """When it was killed on purpose, by the clock `time.monotonic`."""
        with said.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # a module of ours
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(folder.resolve() / TEMPORARY),
                start_new_session=True,
            )
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  # it was started with a pipe
        for line in self._process.stdout:
            if line.endswith("\n") and self._failure is None:  # a kill cuts the last line off
                try:
                    self._hear(self, line)
                except Exception as error:
                    self._failure = error
                    self._signal()

    def close(self) -> None:
        """Kill it if it still runs, and wait for its end."""
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

    @property
    def was_killed(self) -> bool:
        """Return whether the kill came before its end."""
        return self._process.returncode == -signal.SIGKILL and self.killed_at is not None

    def _signal(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has already ended
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, report: Callable[[], None]) -> None:
        """Wait for its end; an end that was not asked for is an error with its last words."""
        while self._process.poll() is None:
            report()
            time.sleep(_LOOK_SECONDS)  # how often the display changes
        self._listening.join()
        report()
        if self._failure is not None:
            raise self._failure
        if self._process.returncode != 0 and not self.was_killed:
            words = self._said.read_bytes()[-_TOLD_BYTES:].decode(errors="replace").strip()
            raise DemoFailedError(
                "a process of the demonstration failed",
                exit_code=self._process.returncode,
                said=words,
            )


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Leave the block without children, in a process that had none before.

    Ctrl-C may arrive while a child is being started, before a variable holds it.
    """
    try:
        yield
    except BaseException:
        _end_all()
        raise


def _end_all() -> None:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended since
            parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[1:4]
            process_id = int(entry.name)
            if int(parent) == os.getpid():
                end = os.killpg if int(session) == process_id else os.kill
                end(process_id, signal.SIGKILL)
                os.waitpid(process_id, 0)
