"""What the processes of the soak have in common: how they are started, timed and heard.

A process prints `ready` once it has imported and connected what it needs, then reads one line with
two times in seconds since 1970: when the attack begins, and when everything ends. It works until
the end, prints one line of JSON, its report, and ends. So starting processes costs the
measurements nothing. Its token is in `LAKEBED_TOKEN`.

    python -m MODULE KIND NAME PORT HTTP_PORT
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.serve.support import ServerProcess, line_of
from tests.waiting import PATIENCE_SECONDS

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Phases:
    """When the attack begins and when everything ends, in seconds since 1970."""

    attack: float
    end: float

    @property
    def attacked(self) -> bool:
        """Return True once the attack has begun."""
        return time.time() >= self.attack

    @property
    def ended(self) -> bool:
        """Return True once everything is to end."""
        return time.time() >= self.end


@dataclass(frozen=True)
class Arguments:
    """What a process was started with."""

    kind: str
    name: str
    server: ServerProcess
    """Not started here: it has the ports, for clients that take a server."""
    token: str


def parse_arguments() -> Arguments:
    """Return what this process was started with."""
    kind, name, port, http_port = sys.argv[1:]
    server = ServerProcess(Path(os.devnull), http_port=int(http_port))
    server.port = int(port)
    return Arguments(kind, name, server, os.environ["LAKEBED_TOKEN"])


def take_part(work: Callable[[Phases], dict[str, Any]]) -> None:
    """Wait for the times, work, and report."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    attack, end = (float(word) for word in sys.stdin.readline().split())
    report = work(Phases(attack, end))
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


class Participant:
    """A process of the soak, seen from the test."""

    def __init__(
        self, module: str, kind: str, name: str, server: ServerProcess, token: str
    ) -> None:
        self.name = name
        self._errors = server.folder.with_name(f"{name}.stderr")
        command = [sys.executable, "-m", module, kind, name]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, str(server.port), str(server.http_port)],
                cwd=_ROOT,
                env={**os.environ, "LAKEBED_TOKEN": token},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait_until_ready(self) -> None:
        """Return when the process is ready to begin."""
        line = line_of(self._process)
        assert line == "ready", f"{self.name}: {line!r}: {self._errors.read_text()}"

    def begin(self, phases: Phases) -> None:
        """State the times; the process begins."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{phases.attack} {phases.end}\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """Raise if the process failed."""
        code = self._process.poll()
        assert not code, f"{self.name} ended with {code}: {self._errors.read_text()}"

    def report(self) -> dict[str, Any]:
        """Wait for the end of the process; return its report."""
        text, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        assert self._process.returncode == 0, f"{self.name}: {self._errors.read_text()}"
        report: dict[str, Any] = json.loads(text)
        return report

    def kill(self) -> None:
        """Leave no process behind."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
