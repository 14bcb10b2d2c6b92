"""Lakebed: a durable event log for Python and Spark teams."""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

from lakebed.client.address import check_no_address
from lakebed.client.config import ClientConfig
from lakebed.config import (
    STORE_SCHEMES,
    AckMode,
    LakeConfig,
    LogConfig,
    ServeConfig,
    SyncMode,
    TopicConfig,
    WalConfig,
)
from lakebed.errors import InvalidArgumentError, LakebedError, LockedError
from lakebed.types import Progress, TopicPartition
from lakebed.version import __version__

if TYPE_CHECKING:
    from lakebed.api.acks import Ack, Acks
    from lakebed.api.consumer import Consumer
    from lakebed.api.log import Log
    from lakebed.api.producer import Producer
    from lakebed.api.producer_batch import Sent
    from lakebed.api.table import Table
    from lakebed.api.transaction import Transaction

__all__ = [
    "Ack",
    "AckMode",
    "Acks",
    "ClientConfig",
    "Consumer",
    "LakeConfig",
    "LakebedError",
    "Log",
    "LogConfig",
    "Producer",
    "Sent",
    "ServeConfig",
    "SyncMode",
    "Table",
    "TopicConfig",
    "TopicPartition",
    "Transaction",
    "WalConfig",
    "__version__",
    "open",
]

_LATE = {
    "Ack": "lakebed.api.acks",
    "Acks": "lakebed.api.acks",
    "Consumer": "lakebed.api.consumer",
    "Log": "lakebed.api.log",
    "Producer": "lakebed.api.producer",
    "Sent": "lakebed.api.producer_batch",
    "Table": "lakebed.api.table",
    "Transaction": "lakebed.api.transaction",
}
"""Names whose modules load pyarrow: they are imported when they are first used."""

# A library is silent unless the application configures the logger "lakebed".
logging.getLogger("lakebed").addHandler(logging.NullHandler())


def open(  # noqa: A001  # lakebed.open is what it does
    target: str | os.PathLike[str],
    config: LogConfig | ClientConfig | None = None,
    *,
    progress: Progress | None = None,
    folder: str | os.PathLike[str] | None = None,
    replica: bool = False,
) -> Log:
    """Open the log in a folder or in an object store, creating it, or connect to a server.

    This process owns the folder until the log is closed. If another process serves the folder, the
    result is connected to that server. A log in a store is taken over by this process; records are
    then acknowledged once they are in the store, unless the settings say otherwise.

    Args:
        target: a folder; a server, `lakebed://HOST:PORT` or `lakebed+tls://HOST:PORT`; or a store,
            `s3://BUCKET/PREFIX`, `gs://…`, `abfs://…` or `file:///FOLDER`.
        config: settings of the log, or of the client; default: the file or the environment.
        progress: called with the progress of recovery.
        folder: local copy of a log in a store; default: in the user's cache.
        replica: follow a log in a store and read it, without owning it; `folder` is then for copies
            of what was read, temporary by default.

    Raises:
        LockedError: another process owns the folder, and does not serve it.
        ServerUnavailableError: no server answers at the URL.
    """
    if isinstance(target, str) and target.partition("://")[0] in STORE_SCHEMES:
        return _in_store(target, config, folder, progress, replica=replica)
    for name, is_set in (("folder", folder is not None), ("replica", replica)):
        if is_set:
            raise InvalidArgumentError(
                f"`{name}` is for a log in a store", target=os.fspath(target)
            )
    if isinstance(target, str) and "://" in target:
        return _connect(target, config)
    if isinstance(config, ClientConfig):
        raise InvalidArgumentError("config must be a LogConfig for a folder", got="ClientConfig")
    if isinstance(target, str):
        check_no_address(target)
    from lakebed.engine.log import EmbeddedLog  # a client does not need the engine

    try:
        return EmbeddedLog.open(target, config, progress=progress)
    except LockedError as locked:
        url = locked.facts.get("url")
        if not isinstance(url, str):
            raise
        return _connect(url, None)


def _in_store(
    url: str,
    config: object,
    folder: str | os.PathLike[str] | None,
    progress: Progress | None,
    *,
    replica: bool,
) -> Log:
    if config is not None and not isinstance(config, LogConfig):
        raise InvalidArgumentError(
            "a log in a store is opened with a LogConfig", got=type(config).__name__
        )
    from lakebed.engine.by_url import open_by_url, open_replica  # a client needs no engine

    if replica:
        return open_replica(url, config, folder=folder)
    return open_by_url(url, config, folder=folder, progress=progress)


def _connect(url: str, config: object) -> Log:
    from lakebed.client.log import RemoteLog  # not needed by those who embed the log

    return RemoteLog(url, config)


def __getattr__(name: str) -> Any:
    if name == "spark":  # not needed by those who run no Spark
        return importlib.import_module("lakebed.spark")
    if name in _LATE:
        value = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
        return value
    raise AttributeError(f"module 'lakebed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
