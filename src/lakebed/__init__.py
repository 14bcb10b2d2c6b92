"""Lakebed: a durable event log for Python and Spark teams."""

import logging
import os

from lakebed.config import LakeConfig, LogConfig, SyncMode, TopicConfig, WalConfig
from lakebed.engine.acks import Ack, Acks
from lakebed.engine.consumer import Consumer
from lakebed.engine.log import Log, Progress
from lakebed.engine.producer import Producer, Sent
from lakebed.engine.table import Table
from lakebed.engine.transaction import Transaction
from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.types import TopicPartition
from lakebed.version import __version__

__all__ = [
    "Ack",
    "Acks",
    "Consumer",
    "LakeConfig",
    "LakebedError",
    "Log",
    "LogConfig",
    "Producer",
    "Sent",
    "SyncMode",
    "Table",
    "TopicConfig",
    "TopicPartition",
    "Transaction",
    "WalConfig",
    "__version__",
    "open",
]

# A library says nothing on its own: whoever wants the log lines of "lakebed" asks for them.
logging.getLogger("lakebed").addHandler(logging.NullHandler())


def open(  # noqa: A001  # lakebed.open is what it does
    target: str | os.PathLike[str],
    config: LogConfig | None = None,
    *,
    progress: Progress | None = None,
) -> Log:
    """Open the log in a folder, making it if the folder is new or empty.

    This process owns the folder until the log is closed. `progress` is told how far recovery has
    come: what is being done, how much of it is done, and how much there is.
    """
    if isinstance(target, str) and "://" in target:
        raise InvalidArgumentError(
            "a log is opened by its folder; served logs are not built yet", target=target
        )
    return Log.open(target, config, progress=progress)
