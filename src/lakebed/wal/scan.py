"""Reading a WAL file from front to back, verifying every byte that counts, in bounded memory.

A scan reads with positional reads, not through a map: an unreadable sector is then an error that
can be reported, not a signal that kills the process. It stops at the first thing that is not a
valid frame in its place and says what it was.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from crc32c import crc32c

from lakebed import limits
from lakebed.host import Readable, fill
from lakebed.wal.frame import (
    ALIGN,
    END_BLOCK,
    ENTRY,
    FRAME_HEADER,
    FRAME_MAGIC,
    FRAME_MAGIC_BYTES,
    HEADER_BYTES,
    KINDS,
    FrameHeader,
    decode_header,
)

Fields: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""A frame header as unpacked: the fields of `FrameHeader` in their order, without its cost."""


class Ending(enum.Enum):
    """Why a scan stopped."""

    END = "end"
    """Zeros in place of a header, or the end of the file."""

    SHORT = "short"
    """The header says more bytes than the file has."""

    BAD_CHECKSUM = "bad checksum"
    """A header or a payload is not what its checksum says."""

    RESIDUE = "residue"
    """A valid frame of an older file: old bytes of a recycled file."""

    OUT_OF_PLACE = "out of place"
    """A valid frame that does not follow the one before."""

    UNREADABLE = "unreadable"
    """The device failed to read."""


@dataclass(frozen=True)
class Stop:
    """Where and why a scan stopped."""

    ending: Ending
    position: int
    detail: str = ""
    error: OSError | None = None


class FileScan:
    """One pass over a file's frames.

    `frames` yields position and fields; afterwards `stop` says why it ended.
    """

    def __init__(
        self,
        file: Readable,
        *,
        file_number: int,
        salt: int,
        parent: int,
        start: int = HEADER_BYTES,
        chunk_bytes: int = limits.READ_CHUNK_BYTES,
    ) -> None:
        self.stop = Stop(Ending.END, start)
        self.link = parent
        self.payload: memoryview = memoryview(b"")
        """The payload of the frame just yielded, if it is not an entry."""
        self._file = file
        self._size = file.size()
        self._number = file_number
        self._salt = salt
        self._buffer = memoryview(bytearray(chunk_bytes))
        self._base = start
        self._have = 0

    def frames(self) -> Iterator[tuple[int, Fields]]:
        """Yield each valid frame in its place; set `stop` at the end."""
        try:
            yield from self._frames()
        except OSError as error:
            self.stop = Stop(Ending.UNREADABLE, self._base, str(error), error)

    def _frames(self) -> Iterator[tuple[int, Fields]]:
        buffer, file_number, salt = self._buffer, self._number, self._salt
        unpack, checksum_of = FRAME_HEADER.unpack_from, crc32c
        offset = 0
        while True:
            if self._have - offset < HEADER_BYTES:
                self._refill(self._base + offset)
                offset = 0
                if self._have < HEADER_BYTES:
                    return self._end(
                        offset, Ending.SHORT if any(buffer[: self._have]) else Ending.END
                    )
            fields: Fields = unpack(buffer, offset)
            checksum, length, payload_checksum = fields[1], fields[2], fields[3]
            body = offset + HEADER_BYTES
            if fields[0] != FRAME_MAGIC or checksum_of(buffer[offset + 8 : body], salt) != checksum:
                return self._end(offset, self._not_a_frame(offset), "frame header")
            if fields[7] != file_number or fields[11] != self.link or fields[4] not in KINDS:
                return self._end_misplaced(offset, fields)
            if fields[4] != ENTRY and length > limits.MARK_BYTES_MAX:
                return self._end(
                    offset, Ending.OUT_OF_PLACE, f"payload of {length} bytes in a mark"
                )
            if self._base + body + length > self._size:
                return self._end(offset, Ending.SHORT, "payload goes beyond the file")
            position, end = self._base + offset, body + length
            if end <= self._have:
                right = checksum_of(buffer[body:end]) == payload_checksum
                after = (end + 63) & -64
            elif fields[4] != ENTRY:
                self._refill(position)
                offset, body, end = 0, HEADER_BYTES, HEADER_BYTES + length
                right = checksum_of(buffer[body:end]) == payload_checksum
                after = (end + 63) & -64
            else:
                right, after = self._across_chunks(body, length, payload_checksum)
            if not right:
                self.stop = Stop(Ending.BAD_CHECKSUM, position, "payload")
                return None
            if fields[4] != ENTRY:
                self.payload = buffer[body:end]
            self.link = checksum << 32 | payload_checksum
            yield position, fields
            offset = after

    def _refill(self, position: int) -> None:
        self._base = position
        self._have = fill(self._file, self._buffer, position)

    def _across_chunks(self, body: int, length: int, payload_checksum: int) -> tuple[bool, int]:
        """Verify a payload that continues beyond the buffer.

        Return also where the next frame is in it.
        """
        checksum = crc32c(self._buffer[body : self._have])
        rest = length - (self._have - body)
        while True:
            self._refill(self._base + self._have)
            taken = min(rest, self._have)
            checksum = crc32c(self._buffer[:taken], checksum)
            rest -= taken
            if rest == 0 or taken == 0:
                return rest == 0 and checksum == payload_checksum, (taken + 63) & -64

    def _not_a_frame(self, offset: int) -> Ending:
        zero = self._buffer[offset : offset + ALIGN] == END_BLOCK
        return Ending.END if zero else Ending.BAD_CHECKSUM

    def _end_misplaced(self, offset: int, fields: Fields) -> None:
        if fields[7] < self._number:
            return self._end(offset, Ending.RESIDUE, f"frame of file {fields[7]}")
        if fields[7] > self._number:
            return self._end(offset, Ending.OUT_OF_PLACE, f"frame of file {fields[7]}")
        if fields[11] != self.link:
            return self._end(offset, Ending.OUT_OF_PLACE, "parent is not the frame before")
        return self._end(offset, Ending.OUT_OF_PLACE, f"unknown kind {fields[4]}")

    def _end(self, offset: int, ending: Ending, detail: str = "") -> None:
        self.stop = Stop(ending, self._base + offset, detail)


