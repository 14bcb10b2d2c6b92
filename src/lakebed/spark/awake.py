"""Keeps keepers awake: a process that uses one calls it now and then, as long as it lives.

A keeper ends when nobody has called for a while. An application that has found one may take longer
than that until its first call: Spark starts slowly, tasks wait for others.
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
"""The URLs that each process keeps awake; one that was forked has nothing of its parent's."""


def hold(url: str) -> bool:
    """Keep whoever serves a URL awake from now on; return whether it answers."""
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
        threading.Thread(target=_call, args=(mine,), name="lakebed-awake", daemon=True).start()
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
    """Return whether a server answers, be it with a refusal."""
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
