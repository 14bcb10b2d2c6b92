"""The operating system's disk.

Thin calls, files for their owner alone (0600 in folders of 0700).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakebed.host.disk import LockHeldError, Mode

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FLAGS: Final = {
    Mode.READ: os.O_RDONLY,
    Mode.WRITE: os.O_RDWR,
    Mode.CREATE: os.O_RDWR | os.O_CREAT | os.O_EXCL,
}

_OWNER_BYTES_MAX: Final = 4096
_NO_FOLDER_LOCKS: Final = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP}
"""What `flock` of a folder fails with on a file system that locks files alone, as NFS does."""
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class OsMapping(mmap.mmap):
    """A memory map. Views are of this very object: while one lives, so does the map."""

    def view(self, start: int, stop: int) -> memoryview:
        """Return a view that holds this mapping."""
        return memoryview(self)[start:stop]

    def release(self, start: int, stop: int) -> None:
        """Advise the kernel to unmap the pages; they stay in its cache."""
        first = start - start % mmap.PAGESIZE
        if stop > first:
            self.madvise(mmap.MADV_DONTNEED, first, min(stop, len(self)) - first)


class OsFile:
    """An open file descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def size(self) -> int:
        """Ask the file system."""
        return os.fstat(self._descriptor).st_size

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Read with preadv: an unreadable sector is an error here, not a signal as in a map."""
        return os.preadv(self._descriptor, [buffer], position)

    def write(self, buffer: Buffer, position: int) -> int:
        """Write with pwrite."""
        return os.pwrite(self._descriptor, buffer, position)

    def write_vector(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write with pwritev."""
        return os.pwritev(self._descriptor, buffers, position)

    def map(self) -> OsMapping:
        """Map the file's present length."""
        length = self.size()
        if not length:  # an empty file cannot be mapped; no frame fits into one zero byte either
            return OsMapping(-1, 1)
        return OsMapping(self._descriptor, length, prot=mmap.PROT_READ)

    def sync_data(self) -> None:
        """Call fdatasync."""
        os.fdatasync(self._descriptor)

    def sync(self) -> None:
        """Call fsync."""
        os.fsync(self._descriptor)

    def drop_cache(self) -> None:
        """Advise the kernel, which drops what is clean and not mapped."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def truncate(self, length: int) -> None:
        """Call ftruncate."""
        os.ftruncate(self._descriptor, length)

    def preallocate(self, length: int) -> None:
        """Call posix_fallocate, which fails with ENOSPC now rather than a later write."""
        os.posix_fallocate(self._descriptor, 0, length)

    def close(self) -> None:
        """Close the descriptor once."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class OsFolder:
    """An open descriptor of a folder."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def sync(self) -> None:
        """Call fsync."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor once."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class OsLock:
    """An flock: the kernel gives it up when the process dies, however it dies.

    It is of a file, and of the file's folder if one is given.
    """

    def __init__(self, descriptor: int, folder: int | None = None) -> None:
        self._descriptor = descriptor
        self._folder = folder

    def describe(self, owner: str) -> None:
        """Write more about who holds it."""
        text = owner.encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def release(self) -> None:
        """Close the descriptors, which releases the lock."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
        if self._folder is not None:
            descriptor, self._folder = self._folder, None
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()


class OsDisk:
    """Files of the operating system."""

    def open(self, path: Path, mode: Mode) -> OsFile:
        """Open without handing the descriptor to child programs."""
        return OsFile(path, os.open(path, _FLAGS[mode] | os.O_CLOEXEC, 0o600))

    def open_folder(self, path: Path) -> OsFolder:
        """Open the folder itself."""
        return OsFolder(os.open(path, _FOLDER_FLAGS))

    def rename(self, old: Path, new: Path) -> None:
        """Rename in place."""
        os.rename(old, new)  # noqa: PTH104

    def remove(self, path: Path) -> None:
        """Unlink."""
        os.unlink(path)  # noqa: PTH108

    def make_folder(self, path: Path) -> None:
        """Make the folder 0700, syncing each parent that got a new name."""
        if path.is_dir():
            return
        if path.parent != path:
            self.make_folder(path.parent)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(20, "not a folder", str(path)) from None
        self.sync_folder(path.parent)  # also if another process was faster: it may not have yet

    def sync_folder(self, path: Path) -> None:
        """Fsync the folder itself."""
        folder = self.open_folder(path)
        try:
            folder.sync()
        finally:
            folder.close()

    def names(self, path: Path) -> list[str]:
        """List the folder."""
        try:
            return sorted(os.listdir(path))  # noqa: PTH208
        except FileNotFoundError:
            return []

    def lock(self, path: Path, owner: str, *, folder: bool = False) -> OsLock:
        """Take an exclusive flock and write who took it."""
        held = self._lock_folder(path) if folder else None
        try:
            return OsLock(_lock_file(path, owner), held)
        except BaseException:
            if held is not None:
                os.close(held)
            raise

    def _lock_folder(self, path: Path) -> int | None:
        """Take an exclusive flock on the folder of a lock file; None if it has no locks (NFS)."""
        descriptor = os.open(path.parent, _FOLDER_FLAGS)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockHeldError(_read_owner(path)) from None
        except OSError as error:
            os.close(descriptor)
            if error.errno in _NO_FOLDER_LOCKS:
                return None
            raise
        return descriptor

    def lock_owner(self, path: Path) -> str | None:
        """Try a shared flock, which is given up at once: it fails only while it is owned."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return "" if _is_locked_folder(path.parent) else None
        try:
            if _is_free(descriptor):
                return "" if _is_locked_folder(path.parent) else None
            return os.pread(descriptor, _OWNER_BYTES_MAX, 0).decode(errors="replace")
        finally:
            os.close(descriptor)


def _lock_file(path: Path, owner: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, _OWNER_BYTES_MAX, 0).decode(errors="replace")
        os.close(descriptor)
        raise LockHeldError(holder) from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _read_owner(path: Path) -> str:
    """Return what the owner wrote into its lock file; nothing if the file was removed."""
    try:
        return path.read_bytes()[:_OWNER_BYTES_MAX].decode(errors="replace")
    except OSError:
        return ""


def _is_locked_folder(path: Path) -> bool:
    try:
        descriptor = os.open(path, _FOLDER_FLAGS)
    except FileNotFoundError:
        return False
    try:
        return not _is_free(descriptor)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_FOLDER_LOCKS:
            return True
        raise
    return True