def later_headers(
    file: Readable, *, file_number: int, salt: int, start: int
) -> Iterator[tuple[int, FrameHeader]]:
    """Find valid frame headers of this file from `start` on, at any multiple of 64."""
    buffer = bytearray(limits.READ_CHUNK_BYTES)
    view = memoryview(buffer)
    position = (start + 63) & -64
    while (have := fill(file, view, position)) >= HEADER_BYTES:
        if not all_zero(buffer, have):
            for offset in _find_aligned(buffer, have):
                header = decode_header(view[offset : offset + HEADER_BYTES], salt)
                if header is not None and header.file_number == file_number:
                    yield position + offset, header
        position += have & -64


_ZEROS = bytes(limits.READ_CHUNK_BYTES)


def all_zero(buffer: bytearray, have: int) -> bool:
    """Return whether the first `have` bytes are zero, at the speed of memcmp."""
    if have == len(buffer) == len(_ZEROS):
        return buffer == _ZEROS
    return buffer[:have] == bytes(have)


def end_of_content(file: Readable, start: int) -> int:
    """Return the position behind the last byte that is not zero."""
    buffer = bytearray(limits.READ_CHUNK_BYTES)
    end, position = start, start
    while have := fill(file, memoryview(buffer), position):
        if not all_zero(buffer, have):
            end = position + len(buffer[:have].rstrip(b"\0"))
        position += have
    return end


def _find_aligned(buffer: bytearray, have: int) -> Iterator[int]:
    """Find the frame magic at multiples of 64."""
    offset = buffer.find(FRAME_MAGIC_BYTES, 0, have)
    while offset >= 0:
        if offset % ALIGN == 0 and offset + HEADER_BYTES <= have:
            yield offset
        offset = buffer.find(FRAME_MAGIC_BYTES, offset + 1, have)
