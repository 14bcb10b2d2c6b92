"""Connections of a Spark process to logs: one for each log and caller, opened on first use."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from lakebed.client.config import ClientConfig
from lakebed.client.log import RemoteLog
from lakebed.errors import LockedError, ServerUnavailableError
from lakebed.host.retry import retry
from lakebed.spark.options import Target
from lakebed.spark.serving import url_of

_open: Final[dict[tuple[int, str, ClientConfig], RemoteLog]] = {}
_guard: Final = threading.Lock()

_CONNECT_SECONDS: Final = 5.0
"""How long one attempt to reach a server takes at most."""


def reachable(target: Target) -> Target:
    """Return a target whose log is a URL, which every process of the application can use."""
    url = url_of(target.log)
    return Target(url, target.client, target.folder if url == target.log else target.log)


def connect(target: Target, *, patient: bool = False) -> RemoteLog:
    """Return this process's connection to a log.

    A folder is looked up each time, since another process may serve it by now. A forked process
    opens its own connection. With `patient`, a server that is being restarted is waited for as long
    as a call on an open connection would be retried: for callers that have reached the log before.

    Raises:
        ServerUnavailableError: no server answers.
        LockedError: a process that does not serve the log has it open.
    """
    return retry(
        lambda: _open_connection(_url(target), target.client),
        # Locked is also one that is being opened, by a server that does not serve it yet.
        (ServerUnavailableError, LockedError),
        attempts_max=None if patient else 1,
        seconds_max=target.client.retry_ms / 1000,
    )


def _url(target: Target) -> str:
    if target.folder is not None and Path(target.folder).is_dir():
        return url_of(target.folder)
    return url_of(target.log)


def _open_connection(url: str, client: ClientConfig) -> RemoteLog:
    key = (os.getpid(), url, client)
    with _guard:
        log = _open.get(key)
        if log is None or log._closed:
            # Others wait for the guard, and the next attempt may be at another address.
            seconds = min(client.retry_ms / 1000, _CONNECT_SECONDS)
            log = _open[key] = RemoteLog(url, client, connect_seconds=seconds)
        return log
