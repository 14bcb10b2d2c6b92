"""Files and pipes as lines, many at a time: an Arrow array for each piece that was read."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import IO, Final, NamedTuple

import numpy as np
import pyarrow as pa

from lakebed.errors import RecordTooLargeError

_CHUNK_BYTES: Final = 4 * 1024 * 1024
"""What is read at a time, if there is so much."""
_NEWLINE: Final = 10


class Lines(NamedTuple):
    """Consecutive lines of one file, without their ends."""

    values: pa.Array
    source: str
    first: int
    """The number of the first line; a file's first line is 1."""


class LineReader:
    """Reads whole lines as they come: it waits for the first one, never for the chunk to fill."""

    def __init__(self, file: IO[bytes], source: str, *, line_bytes_max: int) -> None:
        self._file = file
        self._source = source
        self._line_bytes_max = line_bytes_max
        self._ended = False
        self._number = 1

    def __iter__(self) -> Iterator[Lines]:
        """Return the lines; the last one need not end with a newline."""
        begun: list[bytes] = []
        while not self._ended:
            data = self._some()
            whole = data.rfind(b"\n") + 1
            if whole:
                yield self._lines(b"".join([*begun, memoryview(data)[:whole]]))
                begun = []
            if whole < len(data):
                begun.append(data[whole:])
                self._check(begun)
        if begun:
            yield self._lines(b"".join([*begun, b"\n"]))

    def _some(self) -> bytes:
        """Return what there is now, at least a byte; nothing at the end."""
        pieces: list[bytes] = []
        left = _CHUNK_BYTES
        while left > 0:
            piece = getattr(self._file, "read1", self._file.read)(left)
            if not piece:
                self._ended = True
                break
            pieces.append(piece)
            left -= len(piece)
            if not _more_now(self._file):
                break
        return b"".join(pieces)

    def _lines(self, data: bytes) -> Lines:
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        count = len(ends)
        offsets = np.zeros(count + 1, np.int32)
        offsets[1:] = ends - np.arange(count)  # the newlines before are taken out
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))]
        lines = Lines(
            pa.Array.from_buffers(pa.binary(), count, buffers), self._source, self._number
        )
        self._number += count
        return lines

    def _check(self, begun: list[bytes]) -> None:
        size = sum(map(len, begun))
        if size > self._line_bytes_max:
            raise RecordTooLargeError(
                "a line is too large for a record",
                file=self._source,
                line=self._number,
                bytes_max=self._line_bytes_max,
            )


def _more_now(file: IO[bytes]) -> bool:
    """Return whether reading on would not wait."""
    try:
        return bool(select.select([file.fileno()], [], [], 0)[0])
    except (OSError, ValueError):  # not a file of the operating system
        return True
