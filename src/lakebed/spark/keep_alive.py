"""Keeps sidecars alive: a process that uses one calls it at intervals, for as long as it runs.

A sidecar ends after a while without calls. An application that has found one may need longer than
that until its first call: Spark starts slowly, and tasks wait for one another.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from lakebed.client.config import ClientConfig
from lakebed.client.connection import Connection
from lakebed.errors import LakebedError, ServerUnavailableError

_PAUSE_SECONDS: Final = 5.0

_guard: Final = threading.Lock()
_held: Final[dict[int, set[str]]] = {}
"""The URLs that each process keeps alive; a forked process inherits none of its parent."""


def keep_alive(url: str) -> bool:
    """Call the server of a URL at intervals from now on; return whether it answers."""
    with _guard:
        if url in _held.get(os.getpid(), ()):
            return True
    if not _answers(url):
        return False
    with _guard:
        mine = _held.get(os.getpid())
        if mine is None:
            mine = _held[os.getpid()] = set()
        begin = not mine
        mine.add(url)
    if begin:
        threading.Thread(target=_call, args=(mine,), name="lakebed-keep-alive", daemon=True).start()
    return True


def _call(urls: set[str]) -> None:
    pause = threading.Event()
    while True:
        pause.wait(_PAUSE_SECONDS)
        gone = {url for url in list(urls) if not _answers(url)}
        with _guard:
            urls -= gone
            if not urls:
                return


def _answers(url: str) -> bool:
    """Return whether a server answers, even with an error."""
    connection = Connection(url, ClientConfig(retry_ms=0))
    try:
        connection.hello()
    except ServerUnavailableError:
        return False
    except LakebedError:
        return True
    finally:
        connection.close()
    return True
