"""The connections of a Spark process to logs: one for each log and caller, made when needed."""

from __future__ import annotations

import os
import threading
from typing import Final

from lakebed.client.config import ClientConfig
from lakebed.client.log import RemoteLog
from lakebed.spark.options import Target
from lakebed.spark.serving import url_of

_open: Final[dict[tuple[int, str, ClientConfig], RemoteLog]] = {}
_guard: Final = threading.Lock()


def reachable(target: Target) -> Target:
    """Give a target whose log is a URL, which every process of the application can use."""
    return Target(url_of(target.log), target.client)


def connected(target: Target) -> RemoteLog:
    """Give this process's connection to a log.

    A folder is looked at each time: whoever serves it may be another one than before. A process
    that was forked makes its own connection.
    """
    url = url_of(target.log)
    key = (os.getpid(), url, target.client)
    with _guard:
        log = _open.get(key)
        if log is None or log._closed:
            log = _open[key] = RemoteLog(url, target.client)
        return log
