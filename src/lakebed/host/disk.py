"""The disk as the rest of the project sees it: a small protocol over files and folders.

Implementations: `OsDisk` (the operating system), `SimDisk` (a model of what a power cut keeps and
loses) and `FaultyDisk` (any disk, with the nth call of a kind failing). All raise `OSError`; the
package that called translates it. Writes may be short, as the operating system's may: `write_all`
is the one place that goes on.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

IOV_MAX = 1024
"""The most buffers the operating system takes in one vectored write."""


class Mode(enum.Enum):
    """How a file is opened."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    """Read and write; the file must not exist yet."""


class Mapping(Protocol):
    """A file mapped into memory. It stays valid while it or any view of it is referenced."""

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes from `start` to `stop` without copying them."""
        ...

    def release(self, start: int, stop: int) -> None:
        """Release the memory behind some bytes; they are read again when they are needed."""
        ...

    def __len__(self) -> int: ...


class Readable(Protocol):
    """Bytes addressed by position: all that a scan needs of a file."""

    def size(self) -> int:
        """Return the file's length in bytes."""
        ...

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position`; return the number of bytes read, 0 at the end."""
        ...


class File(Readable, Protocol):
    """An open file, addressed by position."""

    path: Path

    def write(self, buffer: Buffer, position: int) -> int:
        """Write one buffer; return the number of bytes written, which may be fewer."""
        ...

    def write_vector(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write at most `IOV_MAX` buffers one after another; may write fewer bytes."""
        ...

    def map(self) -> Mapping:
        """Map the whole file for reading."""
        ...

    def sync_data(self) -> None:
        """Make contents and length survive a power cut (fdatasync)."""
        ...

    def sync(self) -> None:
        """Make contents and all metadata survive a power cut (fsync)."""
        ...

    def drop_cache(self) -> None:
        """Forget cached pages that are clean, so that the next read asks the device."""
        ...

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length` bytes."""
        ...

    def preallocate(self, length: int) -> None:
        """Reserve space up to `length`, so that writing there cannot run out of it."""
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        ...


class Folder(Protocol):
    """An open folder. Syncing it needs no further descriptor, so it works when none is free."""

    def sync(self) -> None:
        """Make creations, renames and removals in this folder survive a power cut."""
        ...

    def close(self) -> None:
        """Close the folder; a second call does nothing."""
        ...


class Lock(Protocol):
    """A held lock on a folder."""

    def describe(self, owner: str) -> None:
        """Report more about who holds it."""
        ...

    def release(self) -> None:
        """Return the lock up."""
        ...


class LockHeldError(Exception):
    """Another owner holds the lock; `owner` is what it wrote about itself."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class Disk(Protocol):
    """Files by path, and what is done to their names."""

    def open(self, path: Path, mode: Mode) -> File:
        """Open a file."""
        ...

    def open_folder(self, path: Path) -> Folder:
        """Open a folder that will be synced often."""
        ...

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file, replacing `new`. Durable after `sync_folder`."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file's name. Durable after `sync_folder`."""
        ...

    def make_folder(self, path: Path) -> None:
        """Make a folder for its owner alone, and its parents; nothing if it exists."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Make creations, renames and removals in this folder survive a power cut."""
        ...

    def names(self, path: Path) -> list[str]:
        """List a folder's names, sorted; an absent folder has none."""
        ...

    def lock(self, path: Path, owner: str, *, folder: bool = False) -> Lock:
        """Lock a file for one owner, who is described in it.

        With `folder` the file's folder is locked too: removing the file then gives no second owner.
        Raise `LockHeldError` if it is taken.
        """
        ...

    def lock_owner(self, path: Path) -> str | None:
        """Return what the owner of a lock wrote about itself, or None if no process holds it.

        Of a lock whose file was removed, the text is empty. Writes nothing.
        """
        ...


def write_all(file: File, buffers: Sequence[Buffer], position: int, length: int) -> None:
    """Write every byte of `buffers`, `length` in all, at `position`, however short each write."""
    written = 0
    if len(buffers) <= IOV_MAX:
        written = _write_some(file, buffers, position)
        if written == length:
            return
    rest = _after([memoryview(buffer).cast("B") for buffer in buffers], written)
    while rest:
        count = _write_some(file, rest[:IOV_MAX], position + written)
        written += count
        rest = _after(rest, count)


def _write_some(file: File, buffers: Sequence[Buffer], position: int) -> int:
    count = file.write_vector(buffers, position)
    if count <= 0:
        raise OSError(errno.EIO, "the write made no progress")
    return count


def _after(buffers: list[memoryview], written: int) -> list[memoryview]:
    for index, view in enumerate(buffers):
        if written < len(view):
            return [view[written:], *buffers[index + 1 :]]
        written -= len(view)
    return []


def read_exactly(file: Readable, position: int, length: int) -> bytes:
    """Read `length` bytes at `position`, or fewer at the end of the file."""
    buffer = bytearray(length)
    done = fill(file, memoryview(buffer), position)
    return bytes(buffer[:done])


def read_file(disk: Disk, path: Path) -> bytes:
    """Read a whole file."""
    file = disk.open(path, Mode.READ)
    try:
        return read_exactly(file, 0, file.size())
    finally:
        file.close()


def fill(file: Readable, view: memoryview, position: int) -> int:
    """Fill `view` from `position` as far as the file goes; return the number of bytes."""
    done = 0
    while done < len(view):
        count = file.read_into(view[done:], position + done)
        if count == 0:
            break
        done += count
    return done
