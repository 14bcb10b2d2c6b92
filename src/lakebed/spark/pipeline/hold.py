"""One run of a pipeline at a time: the process that runs it locks its checkpoints.

Two runs would plan the same batch of a flow differently, and each would take it for its own. The
lock is one of the operating system, which ends with its process:

    a folder            <checkpoint>/.lock
    an object store     <temporary folder>/lakebed-<user>/<digest of the URL>.lock

A lock on a folder holds for every machine that sees it, if its file system has locks. An object
store has none: a second run on one machine is refused, and a run on another machine that has not
recorded its end is warned about.
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
from lakebed.spark.pipeline.checkpoint_folder import CheckpointFolder
from lakebed.spark.pipeline.spec import PipelineSpec
from lakebed.spark.pipeline.status import LIVE, read_status

_log = logging.getLogger("lakebed.spark")

LOCK: Final = ".lock"
"""No flow has this name: names of sinks have no dots."""


@contextlib.contextmanager
def hold(spec: PipelineSpec) -> Iterator[None]:
    """Lock a pipeline's checkpoints within the block.

    Raises:
        PipelineRunningError: another process has locked them.
    """
    checkpoint = CheckpointFolder(spec.checkpoint_location)
    path = _path(checkpoint)
    disk = OsDisk()
    try:
        disk.make_folder(path.parent)
        lock = disk.lock(path, _owner(spec.name))
    except LockHeldError as error:
        raise PipelineRunningError(
            "a pipeline runs with these checkpoints already",
            checkpoint=spec.checkpoint_location,
            **_facts(error.owner),
        ) from None
    except OSError as error:
        raise from_os_error(error, "locking the checkpoints of a pipeline", path) from error
    try:
        if checkpoint.folder is None:
            _warn_of_others(spec, checkpoint)
        yield
    finally:
        lock.release()


def _path(checkpoint: CheckpointFolder) -> Path:
    if checkpoint.folder is not None:
        return checkpoint.folder / LOCK
    digest = hashlib.sha256(checkpoint.location.rstrip("/").encode()).hexdigest()
    return Path(tempfile.gettempdir()) / f"lakebed-{os.getuid()}" / f"{digest[:32]}{LOCK}"


def _owner(pipeline: str) -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"pipeline": pipeline, "pid": os.getpid(), "host": socket.gethostname()}
    return json.dumps({**owner, "since": since})


def _facts(text: str) -> dict[str, Any]:
    """Return what the holder of a lock has written into it; it may not have done so yet."""
    try:
        owner = json.loads(text)
        return {name: owner[name] for name in ("pipeline", "pid", "host", "since")}
    except (LookupError, RecursionError, TypeError, ValueError):
        return {"owner": "unknown"}


def _warn_of_others(spec: PipelineSpec, checkpoint: CheckpointFolder) -> None:
    """Warn about flows that may run on another machine, whose locks are not visible here."""
    for flow in spec.flows():
        status = read_status(checkpoint, flow.name)
        host = (status.owner or "").rpartition(":")[0]
        if status.state in LIVE and host != socket.gethostname():
            _log.warning(
                "a flow may still run on another machine, or was killed there: make sure that it"
                " does not: flow=%s owner=%s",
                flow.name,
                status.owner,
            )
