"""A store in a folder: a network drive, or another disk.

An object is written under a temporary name, synced, renamed, and its folder synced, so that a name
always means a whole object that survives a power cut. Folders and files get the modes that the
process's umask gives: what is put here is meant for other readers as well. The folder itself is
never made, like a bucket: if it is missing, the drive may not be mounted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lakebed.errors import StoreNotFoundError
from lakebed.host.disk import fill, write_all
from lakebed.host.os_disk import OsDisk, OsFile
from lakebed.host.store_failures import translate_folder_errors
from lakebed.host.store_values import CHUNK_BYTES, Stored

_UNFINISHED: Final = ".tmp"


class FolderObjects:
    """The objects in a folder. Any thread, but one writes an object at a time."""

    def __init__(self, location: str, root: Path) -> None:
        self._location = location
        self._root = root
        self._disk = OsDisk()

    def write(self, name: str, data: memoryview) -> None:
        """Write an object, whole or not at all, so that it survives a power cut."""
        path = self._root / name
        unfinished = path.with_name(path.name + _UNFINISHED)
        with self._failures("uploading", name):
            self._check_root()
            self._make(path.parent)
            _write_synced(unfinished, data)
            self._disk.rename(unfinished, path)
            # Without it the new name could be gone after a power cut.
            self._disk.sync_folder(path.parent)

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Read an object piece by piece."""
        path = self._root / name
        with self._failures("downloading", name):
            self._check_root()
            file = _open(path, os.O_RDONLY)
            size = file.size()
        with contextlib.closing(file):
            for position in range(0, size, CHUNK_BYTES):
                with self._failures("downloading", name):
                    chunk = memoryview(bytearray(min(CHUNK_BYTES, size - position)))
                    if fill(file, chunk, position) != len(chunk):
                        raise OSError("the object ended early")
                yield chunk

    def read(self, name: str, start: int, stop: int) -> memoryview:
        """Read a part of an object."""
        with self._failures("reading", name):
            self._check_root()
            with contextlib.closing(_open(self._root / name, os.O_RDONLY)) as file:
                data = memoryview(bytearray(stop - start))
                return data[: fill(file, data, start)]

    def size(self, name: str) -> int | None:
        """Return an object's length, or None if there is none."""
        with self._failures("looking up", name):
            self._check_root()
            try:
                status = (self._root / name).stat()
            except FileNotFoundError:
                return None
            return status.st_size if stat.S_ISREG(status.st_mode) else None

    def listing(self, folder: str) -> list[Stored]:
        """List the objects below a folder; those being written are none."""
        with self._failures("listing", folder):
            self._check_root()
            return sorted(self._below(folder))

    def list_unfinished(self, folder: str) -> list[Stored]:
        """List what is being written below a folder, or was left unfinished by a crash."""
        with self._failures("listing", folder):
            self._check_root()
            return sorted(self._below(folder, unfinished=True))

    def remove(self, name: str) -> bool:
        """Remove an object and what an interrupted upload left of it; say whether it was there."""
        path = self._root / name
        with self._failures("removing", name):
            self._check_root()
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(path.with_name(path.name + _UNFINISHED))
            try:
                self._disk.remove(path)
            except FileNotFoundError:
                return False
            # A removed object must not come back after a power cut.
            self._disk.sync_folder(path.parent)
            return True

    def _below(self, folder: str, *, unfinished: bool = False) -> Iterator[Stored]:
        for entry in self._disk.names(self._root / folder):
            name = f"{folder}/{entry}" if folder else entry
            try:
                status = (self._root / name).stat()
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                yield from self._below(name, unfinished=unfinished)
            elif stat.S_ISREG(status.st_mode) and entry.endswith(_UNFINISHED) is unfinished:
                yield Stored(name, status.st_size, status.st_mtime_ns // 1000)

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        self._disk.sync_folder(folder.parent)

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise StoreNotFoundError("the folder does not exist", uri=self._location)

    def _failures(self, doing: str, name: str) -> contextlib.AbstractContextManager[None]:
        return translate_folder_errors(doing, f"{self._location.rstrip('/')}/{name}")


def _open(path: Path, flags: int) -> OsFile:
    return OsFile(path, os.open(path, flags | os.O_CLOEXEC, 0o666))


def _write_synced(path: Path, data: memoryview) -> None:
    with contextlib.closing(_open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)) as file:
        if len(data):
            write_all(file, [data], 0, len(data))
        # Before it gets its name, so that the name never means less than the whole.
        file.sync()
