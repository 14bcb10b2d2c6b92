"""The door to an object store: S3 and what speaks like it, Google, Azure, or a folder.

    s3://bucket/prefix   gs://bucket/prefix   abfs://container/prefix   file:///mnt/drive/lake

Options have pyiceberg's names (`s3.endpoint`, `s3.access-key-id`, …), so that one set serves
segments and Iceberg metadata. Nothing is asked of the store before the first call.

A call that fails is repeated if the failure may pass: time-outs, resets, throttling and
errors of the server. The pause before it doubles each time, and is shorter by a random part so that
many clients do not return together. Refused credentials and missing buckets are not repeated.
"""

from __future__ import annotations

import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

from crc32c import crc32c

from lakebed.errors import (
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from lakebed.host import failpoints
from lakebed.host.bucket_options import BUCKET_SCHEMES
from lakebed.host.retry import Backoff, retry
from lakebed.host.store_bucket import Bucket
from lakebed.host.store_failures import translate_folder_errors
from lakebed.host.store_folder import FolderObjects
from lakebed.host.store_values import Stored, StoreStats

__all__ = ["SCHEMES", "ObjectStore", "StoreStats", "Stored"]

SCHEMES: Final = (*BUCKET_SCHEMES, "file")
"""The kinds of store. In each, an object has its name only when it is whole."""

PAUSE_SECONDS_MAX: Final = 10.0
PATIENCE_SECONDS: Final = 30.0
"""No attempt begins later than this after the first: an endpoint that hangs is reported too."""

_UPLOADED = failpoints.define("host.store.uploaded")
_LOCATION: Final = re.compile(r"([a-z0-9]+)://([^?#\s]*)")

_Result = TypeVar("_Result")

_FAILURES: Final = (
    StoreUnavailableError,
    StoreDeniedError,
    StoreNotFoundError,
    InvalidArgumentError,
)
"""The errors that are counted as failures of the store."""


class _Objects(Protocol):
    """One attempt at each call; every failure of the store is raised as one of our errors."""

    def write(self, name: str, data: memoryview) -> None: ...
    def chunks(self, name: str) -> Iterator[memoryview]: ...
    def read(self, name: str, start: int, stop: int) -> memoryview: ...
    def size(self, name: str) -> int | None: ...
    def listing(self, folder: str) -> list[Stored]: ...
    def list_unfinished(self, folder: str) -> list[Stored]: ...
    def remove(self, name: str) -> bool: ...


class ObjectStore:
    """Objects by name below a location. Any thread; one puts an object at a time.

    Names are relative to the location, with `/` between their parts.
    """

    def __init__(
        self,
        location: str,
        options: Mapping[str, str],
        *,
        attempts: int = 5,
        pause_seconds: float = 0.2,
    ) -> None:
        if attempts < 1 or pause_seconds < 0:
            raise InvalidArgumentError(
                "a store needs an attempt, and pauses of no less than nothing",
                attempts=attempts,
                pause_seconds=pause_seconds,
            )
        self._objects = _objects(location, options)
        self.location: Final = location.removesuffix("/")
        self._options: Final = sorted(options)
        self._attempts = attempts
        self._pause_seconds = pause_seconds
        self._guard = threading.Lock()
        self._closed = threading.Event()
        self.before_remove: Callable[[], None] | None = None
        """Called before an object is removed; raises if this process may not remove it."""
        self._counts: dict[str, int] = dict.fromkeys(StoreStats._fields, 0)

    def __repr__(self) -> str:
        return f"ObjectStore({self.location!r}, options={self._options})"

    @property
    def stats(self) -> StoreStats:
        """Count what was asked for so far."""
        with self._guard:
            return StoreStats(**self._counts)

    def uri(self, name: str) -> str:
        """Return the address of an object, whether or not it exists."""
        return f"{self.location}/{_check_name(name)}"

    def put(self, name: str, data: memoryview, *, checksum: int | None = None) -> None:
        """Upload an object whole or not at all; replacing it by the same bytes is harmless.

        With `checksum`, the CRC32C of the bytes, damaged bytes are refused instead of uploaded.
        """
        uri = self.uri(name)
        data = data.cast("B")
        if checksum is not None and crc32c(data) != checksum:
            raise CorruptionError("the bytes to upload are damaged", uri=uri, length=len(data))
        self._repeat(lambda: self._upload(name, uri, data))
        self._count(uploads=1, uploaded_bytes=len(data))

    def fetch(self, name: str, begin: Callable[[], Callable[[memoryview], object]]) -> int:
        """Download an object in pieces; return its length.

        `begin` is called for each attempt, and gives what takes the pieces from the first one on.
        What either raises ends the call.
        """
        uri = self.uri(name)
        length = self._repeat(lambda: self._download(name, uri, begin()))
        self._count(downloads=1, downloaded_bytes=length)
        return length

    def read(self, name: str, start: int, stop: int) -> memoryview:
        """Return the bytes of an object from `start` up to `stop`, or to its end."""
        _check_name(name)
        data = self._repeat(lambda: self._objects.read(name, start, stop))
        self._count(downloads=1, downloaded_bytes=len(data))
        return data

    def size(self, name: str) -> int | None:
        """Return an object's length, or None if there is no such object."""
        _check_name(name)
        return self._repeat(lambda: self._objects.size(name))

    def listing(self, folder: str = "") -> Iterator[Stored]:
        """Return the objects below a folder, which need not exist, by name."""
        folder = folder.rstrip("/")
        if folder:
            _check_name(folder)
        return iter(sorted(self._repeat(lambda: self._objects.listing(folder))))

    def list_unfinished(self, folder: str = "") -> Iterator[Stored]:
        """Return what is being written below a folder, or was left by a crash: files, not objects.

        Only a store in a folder has such files. They are removed as objects are.
        """
        folder = folder.rstrip("/")
        if folder:
            _check_name(folder)
        return iter(self._repeat(lambda: self._objects.list_unfinished(folder)))

    def remove(self, name: str) -> None:
        """Remove an object; one that is not there is removed already."""
        _check_name(name)
        if self.before_remove is not None:
            self.before_remove()
        if self._repeat(lambda: self._objects.remove(name)):
            self._count(removals=1)

    def close(self) -> None:
        """End every pause and refuse further calls; one under way ends with its attempt."""
        self._closed.set()

    def _upload(self, name: str, uri: str, data: memoryview) -> None:
        self._objects.write(name, data)
        size = self._objects.size(name)
        if size != len(data):
            raise StoreUnavailableError(
                "an uploaded object does not have its length",
                uri=uri,
                size=size,
                expected=len(data),
            )
        with translate_folder_errors("uploading", uri):
            _UPLOADED.hit()

    def _download(self, name: str, uri: str, write: Callable[[memoryview], object]) -> int:
        length = 0
        for chunk in self._objects.chunks(name):
            self._check_open(uri)
            write(chunk)
            length += len(chunk)
        return length

    def _repeat(self, attempt: Callable[[], _Result]) -> _Result:
        self._check_open(self.location)
        try:
            return retry(
                attempt,
                StoreUnavailableError,
                attempts_max=self._attempts,
                seconds_max=PATIENCE_SECONDS,
                backoff=Backoff(self._pause_seconds, PAUSE_SECONDS_MAX, jitter=True),
                wait=self._pause,
            )
        except _FAILURES:
            self._count(failures=1)
            raise

    def _pause(self, seconds: float) -> bool:
        """Wait before the next attempt; return whether the store was closed in the meantime."""
        closed = self._closed.wait(seconds)
        if not closed:
            self._count(retries=1)
        return closed

    def _check_open(self, uri: str) -> None:
        if self._closed.is_set():
            raise ClosedError("the object store is closed", uri=uri)

    def _count(self, **more: int) -> None:
        with self._guard:
            for name, count in more.items():
                self._counts[name] += count


def _objects(location: str, options: Mapping[str, str]) -> _Objects:
    if location.startswith("file:///") and location.strip("/") != "file:":
        return FolderObjects(
            location, Path(location.removeprefix("file://"))
        )  # whatever signs it has
    match = _LOCATION.fullmatch(location)
    if match is None or match[1] not in SCHEMES:
        # Not repeated in the message: a location that is no location may hold a password.
        raise InvalidArgumentError(
            "a store's location is not SCHEME://BUCKET/PREFIX or file:///FOLDER",
            schemes=",".join(SCHEMES),
        )
    parts = urllib.parse.urlsplit(location)
    if parts.password is not None:
        raise InvalidArgumentError("a store's location may not hold a password; use its options")
    if parts.scheme == "file":
        raise InvalidArgumentError("a store's folder is not file:///FOLDER", location=location)
    _check_bucket_location(location, parts)
    return Bucket(location, options)


def _check_bucket_location(location: str, parts: urllib.parse.SplitResult) -> None:
    inner = parts.path.removesuffix("/")[1:]
    if not parts.netloc or (inner and not _proper(inner)):
        raise InvalidArgumentError("a store's location has no proper bucket", location=location)


def _proper(name: str) -> bool:
    return bool(name) and not any(part in ("", ".", "..") for part in name.split("/"))


def _check_name(name: str) -> str:
    if not _proper(name) or "\\" in name or not name.isprintable():
        raise InvalidArgumentError("an object cannot have this name", name=repr(name))
    return name
