"""What `lakebed doctor` checks of a log in a store: its lease and its fences."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lakebed.cli.health import OK, PROBLEM, WARNING, Check
from lakebed.engine.owner_status import OwnerControl, OwnerStatus
from lakebed.engine.settings import effective_config
from lakebed.errors import LakebedError
from lakebed.host import OsDisk


def store_checks(folder: Path) -> Iterator[Check]:
    """Check lease and fences, if the settings in the folder name a store for the WAL."""
    config = effective_config(OsDisk(), folder, os.environ)
    if not config.ships:
        return
    try:
        status = OwnerControl(config).status()
    except LakebedError as error:
        yield Check("store", WARNING, str(error), error.advice)
        return
    yield _lease(status)
    yield _fences(status)


def _lease(status: OwnerStatus) -> Check:
    if status.owner is None:
        advice = "nothing, if the log was never served; else the next owner replaces the lease"
        return Check("lease", WARNING, "absent, or changed by hand", advice)
    finding = f"{status.state} by {status.owner}, term {status.term}"
    if status.state == "serving" and not status.alive:
        advice = "start a server of the log: `lakebed serve --standby`"
        return Check("lease", WARNING, f"{finding}, not renewed", advice)
    return Check("lease", OK, finding)


def _fences(status: OwnerStatus) -> Check:
    if not status.fences_missing:
        return Check("fences", OK, "each term has its fence")
    terms = ", ".join(map(str, status.fences_missing))
    advice = "remove lifecycle rules that apply to wal/ in the bucket; restore its objects"
    return Check("fences", PROBLEM, f"missing, of terms {terms}", advice)
