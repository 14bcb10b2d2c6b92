"""Opening a log by the URL of its store: on any machine, in a folder that may be empty."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Final

from lakebed.config import AckMode, LogConfig
from lakebed.engine.assembly import assemble_replica
from lakebed.engine.log import EmbeddedLog
from lakebed.engine.ownership import default_folder
from lakebed.engine.settings import effective_config
from lakebed.errors import InvalidArgumentError
from lakebed.host import Clock, OsDisk, SystemClock
from lakebed.types import Progress

_TEMPORARY: Final = "lakebed-replica-"


def open_by_url(
    url: str,
    config: LogConfig | None,
    *,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> EmbeddedLog:
    """Open the log in a store; `folder` is where this machine keeps its copy of it.

    Unless the settings say how entries are shipped, acknowledgements rest on the store.
    """
    local = default_folder(url.rstrip("/")) if folder is None else Path(folder)
    if config is None:
        config = effective_config(OsDisk(), local, os.environ)
    return EmbeddedLog.open(local, with_store(config, url), progress=progress)


def open_replica(
    url: str,
    config: LogConfig | None,
    *,
    folder: str | os.PathLike[str] | None = None,
    clock: Clock | None = None,
) -> EmbeddedLog:
    """Follow the log in a store and read it; `folder` is for copies of segments.

    Without a folder, a temporary one is used, and removed when the log is closed.
    """
    local = Path(tempfile.mkdtemp(prefix=_TEMPORARY) if folder is None else folder)
    try:
        if config is None:
            config = effective_config(OsDisk(), local, os.environ)
        parts = assemble_replica(local, with_store(config, url), clock=clock or SystemClock())
    except BaseException:
        if folder is None:
            shutil.rmtree(local, ignore_errors=True)
        raise
    log = EmbeddedLog(parts)
    if folder is None:
        remove = weakref.finalize(log, shutil.rmtree, local, ignore_errors=True)
        parts.lifecycle.after_close.append(remove)
    return log


def with_store(config: LogConfig, url: str) -> LogConfig:
    """Return the settings of a log that is in the store at `url`."""
    url = url.rstrip("/")
    if config.lake.store and config.lake.store.rstrip("/") != url:
        raise InvalidArgumentError(
            "the settings name another store than the URL", store=config.lake.store, url=url
        )
    wal = config.wal if config.ships else replace(config.wal, acks=AckMode.STORE)
    return replace(config, wal=wal, lake=replace(config.lake, store=url))
