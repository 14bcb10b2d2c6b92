"""Since when files are known to be unneeded, kept in a file: grace periods outlive a process.

DIR/iceberg/unneeded.json, a JSON object of times (microseconds since 1970) by location. It is a
memory and no more: if it is lost, every grace period begins again.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from lakebed.host import Disk, Mode, read_exactly, write_all

_log = logging.getLogger("lakebed.lake")

NAME: Final = "unneeded.json"


class Unneeded:
    """Locations of unneeded files. One thread at a time."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._path = folder / NAME
        self._since: dict[str, int] | None = None
        self._saved: dict[str, int] = {}

    def places(self) -> list[str]:
        """Return the locations."""
        return list(self._known())

    def since(self, place: str, now_us: int) -> int:
        """Return since when a file is unneeded: since now, if that is news."""
        known = self._known()
        # A clock that was set back must not keep a file for ever.
        known[place] = min(known.get(place, now_us), now_us)
        return known[place]

    def forget(self, place: str) -> None:
        """Report that a file is needed after all, or gone."""
        self._known().pop(place, None)

    def keep_only(self, places: Collection[str]) -> None:
        """Forget every file but these."""
        self._since = {place: since for place, since in self._known().items() if place in places}

    def save(self) -> None:
        """Write down what is known, if it has changed."""
        known = self._known()
        if known == self._saved:
            return
        unfinished = self._path.with_name(NAME + ".tmp")
        data = json.dumps(known, indent=0).encode()
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(unfinished)
            file = self._disk.open(unfinished, Mode.CREATE)
            try:
                write_all(file, [data], 0, len(data))
            finally:
                file.close()
            self._disk.rename(unfinished, self._path)
        except OSError as error:
            _log.warning("grace periods could not be written down: %s", error)
            return
        self._saved = dict(known)

    def _known(self) -> dict[str, int]:
        if self._since is None:
            self._since = self._load()
            self._saved = dict(self._since)
        return self._since

    def _load(self) -> dict[str, int]:
        try:
            file = self._disk.open(self._path, Mode.READ)
            try:
                found = json.loads(read_exactly(file, 0, file.size()))
            finally:
                file.close()
            return {str(place): int(since) for place, since in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            _log.warning("grace periods are not known, and begin anew: %s", error)
            return {}
