"""How the processes of a Spark application reach a log: by a URL, whoever owns it.

Spark plans, reads and writes in processes of its own, so a folder that one process owns has to be
served. There are three cases:

- the log is served already: its folder names the URL, or the URL was given;
- this process has it open: it is served from here, on this machine alone, until it is closed;
- nobody has it open: a keeper is started, a process that serves it until nobody who uses it has
  been alive for a while.
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
from lakebed.spark.awake import hold
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
"""How long an owner that has just opened the log may take to say where it serves it."""
_START_SECONDS: Final = 600.0
"""How long a keeper may take to recover the log."""
_serving: dict[int, Server] = {}
_keepers: list[subprocess.Popen[bytes]] = []
"""Those that this process has started: a process that has ended is there until it is waited for."""
_guard: Final = threading.Lock()


def url_of(log: Log | str | os.PathLike[str]) -> str:
    """Return the URL under which a log is served, serving it if nobody does."""
    from lakebed.api.log import Log
    from lakebed.client.log import RemoteLog
    from lakebed.engine.log import EmbeddedLog

    if isinstance(log, RemoteLog):
        return log.url
    if isinstance(log, EmbeddedLog):
        return _served(log)
    if isinstance(log, Log):
        raise InvalidArgumentError("this kind of log cannot be served", got=type(log).__name__)
    target = os.fspath(log)
    return target if "://" in target else _kept(Path(target))


def _served(log: EmbeddedLog) -> str:
    """Serve a log that this process has open, once."""
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


def _kept(folder: Path) -> str:
    """Return the URL of a folder's owner; if it has none, start a keeper."""
    if not folder.is_dir():
        raise InvalidArgumentError("there is no log in this folder", log=folder)
    begun = time.monotonic()
    keeper: subprocess.Popen[bytes] | None = None
    while True:
        owner = living_owner(OsDisk(), Layout(folder))
        url = None if owner is None else owner.get("url")
        if isinstance(url, str) and hold(url):
            _leave(keeper)
            return url
        if owner is None and keeper is None:
            keeper = _start_keeper(folder)
        elif owner is None and keeper is not None and keeper.poll() is not None:
            raise _not_kept(folder, keeper)
        waited = time.monotonic() - begun
        if waited > (_OWNER_SECONDS if keeper is None else _START_SECONDS):
            raise _not_served(folder, owner or {})
        time.sleep(0.02)  # the lock is what is awaited; nothing tells of its change


def _not_served(folder: Path, owner: dict[str, object]) -> LockedError:
    return LockedError(
        "the log is open in a process that does not serve it: give that process's log to"
        " lakebed.spark.session(log=log), or serve the folder by `lakebed serve`",
        path=folder,
        **owner,
    )


def _leave(keeper: subprocess.Popen[bytes] | None) -> None:
    """Detach a keeper, so that it outlives this process."""
    for ended in [each for each in _keepers if each.poll() is not None]:
        _keepers.remove(ended)
    if keeper is not None:
        assert keeper.stderr is not None  # noqa: S101  # it was started with a pipe
        keeper.stderr.close()
        _keepers.append(keeper)


@atexit.register
def _forget_keepers() -> None:
    """Keep `Popen` from reporting keepers that outlive this process as left behind."""
    for keeper in _keepers:
        if keeper.poll() is None:
            keeper.returncode = 0


def _not_kept(folder: Path, keeper: subprocess.Popen[bytes]) -> ServerUnavailableError:
    _, said = keeper.communicate()
    reason = said.decode(errors="replace").strip()[-500:] or f"exit code {keeper.returncode}"
    return ServerUnavailableError("the log could not be opened", log=folder, reason=reason)


def _start_keeper(folder: Path) -> subprocess.Popen[bytes]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("LAKEBED_SERVE_")
    }
    return subprocess.Popen(  # noqa: S603  # this program's own module
        [sys.executable, "-m", "lakebed.spark.keeper", str(folder.resolve())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the application; the keeper ends by itself
    )
