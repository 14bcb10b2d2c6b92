"""The files of Iceberg tables: on a local disk each is there whole, and synced, or not at all.

pyiceberg writes manifests and metadata without syncing them, and then tells its catalog about them.
With this `FileIO` they survive a power cut before that: each is written under another name, synced,
and renamed; the folder is synced with the table's metadata file, which is the last of a commit. Any
other file system (an object store) is left to pyiceberg as it is.

pyiceberg finds the class by its name (`py-io-impl`), and makes it itself.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

IMPLEMENTATION: Final = f"{__name__}.SyncedFileIO"
"""What `py-io-impl` must say."""

_LAST: Final = ".metadata.json"
"""Ends the name of the last file of a commit."""


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's own, but for what is written to a local disk."""

    def new_output(self, location: str) -> PyArrowFile:
        """Give a file to write."""
        made = super().new_output(location)
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return made
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, netloc))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> _SyncedStream:  # type: ignore[override]
        """Begin to write; the file is there when the stream is closed."""
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        return _SyncedStream(Path(self._path))


def _make_folder(path: Path) -> None:
    """Make a folder and its parents, for their owner alone, so that they survive a power cut."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _SyncedStream:
    """Bytes on their way into a file. One thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        _make_folder(path.parent)
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
        if self._path.name.endswith(_LAST):
            _sync_folder(self._path.parent)

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
