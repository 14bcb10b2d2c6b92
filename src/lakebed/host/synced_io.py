"""The files of Iceberg tables: each exists whole, and survives a power cut, or not at all.

pyiceberg writes manifests and metadata without syncing them, and then tells its catalog about them.
With this `FileIO` they survive a power cut before that: a local file is a `SyncedFile`, and the
folder is synced with the table's metadata file, which is the last of a commit. A file in a bucket
is one object of an `ObjectStore`, with its repetitions and errors. Any other file system is left to
pyiceberg.

pyiceberg finds the class by its name (`py-io-impl`), and makes it itself.
"""

from __future__ import annotations

import io
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from lakebed.host.bucket_options import BUCKET_SCHEMES
from lakebed.host.store import ObjectStore
from lakebed.host.synced_file import SyncedFile

IMPLEMENTATION: Final = f"{__name__}.SyncedFileIO"
"""What `py-io-impl` must say."""

_LAST: Final = ".metadata.json"
"""Ends the name of the last file of a commit."""
_BUFFER_BYTES: Final = 1 << 20


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's own, but for what is written to a local disk and for buckets."""

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(dict(properties or {}))
        self._stores: dict[str, ObjectStore] = {}

    def new_input(self, location: str) -> InputFile:  # type: ignore[override]
        """Return a file to read."""
        return self._in_bucket(location) or super().new_input(location)

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]
        """Return a file to write."""
        in_bucket = self._in_bucket(location)
        if in_bucket is not None:
            return in_bucket
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return _LocalFile(location, path, self.fs_by_scheme(scheme, netloc))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; in a bucket, a missing one is removed already."""
        in_bucket = self._in_bucket(location if isinstance(location, str) else location.location)
        if in_bucket is None:
            super().delete(location)
        else:
            in_bucket.delete()

    def _in_bucket(self, location: str) -> _BucketFile | None:
        parts = urllib.parse.urlsplit(location)
        if parts.scheme not in BUCKET_SCHEMES:
            return None
        bucket = f"{parts.scheme}://{parts.netloc}"
        store = self._stores.get(bucket)
        if store is None:
            store = self._stores.setdefault(bucket, ObjectStore(bucket, self.properties))
        return _BucketFile(location, store, location.removeprefix(bucket).lstrip("/"))


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> SyncedFile:  # type: ignore[override]
        """Begin to write; the file exists when the stream is closed."""
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        path = Path(self._path)
        return SyncedFile(path, sync_folder=path.name.endswith(_LAST))


class _BucketFile(InputFile, OutputFile):
    def __init__(self, location: str, store: ObjectStore, name: str) -> None:
        super().__init__(location)
        self._store = store
        self._name = name

    def __len__(self) -> int:
        size = self._store.size(self._name)
        if size is None:
            raise FileNotFoundError(f"Cannot open file, does not exist: {self.location}")
        return size

    def exists(self) -> bool:
        """Return whether the object exists."""
        return self._store.size(self._name) is not None

    def open(self, seekable: bool = True) -> io.BufferedReader:  # noqa: ARG002
        """Begin to read."""
        return io.BufferedReader(_Reader(self._store, self._name, len(self)), _BUFFER_BYTES)

    def create(self, overwrite: bool = False) -> _Upload:  # type: ignore[override]
        """Begin to write; the object exists when the stream is closed."""
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        return _Upload(self._store, self._name)

    def to_input_file(self) -> InputFile:
        """Return the same file, to read."""
        return self

    def delete(self) -> None:
        """Remove the object."""
        self._store.remove(self._name)


class _Reader(io.RawIOBase):
    """Reads ranges of an object. One thread."""

    def __init__(self, store: ObjectStore, name: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._name = name
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return bytes(self._next(self._size))

    def _next(self, length: int) -> memoryview:
        stop = min(self._position + length, self._size)
        if stop <= self._position:
            return memoryview(b"")
        data = self._store.read(self._name, self._position, stop)
        self._position += len(data)
        return data


class _Upload:
    """Bytes for an object, which exists when this is closed without an error. One thread."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store = store
        self._name = name
        self._data = bytearray()
        self.closed = False

    def write(self, data: bytes) -> int:
        """Take bytes."""
        self._data += data
        return len(data)

    def close(self) -> None:
        """Upload the object."""
        if not self.closed:
            self.closed = True
            self._store.put(self._name, memoryview(self._data))

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
        self.closed = True
