"""A bucket: objects through obstore, which shows an object only when it is whole.

A small object is one request. A large one is sent in parts, and if one of them fails, the upload is
aborted: no object, and no parts unless that request fails as well. A lifecycle rule of the bucket
(`AbortIncompleteMultipartUpload`) should clear those away.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lakebed.errors import StoreUnavailableError
from lakebed.host.bucket_options import connect
from lakebed.host.store_failures import secrets_of, translate_bucket_errors
from lakebed.host.store_values import CHUNK_BYTES, Stored

REPETITIONS: Final = 1
"""How often the library repeats a request: a part that fails need not cost the parts before it."""

PART_BYTES: Final = 8 << 20
"""What is sent in one request; an object with more bytes has several parts."""
PARTS: Final = 4
"""How many are under way at a time."""
BYTES_PER_SECOND_MIN: Final = 512 << 10
"""The slowest connection over which all parts that are under way arrive in time."""


class Bucket:
    """The objects below a prefix of a bucket. Any thread."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self._location = location.removesuffix("/")
        self._options = dict(options)
        self._secrets: Final = secrets_of(options)
        self._guard = threading.Lock()
        self._clients: dict[bool, Any] = {}
        self._seen = False

    def write(self, name: str, data: memoryview) -> None:
        """Upload an object, whole or not at all."""
        large = len(data) > PART_BYTES
        with self._failures("uploading", name):
            self._client(large=large).put(
                name, data, use_multipart=large, chunk_size=PART_BYTES, max_concurrency=PARTS
            )

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Download an object piece by piece."""
        with self._failures("downloading", name):
            try:
                result = self._client().get(name)
            except FileNotFoundError:
                self._check_bucket(name)
                raise
            missing = int(result.meta["size"])
            stream = iter(result.stream(min_chunk_size=CHUNK_BYTES))
        while missing > 0:
            with self._failures("downloading", name):
                chunk = memoryview(next(stream, b""))
            if not chunk:
                raise StoreUnavailableError(
                    "the object ended early", uri=self._uri(name), missing=missing
                )
            missing -= len(chunk)
            yield chunk

    def read(self, name: str, start: int, stop: int) -> memoryview:
        """Download a part of an object."""
        with self._failures("reading", name):
            return memoryview(self._client().get_range(name, start=start, end=stop))

    def size(self, name: str) -> int | None:
        """Return an object's length, or None if there is none."""
        with self._failures("looking up", name):
            return self._size(name)

    def listing(self, folder: str) -> list[Stored]:
        """List the objects below a folder; the markers that stand for folders are none."""
        with self._failures("listing", folder):
            batches = self._client().list(folder or None)
            return [
                Stored(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1e6))
                for batch in batches
                for meta in batch
                if meta["size"] or self._is_object(meta["path"])
            ]

    def list_unfinished(self, folder: str) -> list[Stored]:  # noqa: ARG002
        """Return nothing: parts of an upload are not seen, and a rule of the bucket clears them."""
        return []

    def remove(self, name: str) -> bool:
        """Remove an object; return whether it existed."""
        with self._failures("removing", name):
            if self._size(name) is None:
                return False
            with contextlib.suppress(FileNotFoundError):
                self._client().delete(name)
            return True

    def _size(self, name: str) -> int | None:
        try:
            meta = self._client().head(name)
        except FileNotFoundError:
            self._check_bucket(name)
            return None
        self._seen = True
        return int(meta["size"])

    def _is_object(self, path: str) -> bool:
        """Return whether an empty object is one: the library lists the marker `a/` as `a`."""
        return bool(path) and self._size(path) is not None

    def _check_bucket(self, name: str) -> None:
        """Tell a missing bucket from a missing object: only a listing's failure differs."""
        if not self._seen:
            next(iter(self._client().list(name, chunk_size=1)), None)
            self._seen = True

    def _failures(self, doing: str, name: str) -> contextlib.AbstractContextManager[None]:
        return translate_bucket_errors(doing, self._uri(name), self._secrets)

    def _uri(self, name: str) -> str:
        return f"{self._location}/{name}"

    def _client(self, *, large: bool = False) -> Any:
        """Return the client for requests, or the one for uploads in parts, which has more time."""
        with self._guard:
            if large not in self._clients:
                self._clients[large] = connect(
                    self._location,
                    self._options,
                    repetitions=REPETITIONS,
                    more_seconds=PARTS * PART_BYTES / BYTES_PER_SECOND_MIN if large else 0,
                )
            return self._clients[large]
