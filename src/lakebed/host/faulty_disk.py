"""Any disk, with the nth call of a kind failing as a real one would: EIO, ENOSPC, or a short write.

`calls` counts every call by kind, so that a test first runs a script without faults, and then once
more for each call it made.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakebed.host.disk import Disk, File, Folder, Lock, Mapping, Mode

if TYPE_CHECKING:
    from typing_extensions import Buffer

KINDS = (
    "open",
    "read",
    "write",
    "map",
    "sync_data",
    "sync",
    "truncate",
    "preallocate",
    "rename",
    "remove",
    "make_folder",
    "sync_folder",
    "names",
    "lock",
)
"""The kinds of call that can fail. Closing and asking for a size are not among them."""


@dataclass(frozen=True)
class Fault:
    """Which call fails, and how.

    With an error number, or (for writes) by writing only some bytes.
    """

    kind: str
    nth: int
    errno: int = 0
    short_bytes: int | None = None
    lasting: bool = False
    """Every later call of the kind fails too."""


class FaultyDisk:
    """Counts calls by kind and makes one of them fail."""

    def __init__(self, disk: Disk, fault: Fault | None = None) -> None:
        self.calls: Counter[str] = Counter()
        self.fault = fault
        self.hit = 0
        self._disk = disk

    def check(self, kind: str) -> int | None:
        """Count a call.

        Raise if it is the one to fail, or give the bytes a short write may take.
        """
        self.calls[kind] += 1
        fault = self.fault
        if fault is None or fault.kind != kind:
            return None
        count = self.calls[kind]
        if count != fault.nth and not (fault.lasting and count > fault.nth):
            return None
        self.hit += 1
        if fault.errno:
            raise OSError(fault.errno, os.strerror(fault.errno))
        return fault.short_bytes

    def open(self, path: Path, mode: Mode) -> File:
        """Open, or fail."""
        self.check("open")
        return _FaultyFile(self, self._disk.open(path, mode))

    def open_folder(self, path: Path) -> Folder:
        """Open a folder, or fail."""
        self.check("open")
        return _FaultyFolder(self, self._disk.open_folder(path))

    def rename(self, old: Path, new: Path) -> None:
        """Rename, or fail."""
        self.check("rename")
        self._disk.rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove, or fail."""
        self.check("remove")
        self._disk.remove(path)

    def make_folder(self, path: Path) -> None:
        """Make a folder, or fail."""
        self.check("make_folder")
        self._disk.make_folder(path)

    def sync_folder(self, path: Path) -> None:
        """Sync a folder, or fail."""
        self.check("sync_folder")
        self._disk.sync_folder(path)

    def names(self, path: Path) -> list[str]:
        """List, or fail."""
        self.check("names")
        return self._disk.names(path)

    def lock(self, path: Path, owner: str, *, folder: bool = False) -> Lock:
        """Lock, or fail."""
        self.check("lock")
        return self._disk.lock(path, owner, folder=folder)

    def lock_owner(self, path: Path) -> str | None:
        """Look who holds a lock, or fail."""
        self.check("lock")
        return self._disk.lock_owner(path)


class _FaultyFolder:
    def __init__(self, disk: FaultyDisk, folder: Folder) -> None:
        self._disk = disk
        self._folder = folder

    def sync(self) -> None:
        self._disk.check("sync_folder")
        self._folder.sync()

    def close(self) -> None:
        self._folder.close()


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, file: File) -> None:
        self.path = file.path
        self._disk = disk
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def read_into(self, buffer: Buffer, position: int) -> int:
        self._disk.check("read")
        return self._file.read_into(buffer, position)

    def write(self, buffer: Buffer, position: int) -> int:
        return self.write_vector([buffer], position)

    def write_vector(self, buffers: Sequence[Buffer], position: int) -> int:
        short = self._disk.check("write")
        if short is None:
            return self._file.write_vector(buffers, position)
        data = b"".join(bytes(buffer) for buffer in buffers)
        return self._file.write(data[: max(1, short)], position)

    def map(self) -> Mapping:
        self._disk.check("map")
        return self._file.map()

    def sync_data(self) -> None:
        self._disk.check("sync_data")
        self._file.sync_data()

    def sync(self) -> None:
        self._disk.check("sync")
        self._file.sync()

    def drop_cache(self) -> None:
        self._file.drop_cache()

    def truncate(self, length: int) -> None:
        self._disk.check("truncate")
        self._file.truncate(length)

    def preallocate(self, length: int) -> None:
        self._disk.check("preallocate")
        self._file.preallocate(length)

    def close(self) -> None:
        self._file.close()
