"""A bucket: objects through pyarrow's file systems, built from pyiceberg's options.

A stream to a bucket shows nothing until it is closed, and closing it shows all that was written
*so far*. So does dropping it, and a stream's context manager closes it after an exception too. An
upload that fails is therefore ended in one of two ways. If a part failed, the stream knows, and
closing it leaves no object, only parts that a lifecycle rule of the bucket
(`AbortIncompleteMultipartUpload`) should clear away. If anything else interrupts the writing, the
stream is neither closed nor dropped.
"""

from __future__ import annotations

import contextlib
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lakebed.errors import InvalidArgumentError, StoreNotFoundError
from lakebed.host.store_failures import secrets_of, translated
from lakebed.host.store_values import CHUNK_BYTES, Stored

_S3_DEFAULTS: Final = {
    "s3.connect-timeout": "3",
    "s3.request-timeout": "10",
}
"""A request fails when no byte has moved for this many seconds. The user's options win."""

_RETRIES: Final = "lakebed.host.store_retries.RepeatOnce"
"""We repeat calls ourselves."""

PIECE_BYTES: Final = 40 << 20
"""How much of an object is under way at a time: four of the library's parts, side by side."""

_interrupted: Final[list[object]] = []
"""Streams that hold a part of an object and must not be closed, as dropping them would."""


class Bucket:
    """The objects below a prefix of a bucket. Any thread."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        parts = urllib.parse.urlsplit(location)
        self._scheme, self._host = parts.scheme, parts.netloc
        self._location = location
        self._prefix = f"{parts.netloc}{parts.path}".removesuffix("/")
        self._options = dict(options)
        self._secrets: Final = secrets_of(options)
        self._guard = threading.Lock()
        self._files: Any = None
        self._seen = False

    def write(self, name: str, data: memoryview) -> None:
        """Upload an object, whole or not at all."""
        with self._failures("uploading", name):
            _write(self._system().open_output_stream(self._path(name)), data)

    def chunks(self, name: str) -> Iterator[memoryview]:
        """Download an object piece by piece."""
        with self._failures("downloading", name):
            stream = self._open(name)
            size = stream.size()
        with contextlib.closing(stream):
            for position in range(0, size, CHUNK_BYTES):
                with self._failures("downloading", name):
                    chunk = memoryview(stream.read_buffer(CHUNK_BYTES))
                    if len(chunk) != min(CHUNK_BYTES, size - position):
                        raise OSError("the object ended early")
                yield chunk

    def size(self, name: str) -> int | None:
        """Return an object's length, or None if there is none."""
        with self._failures("looking up", name):
            info = self._system().get_file_info(self._path(name))
            if info.is_file:
                self._seen = True
                return int(info.size)
            self._check_bucket()
            return None

    def listing(self, folder: str) -> list[Stored]:
        """List the objects below a folder; the markers that stand for folders are none."""
        from pyarrow.fs import FileSelector

        with self._failures("listing", folder):
            below = self._path(folder)
            selector = FileSelector(below, recursive=True, allow_not_found=True)
            found = self._system().get_file_info(selector)
            if not found:
                self._check_bucket()
        return [self._stored(info) for info in found if info.is_file]

    def unfinished(self, folder: str) -> list[Stored]:  # noqa: ARG002
        """Return nothing: parts of an upload are not seen, and a rule of the bucket clears them."""
        return []

    def remove(self, name: str) -> bool:
        """Remove an object; say whether it was there."""
        with self._failures("removing", name):
            try:
                self._system().delete_file(self._path(name))
            except FileNotFoundError:
                self._check_bucket()
                return False
            return True

    def _open(self, name: str) -> Any:
        try:
            return self._system().open_input_file(self._path(name))
        except FileNotFoundError:
            self._check_bucket()
            raise

    def _check_bucket(self) -> None:
        """Report a missing bucket from a missing object: to the library both are the same."""
        if self._seen:
            return
        bucket = self._prefix.partition("/")[0]
        if str(self._system().get_file_info(bucket).type.name) == "NotFound":
            raise StoreNotFoundError("the bucket does not exist", uri=self._location)
        self._seen = True

    def _stored(self, info: Any) -> Stored:
        name = str(info.path)[len(self._prefix) + 1 :]
        return Stored(name, int(info.size), int(info.mtime_ns or 0) // 1000)

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}" if name else self._prefix

    def _failures(self, doing: str, name: str) -> contextlib.AbstractContextManager[None]:
        uri = f"{self._location.removesuffix('/')}/{name}"
        return translated(doing, uri, self._secrets)

    def _system(self) -> Any:
        with self._guard:
            if self._files is None:
                self._files = self._connect()
            return self._files

    def _connect(self) -> Any:
        try:
            from pyiceberg.io.pyarrow import PyArrowFileIO

            return PyArrowFileIO(self._effective()).fs_by_scheme(self._scheme, self._host)
        except ImportError as error:
            raise InvalidArgumentError(
                "an object store needs pyiceberg, which is not installed", location=self._location
            ) from error
        except ValueError as error:
            # The cause is left out: it may repeat an option's value.
            raise InvalidArgumentError(
                "the options of the object store are not usable",
                location=self._location,
                options=sorted(self._options),
                kind=type(error).__name__,
            ) from None

    def _effective(self) -> dict[str, str]:
        return {"s3.retry-strategy-impl": _RETRIES, **with_defaults(self._options)}


def with_defaults(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with what is better than pyiceberg's defaults; those that are given win."""
    effective = {**_S3_DEFAULTS, **options}
    if "s3.endpoint" in effective and "client.region" not in effective:
        # Without a region the library asks Amazon, whoever's the endpoint is.
        effective.setdefault("s3.region", "us-east-1")
    return effective


def _write(stream: Any, data: memoryview) -> None:
    try:
        for start in range(0, len(data), PIECE_BYTES):
            stream.write(data[start : start + PIECE_BYTES])
            stream.flush()  # waits for the parts under way, of which the library holds copies
    except OSError:
        # It knows that it failed, so it shows nothing. Left to the destructor, closing would hold
        # up every thread of this process.
        with contextlib.suppress(OSError):
            stream.close()
        raise
    except BaseException:
        _interrupted.append(stream)
        raise
    stream.close()
