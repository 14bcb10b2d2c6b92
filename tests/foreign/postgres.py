"""A PostgreSQL server of one's own: made in a folder, started, stopped and killed at will.

The server refuses to run as root, so root runs it as a user without rights, whose the data is.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PACKAGED: Final = "/usr/lib/postgresql/*/bin"
_USERS: Final = ("postgres", "nobody")
_START_SECONDS: Final = 300
_DATABASE: Final = "postgres"
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "max_connections": "20",
    "fsync": "off",
    "autovacuum": "off",
}


class PostgresUnavailableError(Exception):
    """There is no PostgreSQL server on this machine, or it cannot be started."""


class PostgresServer:
    """A server with its data in a folder of its own. One thread may use it."""

    def __init__(self, folder: Path) -> None:
        self._programs = _programs()
        self._uid, self._gid = _identity()
        self._folder = folder
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self._initialise()

    @property
    def uri(self) -> str:
        """Where SQLAlchemy finds the database."""
        return f"postgresql+psycopg2://lakebed@127.0.0.1:{self.port}/{_DATABASE}"

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process that all others of the server descend from."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        assert not self.running, "the server runs already"
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        command = [self._program("postgres"), "-D", str(self._data), f"--port={self.port}"]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *settings],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                user=self._uid,
                group=self._gid,
            )
        self._await_start()

    def stop(self) -> None:
        """Stop the server in good order, with whatever connections it has."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server and every process of it, as a crash would. Its data survives."""
        with contextlib.ExitStack() as handles:
            children = self._handles(handles) if self.running else []
            self._end(signal.SIGKILL)
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child, signal.SIGKILL)
            for child in children:
                select.select([child], [], [], _START_SECONDS)  # readable once it has ended

    def children(self) -> list[int]:
        """Return the processes that the first one started."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(child) for child in listed.read_text().split()]

    def _handles(self, stack: contextlib.ExitStack) -> list[int]:
        """Open a handle on each process of the server, which no other process can take over."""
        found = []
        for child in self.children():
            with contextlib.suppress(ProcessLookupError):
                found.append(os.pidfd_open(child))
                stack.callback(os.close, found[-1])
        return found

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(how)
        self._process.wait(_START_SECONDS)
        self._process = None

    def _initialise(self) -> None:
        if self._uid is not None:
            os.chown(self._folder, self._uid, -1)
        command = [self._program("initdb"), "-D", str(self._data), "-U", "lakebed"]
        command += ["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        made = subprocess.run(
            command,
            cwd=self._folder,
            capture_output=True,
            check=False,
            user=self._uid,
            group=self._gid,
        )
        if made.returncode != 0:
            raise PostgresUnavailableError(made.stderr.decode(errors="replace"))

    def _await_start(self) -> None:
        """Ask the server until it answers: `pg_isready` alone tells starting from started."""
        command = [self._program("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-t", "5"]
        for _ in range(_START_SECONDS * 20):
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0:
                return
            if not self.running:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process is not None
                self._process.wait(0.05)
        self.kill()
        raise PostgresUnavailableError((self._folder / "server.log").read_text())

    def _program(self, name: str) -> str:
        return str(self._programs / name)


@contextlib.contextmanager
def postgres() -> Iterator[PostgresServer]:
    """Run a server in a temporary folder; `PostgresUnavailableError` says why there is none.

    The folder is made where every user may go: a folder of pytest's is its user's alone.
    """
    with tempfile.TemporaryDirectory(prefix="lakebed-postgres-") as folder:
        server = PostgresServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _programs() -> Path:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    packaged = sorted(Path("/").glob(_PACKAGED.lstrip("/")), key=_version)
    for folder in reversed(packaged):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresUnavailableError("no PostgreSQL server is installed: initdb was not found")


def _version(folder: Path) -> int:
    return int(folder.parent.name) if folder.parent.name.isdigit() else 0


def _identity() -> tuple[int | None, int | None]:
    """Return whom to run the server as, user and group: nobody else unless this is root."""
    if os.geteuid() != 0:
        return None, None
    for name in _USERS:
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return found.pw_uid, found.pw_gid
    raise PostgresUnavailableError("PostgreSQL does not run as root, and there is no other user")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
