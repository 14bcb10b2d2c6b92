"""A server in a process of its own, which a test can kill, stop, pause and start again."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lakebed
from lakebed.client.config import ClientConfig
from lakebed.config import CONFIG_NAME
from lakebed.host.failpoints import VARIABLE
from tests import forked
from tests.waiting import PATIENCE_SECONDS

_ROOT = Path(__file__).parents[2]


class ServerProcess:
    """`lakebed serve` on a folder; after `start` it has a port, which later starts have too."""

    def __init__(
        self,
        folder: Path,
        *settings: str,
        toml: str = "",
        http_port: int = -1,
        kafka_port: int = -1,
    ) -> None:
        self.folder = folder
        self.port = 0
        self.http_port = http_port
        self.kafka_port = kafka_port
        self.errors = folder.with_suffix(".stderr")
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        if toml:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CONFIG_NAME).write_text(toml)

    # Where it is

    @property
    def url(self) -> str:
        """What clients open."""
        return f"lakebed://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def said(self) -> str:
        """What the server has logged."""
        return self.errors.read_text(errors="replace") if self.errors.exists() else ""

    @property
    def resident_bytes(self) -> int:
        """How much memory the process has."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open(self, *, token: str | None = None, retry_ms: int = 60_000) -> lakebed.Log:
        """Open the log as a client."""
        return lakebed.open(self.url, ClientConfig(token=token, retry_ms=retry_ms))

    # Life

    def start(self, failpoints: str = "") -> ServerProcess:
        """Start it and wait until it serves; have failpoints act in it (see `host.failpoints`)."""
        options = [f"--set={each}" for each in self._settings]
        with self.errors.open("ab") as errors:
            self._process = forked.Popen(
                [
                    *(sys.executable, "-m", "lakebed.cli", "serve", "--data", str(self.folder)),
                    *("--port", str(self.port), "--http-port", str(self.http_port)),
                    *("--kafka-port", str(self.kafka_port), *options),
                ],
                cwd=_ROOT,
                env={**os.environ, VARIABLE: failpoints} if failpoints else None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        line = self._first_line()
        assert line.startswith(f"serving {self.folder} at lakebed"), f"{line!r}: {self.said}"
        ports = [int(place.rpartition(":")[2]) for place in line.split(", and ")]
        self.port, self.http_port = ports[0], ports[1] if len(ports) > 1 else -1
        if self.kafka_port >= 0:
            assert self._process.stdout is not None
            following = self._process.stdout.readline().decode()  # comes with the first line
            self.kafka_port = int(following.rpartition(":")[2])
        return self

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_SECONDS)
        assert ready, f"the server does not start: {self.said}"
        return self._process.stdout.readline().decode().strip()

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, which leaves it no time for anything."""
        self.send(signal.SIGKILL)
        self._wait()

    def died(self) -> None:
        """Wait until it is killed by what it was started with."""
        assert self._wait() == -signal.SIGKILL, self.said

    def stop(self) -> int:
        """Stop it in good order; return its exit code."""
        self.send(signal.SIGTERM)
        return self._wait()

    def _wait(self) -> int:
        assert self._process is not None
        code = self._process.wait(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGCONT)
            self.kill()


@contextlib.contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a script in a process of its own, which is killed at the end if it still runs."""
    process = forked.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def line_of(process: subprocess.Popen[str]) -> str:
    """Wait for the next line that a process prints."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECONDS)
    assert ready, "the process says nothing"
    return process.stdout.readline().strip()


def raw_socket(server: ServerProcess) -> socket.socket:
    """Connect to the server's port without a word."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS)


def check_serves(server: ServerProcess, *, token: str | None = None) -> None:
    """See that a client that behaves is served: it writes, and reads what it wrote."""
    with server.open(token=token) as log:
        log.get_or_create_topic("good")
        ack = log.append("good", b"well-behaved")
        table = log.read("good", ack.partition, ack.offset)
        assert table.column("value").to_pylist()[0] == b"well-behaved"
