"""A conditional store in a folder: for one host, a shared drive, and the simulator's tests.

* create only: the bytes go to a temporary file, which is synced and then linked to its name; the
  operating system refuses a link to a name that exists
* replace if unchanged: under a lock on a file beside the object, compare, then rename over it

The folder of the name is synced before a call returns, so what is done survives a power cut. The
version of an object is the digest of its bytes, as an ETag is.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lakebed.errors import InvalidArgumentError, LakebedError, StoreNotFoundError
from lakebed.host import failpoints
from lakebed.host.conditional import DONE, REFUSED, Answer, Outcome, Versioned
from lakebed.host.disk import write_all
from lakebed.host.os_disk import OsDisk, OsFile
from lakebed.host.store_failures import translate_folder_errors

_LOCK: Final = ".lock"
_TEMPORARY: Final = ".tmp"

_LINKED = failpoints.define("host.conditional.linked")


class FolderStore:
    """The objects below a folder, which must exist. Any thread, any process of the host."""

    def __init__(self, root: Path) -> None:
        self.location = f"file://{root}"
        self._root = root
        self._disk = OsDisk()

    def put_new(self, name: str, data: bytes) -> Answer:
        """See `ConditionalStore`."""
        path = self._path(name)
        try:
            with self._failures("creating", name), self._temporary(path, data) as temporary:
                os.link(temporary, path)
                _LINKED.hit()
                # Without it the name could be gone after a power cut.
                self._disk.sync_folder(path.parent)
        except LakebedError as error:
            if isinstance(error.__cause__, FileExistsError):
                return REFUSED
            return Answer(Outcome.UNKNOWN, error)
        return DONE

    def put_if(self, name: str, data: bytes, version: str) -> Answer:
        """See `ConditionalStore`."""
        path = self._path(name)
        try:
            with self._failures("replacing", name), self._lock(path):
                there = _read(path)
                if there is None or _version(there) != version:
                    return REFUSED
                self._replace(path, data)
        except LakebedError as error:
            return Answer(Outcome.UNKNOWN, error)
        return DONE

    def get(self, name: str) -> Versioned | None:
        """See `ConditionalStore`."""
        path = self._path(name)
        with self._failures("reading", name):
            self._check_root()
            data = _read(path)
        return None if data is None else Versioned(data, _version(data))

    def put(self, name: str, data: bytes) -> None:
        """See `ConditionalStore`."""
        with self._failures("writing", name):
            self._replace(self._path(name), data)

    def delete(self, name: str) -> None:
        """See `ConditionalStore`."""
        path = self._path(name)
        with self._failures("removing", name):
            self._check_root()
            for file in (path, path.with_name(path.name + _LOCK)):
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(file)
            if path.parent.is_dir():
                # A removed object must not come back after a power cut.
                self._disk.sync_folder(path.parent)

    def _replace(self, path: Path, data: bytes) -> None:
        with self._temporary(path, data) as temporary:
            self._disk.rename(temporary, path)
            self._disk.sync_folder(path.parent)

    @contextlib.contextmanager
    def _temporary(self, path: Path, data: bytes) -> Iterator[Path]:
        """Write a synced file beside `path`, which is gone when the block ends."""
        self._check_root()
        self._make(path.parent)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_TEMPORARY}")
        try:
            with contextlib.closing(_open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)) as file:
                if data:
                    write_all(file, [data], 0, len(data))
                # Before it gets its name, so that the name never means less than the whole.
                file.sync()
            yield temporary
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()

    @contextlib.contextmanager
    def _lock(self, path: Path) -> Iterator[None]:
        """Hold the lock of an object: between threads as between processes."""
        self._check_root()
        self._make(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(path.with_name(path.name + _LOCK), flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        self._disk.sync_folder(folder.parent)

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise StoreNotFoundError("the store's folder does not exist", uri=self.location)

    def _path(self, name: str) -> Path:
        if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            raise InvalidArgumentError("name must be relative and proper", name=repr(name))
        return self._root / name

    def _failures(self, doing: str, name: str) -> contextlib.AbstractContextManager[None]:
        return translate_folder_errors(doing, f"{self.location}/{name}")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _open(path: Path, flags: int) -> OsFile:
    return OsFile(path, os.open(path, flags | os.O_CLOEXEC, 0o666))


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
