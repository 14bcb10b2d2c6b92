"""Freeing files whose every entry has been released.

Oldest first. A file that nothing maps becomes a spare if one is wanted; otherwise its name is
removed. A failure is counted, logged and tried again at the next release; a file that is gone
already counts as freed. The folder is synced at the end, not for safety (a file that comes back
after a power cut is recognised as released) but so that the space is really free.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from lakebed.host import Disk, failpoints
from lakebed.reports.wal import Counters
from lakebed.wal.folder import Layout
from lakebed.wal.reader import Maps
from lakebed.wal.spares import Spares

_log = logging.getLogger("lakebed.wal")

_BEFORE = failpoints.define("wal.reclaim.before")
_REMOVED = failpoints.define("wal.reclaim.removed")
_SYNCED = failpoints.define("wal.reclaim.synced")


@dataclass(frozen=True)
class Sealed:
    """A file that is no longer written: it ended when the log's last index was `last_index`."""

    number: int
    size_bytes: int
    last_index: int


class Reclaimer:
    """Keeps the sealed files and frees them. Any thread."""

    def __init__(
        self,
        *,
        disk: Disk,
        layout: Layout,
        spares: Spares,
        maps: Maps,
        counters: Counters,
        sealed: list[Sealed],
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._spares = spares
        self._maps = maps
        self._counters = counters
        self._sealed = sealed
        self._guard = threading.Lock()

    def add_sealed(self, file_number: int, size_bytes: int, last_index: int) -> None:
        """Take note of a file that the writer has left.

        A second note of the same file changes nothing.
        """
        with self._guard:
            if not self._sealed or self._sealed[-1].number < file_number:
                self._sealed.append(Sealed(file_number, size_bytes, last_index))

    def totals(self) -> tuple[int, int]:
        """Return count and bytes of the sealed files."""
        with self._guard:
            return len(self._sealed), sum(file.size_bytes for file in self._sealed)

    def free(self, released: int) -> int | None:
        """Free what is wholly at or below `released`.

        Return the number of the file after the last one freed, if any was.
        """
        last_freed = 0
        with self._guard:
            while self._sealed and self._sealed[0].last_index <= released:
                if not self._free_one(self._sealed[0]):
                    break
                last_freed = self._sealed.pop(0).number
            if not last_freed:
                return None
            self._sync_folder()
            return last_freed + 1

    def _free_one(self, file: Sealed) -> bool:
        path = self._layout.file(file.number)
        try:
            _BEFORE.hit()
            unmapped = self._maps.forget(file.number)
            if unmapped and self._spares.fits(file.size_bytes) and self._spares.give(path):
                self._counters.recycled_files += 1
            else:
                self._disk.remove(path)
            _REMOVED.hit()
        except FileNotFoundError:
            _log.warning("a released WAL file was gone already: file=%s", path)
        except OSError as error:
            self._counters.reclaim_failures += 1
            _log.warning(
                "a released WAL file could not be freed yet: file=%s error=%s", path, error
            )
            return False
        self._counters.reclaimed_files += 1
        return True

    def _sync_folder(self) -> None:
        try:
            self._disk.sync_folder(self._layout.wal)
            _SYNCED.hit()
        except OSError as error:
            self._counters.reclaim_failures += 1
            _log.warning("the WAL folder could not be synced after freeing files: %s", error)
