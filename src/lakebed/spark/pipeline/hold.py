"""One run of a pipeline at a time: whoever runs it holds the place of its checkpoints.

Two runs would plan the same batch of a flow differently, and both would take it for their own. The
hold is a lock of the operating system, which is gone with its process, however that ends:

    a folder            <checkpoint>/.lock
    an object store     <temporary folder>/lakebed-<user>/<digest of the URL>.lock

A lock on a folder holds for every machine that sees it, if its file system has locks. An object
store has none: two runs on one machine are refused, of a run on another machine there is a warning
if it has not said that it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lakebed.errors import PipelineRunningError, from_os_error
from lakebed.host import OsDisk
from lakebed.host.disk import LockHeldError
from lakebed.spark.pipeline.place import CheckpointFolder
from lakebed.spark.pipeline.spec import PipelineSpec
from lakebed.spark.pipeline.status import LIVE, stored

_log = logging.getLogger("lakebed.spark")

LOCK: Final = ".lock"
"""No flow is called so: the names of sinks have no dots."""


@contextlib.contextmanager
def held(spec: PipelineSpec) -> Iterator[None]:
    """Hold a pipeline's checkpoints within the block; `PipelineRunningError` if somebody does."""
    place = CheckpointFolder(spec.place)
    path = _path(place)
    disk = OsDisk()
    try:
        disk.make_folder(path.parent)
        lock = disk.lock(path, _owner(spec.name))
    except LockHeldError as error:
        raise PipelineRunningError(
            "a pipeline runs with these checkpoints already",
            checkpoint=spec.place,
            **_facts(error.owner),
        ) from None
    except OSError as error:
        raise from_os_error(error, "locking the checkpoints of a pipeline", path) from error
    try:
        if place.folder is None:
            _warn_of_others(spec, place)
        yield
    finally:
        lock.release()


def _path(place: CheckpointFolder) -> Path:
    if place.folder is not None:
        return place.folder / LOCK
    digest = hashlib.sha256(place.location.rstrip("/").encode()).hexdigest()
    return Path(tempfile.gettempdir()) / f"lakebed-{os.getuid()}" / f"{digest[:32]}{LOCK}"


def _owner(pipeline: str) -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"pipeline": pipeline, "pid": os.getpid(), "host": socket.gethostname()}
    return json.dumps({**owner, "since": since})


def _facts(text: str) -> dict[str, Any]:
    """Return what whoever holds the lock says of itself; it may be just about to say it."""
    try:
        owner = json.loads(text)
        return {name: owner[name] for name in ("pipeline", "pid", "host", "since")}
    except (LookupError, RecursionError, TypeError, ValueError):
        return {"owner": "unknown"}


def _warn_of_others(spec: PipelineSpec, place: CheckpointFolder) -> None:
    """Return which flows may run on another machine, whose locks are not seen from here."""
    for flow in spec.flows():
        status = stored(place, flow.name)
        host = (status.owner or "").rpartition(":")[0]
        if status.state in LIVE and host != socket.gethostname():
            _log.warning(
                "a flow may still run on another machine, or was killed there: make sure that it"
                " does not: flow=%s owner=%s",
                flow.name,
                status.owner,
            )
