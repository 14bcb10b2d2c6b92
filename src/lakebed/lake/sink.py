"""Where the Parquet library writes a segment: a file of the disk, whose end is held back.

The end of the file names positions and checksums that are known only when all else is written. So
from `hold` on nothing reaches the file; the bytes are kept for the writer to complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakebed import limits
from lakebed.errors import from_os_error
from lakebed.host import File, write_all

if TYPE_CHECKING:
    from typing_extensions import Buffer

_GATHER_BYTES: Final = 64 * limits.KIB
"""Small pieces (page headers) are gathered, so that a write is worth its call."""

_SYNC_BYTES: Final = 1 * limits.MIB
"""Bytes that are synced at a time: concurrent syncs of the WAL wait for no more than these."""


class SegmentSink:
    """A file object for the Parquet library. One thread at a time."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file = file
        self._pieces: list[Buffer] = []
        self._gathered = 0
        self._written = 0
        self._unsynced = 0
        self._holding = False
        self._abandoned = False

    def write(self, data: Buffer) -> int:
        """Take bytes; they are in the file after `flush`, unless held back."""
        length = memoryview(data).nbytes
        if self._abandoned:
            return length
        self._pieces.append(data)
        self._gathered += length
        if self._gathered >= _GATHER_BYTES and not self._holding:
            self._write_gathered()
        return length

    def tell(self) -> int:
        """Return the position behind everything taken so far."""
        return self._written + self._gathered

    def flush(self) -> None:
        """Do nothing: the library flushes at its own times, `sync` writes what is gathered."""

    def close(self) -> None:
        """Do nothing: the file is closed by the caller that opened it."""

    def sync(self) -> None:
        """Make everything so far survive a power cut, before more of it piles up."""
        self._write_gathered()
        self._sync()

    def _sync(self) -> None:
        try:
            self._file.sync_data()
        except OSError as error:
            raise from_os_error(error, "syncing a segment", self._file.path) from error
        self._unsynced = 0

    def hold(self) -> None:
        """Keep what comes from here on out of the file."""
        self._write_gathered()
        self._holding = True

    def take_held(self) -> bytes:
        """Return what was held back."""
        return b"".join(self._pieces)

    def abandon(self) -> None:
        """Take nothing more: the library closes its files even when writing has failed."""
        self._abandoned = True
        self._pieces.clear()

    def _write_gathered(self) -> None:
        if not self._pieces:
            return
        try:
            write_all(self._file, self._pieces, self._written, self._gathered)
        except OSError as error:
            raise from_os_error(error, "writing a segment", self._file.path) from error
        self._written += self._gathered
        self._unsynced += self._gathered
        self._gathered = 0
        self._pieces.clear()
        if self._unsynced >= _SYNC_BYTES and not self._abandoned:
            self._sync()
