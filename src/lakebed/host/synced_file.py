"""A local file that is written in one go: its name means a whole file, which survives a power cut.

It is written under another name, synced, and renamed. Folders and files are for their owner alone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from lakebed.host.os_disk import OsDisk


class SyncedFile:
    """Bytes on their way into a file, which is there when this is closed. One thread.

    With `sync_folder` the file's name survives a power cut from then on as well.
    """

    def __init__(self, path: Path, *, sync_folder: bool) -> None:
        self._path = path
        self._sync_folder = sync_folder
        self._unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._disk = OsDisk()
        self._disk.make_folder(path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._unfinished, flags, 0o600), "wb")
        self.closed = False

    def write(self, data: bytes) -> int:
        """Take bytes."""
        return self._file.write(data)

    def close(self) -> None:
        """Make the file be there, for good."""
        if self.closed:
            return
        self.closed = True
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._unfinished.rename(self._path)
        if self._sync_folder:
            self._disk.sync_folder(self._path.parent)

    def _abandon(self) -> None:
        self.closed = True
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            self._unfinished.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()
