"""How the processes of a Spark application reach a log: by a URL, no matter which process owns it.

Spark plans, reads and writes in separate processes, so a folder, which only one process can own,
has to be served. There are three cases:

- the log is served already: its folder names the URL, or the caller did;
- this process has it open: it serves the log on this machine only, until the log is closed;
- no process has it open: a sidecar process is started, which serves it until it has had no calls
  for a while.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakebed.config import ServeConfig
from lakebed.errors import InvalidArgumentError, LockedError, ServerUnavailableError
from lakebed.host import OsDisk
from lakebed.spark.keep_alive import keep_alive
from lakebed.wal.folder import Layout, living_owner

if TYPE_CHECKING:
    from lakebed.api.log import Log
    from lakebed.engine.log import EmbeddedLog
    from lakebed.serve.server import Server

LOG_VARIABLE: Final = "LAKEBED_LOG"
"""Names the log of a Spark application whose options name none."""

LOCAL: Final = ServeConfig(host="127.0.0.1", port=0, http_port=-1)
"""How a log is served to Spark on this machine."""

_OWNER_SECONDS: Final = 5.0
"""How long an owner that has just opened the log may take to publish its URL."""
_START_SECONDS: Final = 600.0
"""How long a sidecar may take to recover the log."""
_serving: dict[int, Server] = {}
_sidecars: list[subprocess.Popen[bytes]] = []
"""Those that this process has started; one that has ended stays until it is reaped."""
_guard: Final = threading.Lock()


def url_of(log: Log | str | os.PathLike[str]) -> str:
    """Return the URL of a log, serving it if no process does yet.

    Raises:
        InvalidArgumentError: there is no log, or it is of a kind that cannot be served.
        LockedError: a process that does not serve the log has it open.
        ServerUnavailableError: the log could not be opened.
    """
    from lakebed.api.log import Log
    from lakebed.client.log import RemoteLog
    from lakebed.engine.log import EmbeddedLog

    if isinstance(log, RemoteLog):
        return log.url
    if isinstance(log, EmbeddedLog):
        return _serve(log)
    if isinstance(log, Log):
        raise InvalidArgumentError("this kind of log cannot be served", got=type(log).__name__)
    target = os.fspath(log)
    return target if "://" in target else _serve_folder(Path(target))


def _serve(log: EmbeddedLog) -> str:
    """Serve a log that this process has open, if it is not served yet; return its URL."""
    from lakebed.serve.server import Server

    with _guard:
        server = _serving.get(id(log))
        if server is None or server.log is not log:
            server = Server(log, LOCAL, for_own_processes=True).start()
            _serving[id(log)] = server
            log.parts.lifecycle.before_close.append(lambda: _detach(log))
        return server.url


def _detach(log: EmbeddedLog) -> None:
    with _guard:
        server = _serving.pop(id(log), None)
    if server is not None:
        server.detach()


def _serve_folder(folder: Path) -> str:
    """Return the URL of a folder's owner; if it has none, start a sidecar."""
    if not folder.is_dir():
        raise InvalidArgumentError("there is no log in this folder", log=folder)
    begun = time.monotonic()
    sidecar: subprocess.Popen[bytes] | None = None
    while True:
        owner = living_owner(OsDisk(), Layout(folder))
        url = None if owner is None else owner.get("url")
        if isinstance(url, str) and keep_alive(url):
            _leave(sidecar)
            return url
        if owner is None and sidecar is None:
            sidecar = _start_sidecar(folder)
        elif owner is None and sidecar is not None and sidecar.poll() is not None:
            raise _start_error(folder, sidecar)
        waited = time.monotonic() - begun
        if waited > (_OWNER_SECONDS if sidecar is None else _START_SECONDS):
            raise _not_served_error(folder, owner or {})
        time.sleep(0.02)  # polls the lock: its change raises no event


def _not_served_error(folder: Path, owner: dict[str, object]) -> LockedError:
    return LockedError(
        "the log is open in a process that does not serve it: give that process's log to"
        " lakebed.spark.session(log=log), or serve the folder by `lakebed serve`",
        path=folder,
        **owner,
    )


def _leave(sidecar: subprocess.Popen[bytes] | None) -> None:
    """Detach a sidecar, so that it outlives this process."""
    for ended in [sidecar for sidecar in _sidecars if sidecar.poll() is not None]:
        _sidecars.remove(ended)
    if sidecar is not None:
        assert sidecar.stderr is not None  # noqa: S101  # it was started with a pipe
        sidecar.stderr.close()
        _sidecars.append(sidecar)


@atexit.register
def _forget_sidecars() -> None:
    """Keep `Popen` from reporting sidecars that outlive this process as left behind."""
    for sidecar in _sidecars:
        if sidecar.poll() is None:
            sidecar.returncode = 0


def _start_error(folder: Path, sidecar: subprocess.Popen[bytes]) -> ServerUnavailableError:
    _, said = sidecar.communicate()
    reason = said.decode(errors="replace").strip()[-500:] or f"exit code {sidecar.returncode}"
    return ServerUnavailableError("the log could not be opened", log=folder, reason=reason)


def _start_sidecar(folder: Path) -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("LAKEBED_SERVE_")
    }
    return subprocess.Popen(  # noqa: S603  # this program's own module
        [sys.executable, "-m", "lakebed.spark.sidecar", str(folder.resolve())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the application; the sidecar ends when idle
    )
