"""Files kept ready ahead of the writer.

A file whose blocks have been written before is synced in about half the time of one that grows,
because the file system has no metadata to write. So a thread fills files with zeros ahead of the
writer, and released files are recycled as they are. If the writer is faster than both, it takes a
file with space merely reserved, and nothing waits.

Order of syncs. Filled: write, sync, rename to `.spare`. Recycled: rename to `.spare`, *sync the
folder*, and only then offer it: otherwise the next use could overwrite a file that a power cut
gives its old name back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lakebed import limits
from lakebed.host import Disk, File, Mode, failpoints, write_all
from lakebed.reports.wal import Counters
from lakebed.wal.folder import Layout
from lakebed.wal.frame import CAPACITY_UNIT

_log = logging.getLogger("lakebed.wal")

_FILLED = failpoints.define("wal.spare.filled")
_RENAMED = failpoints.define("wal.spare.renamed")
_RECYCLED = failpoints.define("wal.spare.recycled")

_ZEROS: Final = bytes(limits.MIB)

_FIRST_FILE_BYTES: Final = 4 * limits.MIB
"""Filling this takes some milliseconds, and a log that stays small takes no more space."""


class Spares:
    """The pool of ready files.

    `take` is called by the committing thread, `give` by the reclaiming one.
    """

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        counters: Counters,
        *,
        file_bytes: int,
        count: int,
        threaded: bool,
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._counters = counters
        self._file_bytes = file_bytes
        self._count = count
        self._threaded = threaded
        self._ready: list[Path] = []
        self._guard = threading.Condition()
        self._next_name = 0
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._closing = False
        self.failure: OSError | None = None
        """Why the last file that was wanted could not be made or opened; None if it could."""

    def adopt(self) -> None:
        """Take over what an earlier owner left.

        Whole spares are used again, half-made files removed.
        """
        for name in self._disk.names(self._layout.wal):
            path = self._layout.wal / name
            if name.endswith(".tmp") or (name.endswith(".spare") and not self._usable(path)):
                self._disk.remove(path)
            elif name.endswith(".spare"):
                self._ready.append(path)
                self._next_name = max(self._next_name, int(name.removesuffix(".spare")) + 1)

    def _usable(self, path: Path) -> bool:
        if len(self._ready) >= self._count or not path.name.removesuffix(".spare").isdecimal():
            return False
        file = self._disk.open(path, Mode.READ)
        try:
            return file.size() == self._file_bytes
        finally:
            file.close()

    def take(self, bytes_min: int) -> File:
        """Return an open file of at least `bytes_min`.

        The caller renames it. An `OSError` leaves nothing behind.
        """
        with self._note_failure():
            return self._take(bytes_min)

    def _take(self, bytes_min: int) -> File:
        with self._guard:
            fits = bytes_min <= self._file_bytes and bool(self._ready)
            path = self._ready.pop(0) if fits else None
        if path is not None:
            return self._open_spare(path)
        self._counters.spares_missed += 1
        length = -(-max(bytes_min, self._file_bytes) // CAPACITY_UNIT) * CAPACITY_UNIT
        return self._make(length, filled=False)

    @contextlib.contextmanager
    def _note_failure(self) -> Iterator[None]:
        """Remember whether a file could be had within the block."""
        try:
            yield
        except InterruptedError:
            raise
        except OSError as error:
            self.failure = error
            raise
        self.failure = None

    def look_again(self) -> OSError | None:
        """Return why no file can be had for the log; after a failure, try it. Any thread."""
        if self.failure is not None:
            with contextlib.suppress(OSError), self._note_failure():
                self._try()
        return self.failure

    def _try(self) -> None:
        """Open a spare file, or make one and remove it."""
        with self._guard:
            path = self._ready[0] if self._ready else None
        if path is not None:
            self._disk.open(path, Mode.WRITE).close()
            return
        file = self._make(self._file_bytes, filled=False)
        file.close()
        self._disk.remove(file.path)

    def _open_spare(self, path: Path) -> File:
        try:
            return self._disk.open(path, Mode.WRITE)
        except OSError:
            with self._guard:
                self._ready.insert(0, path)  # it is whole: the next attempt opens it
            raise

    def first(self) -> File:
        """Return the file a new log begins with: small, so that it is filled at once."""
        return self._make(min(self._file_bytes, _FIRST_FILE_BYTES), filled=True)

    def want(self) -> None:
        """Request a file that will be needed soon: the pool is filled in the background."""
        if not self._threaded or self._count == 0:
            return
        with self._guard:
            self._wanted = True
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(
                    target=self._run, name="lakebed-wal-spares", daemon=True
                )
                self._thread.start()
            self._guard.notify_all()

    def give(self, path: Path) -> bool:
        """Recycle a released file if the pool has room; False if the caller should remove it."""
        with self._guard:
            if len(self._ready) >= self._count or self._closing:
                return False
            spare = self._new_name()
        self._disk.rename(path, spare)
        self._disk.sync_folder(self._layout.wal)
        _RECYCLED.hit()
        with self._guard:
            self._ready.append(spare)
        return True

    def fits(self, size_bytes: int) -> bool:
        """Return whether a file of this size can be recycled."""
        return size_bytes == self._file_bytes

    def fill(self) -> None:
        """Bring the pool up to its size now, in this thread."""
        while True:
            with self._guard:
                if len(self._ready) >= self._count or self._closing:
                    return
            file = self._make(self._file_bytes, filled=True)
            spare = file.path.with_suffix("")
            file.close()
            self._disk.rename(file.path, spare)
            _RENAMED.hit()
            with self._guard:
                self._ready.append(spare)

    def close(self) -> None:
        """Stop the thread; ready files stay for the next owner."""
        with self._guard:
            self._closing = True
            self._guard.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _new_name(self) -> Path:
        self._next_name += 1
        return self._layout.spare(self._next_name)

    def _make(self, length: int, *, filled: bool) -> File:
        with self._guard:
            path = self._new_name().with_suffix(".spare.tmp")
        file = self._disk.open(path, Mode.CREATE)
        try:
            file.preallocate(length)
            if filled:
                self._fill_with_zeros(file, length)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):  # the first error is the one to report
                self._disk.remove(path)
            raise
        return file

    def _fill_with_zeros(self, file: File, length: int) -> None:
        for position in range(0, length, len(_ZEROS)):
            if self._closing:
                raise InterruptedError(4, "closing")
            piece = memoryview(_ZEROS)[: length - position]
            write_all(file, [piece], position, len(piece))
        file.sync()
        _FILLED.hit()

    def _run(self) -> None:
        while True:
            with self._guard:
                while not self._wanted and not self._closing:
                    self._guard.wait()
                if self._closing:
                    return
                self._wanted = False
            try:
                with self._note_failure():
                    self.fill()
            except InterruptedError:
                return
            except OSError as error:
                # The writer does not need spares; if the disk is full it will say so itself.
                self._counters.errors += 1
                _log.warning("a spare WAL file could not be made: %s", error)
