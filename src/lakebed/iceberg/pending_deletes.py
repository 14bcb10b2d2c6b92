"""Files that are not needed any more, and when each may be deleted.

    DIR/iceberg/unneeded.json    a JSON object of times (microseconds since 1970) by location

The file keeps since when each is unneeded, so that grace periods outlive a process. It is a memory
and no more: if it is lost, every grace period begins again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from lakebed.errors import translate_os_errors
from lakebed.host import Disk, Mode, failpoints, read_exactly, write_all
from lakebed.host.atomic import write_atomically
from lakebed.host.store import ObjectStore, Stored
from lakebed.reports.lake import RemovalReport

_log = logging.getLogger("lakebed.lake")

NAME: Final = "unneeded.json"


class PendingDeletes:
    """Locations of unneeded files. One thread at a time."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._path = folder / NAME
        self._since: dict[str, int] | None = None
        self._saved: dict[str, int] = {}

    def locations(self) -> list[str]:
        """Return the locations."""
        return list(self._times())

    def since(self, location: str, now_us: int) -> int:
        """Return since when a file is unneeded: since now, if that was not known."""
        times = self._times()
        # A clock that was set back must not keep a file forever.
        times[location] = min(times.get(location, now_us), now_us)
        return times[location]

    def forget(self, location: str) -> None:
        """Forget a file that is needed after all, or deleted."""
        self._times().pop(location, None)

    def keep_only(self, locations: Collection[str]) -> None:
        """Forget every file but these."""
        times = self._times()
        self._since = {name: since for name, since in times.items() if name in locations}

    def save(self) -> None:
        """Write the times to the file, if they have changed."""
        times = self._times()
        if times == self._saved:
            return
        data = json.dumps(times, indent=0).encode()
        try:
            with write_atomically(self._disk, self._path) as file:
                write_all(file, [data], 0, len(data))
        except OSError as error:
            _log.warning("grace periods could not be written down: %s", error)
            return
        self._saved = dict(times)

    def _times(self) -> dict[str, int]:
        if self._since is None:
            self._since = self._load()
            self._saved = dict(self._since)
        return self._since

    def _load(self) -> dict[str, int]:
        try:
            file = self._disk.open(self._path, Mode.READ)
            try:
                times = json.loads(read_exactly(file, 0, file.size()))
            finally:
                file.close()
            return {str(name): int(since) for name, since in times.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            _log.warning("grace periods are not known, and begin again: %s", error)
            return {}


class Sweep:
    """One pass over listed files that deletes those whose grace period is over."""

    def __init__(
        self,
        *,
        pending: PendingDeletes,
        report: RemovalReport,
        deleted: failpoints.Failpoint,
        check_open: Callable[[], None],
        now_us: int,
        grace_seconds: float,
    ) -> None:
        self._pending = pending
        self._report = report
        self._deleted = deleted
        """Hit after each deletion."""
        self._check_open = check_open
        """Raises once the log is closed."""
        self._now_us = now_us
        self._grace_us = grace_seconds * 1_000_000
        self.unneeded: set[str] = set()
        """The locations of unneeded files that were seen."""

    def offer(self, store: ObjectStore, file: Stored, written_us: int) -> None:
        """Delete an unneeded file if it was written, and seen to be unneeded, long enough ago."""
        location = store.uri(file.name)
        self.unneeded.add(location)
        since_us = max(self._pending.since(location, self._now_us), min(written_us, self._now_us))
        if self._now_us - since_us < self._grace_us:
            return
        self._check_open()
        store.remove(file.name)
        self._pending.forget(location)
        self._report.files_removed += 1
        self._report.bytes_removed += file.size_bytes
        with translate_os_errors("removing a file", location):
            self._deleted.hit()

    def finish(self) -> None:
        """Forget the pending files that were not seen."""
        self._pending.keep_only(self.unneeded)
