"""Commands of pages as forks of one process that has imported lakebed already.

A page's shell finds `lakebed` and `python` in a folder of this module. They hand their arguments,
folder, environment and the three standard streams to a server, which forks, and they end as the
fork does. Importing lakebed takes most of the time of a short command, and pages have hundreds.

Servers and whatever else runs until it is stopped are started as usual, as a signal must reach
them, and so is a command whose files may not grow.
"""

from __future__ import annotations

import atexit
import functools
import marshal
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NoReturn

_BIN: Final = Path(sys.executable).parent
_STARTED: Final = ("serve", "demo", "top", "pipeline", "job")
"""Commands of `lakebed` that are not forked."""

_COMMAND = """\
#!{python} -IS
import os, resource, sys
arguments = sys.argv[1:]
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
forked = unlimited and {forked}
if not forked:
    os.execv({real!r}, [{real!r}, *arguments])
import _socket, marshal
call = marshal.dumps(({name!r}, arguments, os.getcwd(), dict(os.environ)))
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
server.connect({address!r})
fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
server.sendmsg([len(call).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
while call:
    call = call[server.send(call) :]
sys.exit(int(server.recv(16) or b"70"))
"""
_IS_FORKED: Final = {
    "lakebed": f"bool(arguments) and not {{*arguments}} & {{*{_STARTED!r}}}",
    "python": "bool(arguments) and arguments[0].endswith('.py')",
}


@functools.cache
def fork_server() -> ForkServer:
    """Return the server of this process, which ends with it."""
    server = ForkServer()
    atexit.register(server.close)
    return server


class ForkServer:
    """Forks commands for one process of tests, until that process ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lakebed-fork-")
        self.commands = Path(self._folder.name)
        """What comes first in the path of a shell."""
        address = str(self.commands / "server")
        for name, forked in _IS_FORKED.items():
            command = self.commands / name
            real = str(_BIN / name)
            command.write_text(
                _COMMAND.format(
                    python=sys.executable, forked=forked, real=real, name=name, address=address
                )
            )
            command.chmod(0o755)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(address)
        listening.listen(16)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.documents.forking", str(listening.fileno())],
            cwd=Path(__file__).parents[2],
            pass_fds=[listening.fileno()],
            stdin=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        listening.close()

    def close(self) -> None:
        """End the server, and remove the commands."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def _serve(listening: socket.socket) -> NoReturn:
    """Fork for each command; a fork starts another one, and says how that ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(connection)
        connection.close()


def _run(connection: socket.socket) -> NoReturn:
    """Run the command of a connection in a process of its own; send its exit code."""
    size, fds, _, _ = socket.recv_fds(connection, 4, 3)
    left = int.from_bytes(size, "big")
    call = b""
    while len(call) < left:
        call += connection.recv(left - len(call))
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(fds, *marshal.loads(call))
    _, status = os.waitpid(pid, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status) & 0xFF).encode())
    os._exit(0)


def _become(
    fds: list[int], name: str, arguments: list[str], folder: str, environment: dict[str, str]
) -> NoReturn:
    """Be the command: its streams, its folder, its environment, and its end."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [entry for entry in sys.path if entry != _ROOT]
    if name == "lakebed":
        from lakebed.cli import main

        sys.argv = ["lakebed", *arguments]
        main()
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
    raise SystemExit(0)


_ROOT: Final = str(Path(__file__).parents[2])


def _import_commands() -> list[Any]:
    import importlib
    import pkgutil

    import lakebed.cli

    names = [module.name for module in pkgutil.iter_modules(lakebed.cli.__path__)]
    names = [f"lakebed.cli.{name}" for name in names if name != "__main__"]
    names += ["lakebed.engine.log", "lakebed.client.log", "lakebed.iceberg.lake"]
    names += ["pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "pyarrow.parquet"]
    return [importlib.import_module(name) for name in names]


if __name__ == "__main__":
    _import_commands()
    _serve(socket.socket(fileno=int(sys.argv[1])))
