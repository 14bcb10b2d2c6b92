"""Reading a log whose files may be damaged: every readable frame, and what lies between them.

Where `recovery.survey` stops at the first bad thing, a `FileWalk` continues: it looks for the next
valid frame of the same file and resumes there. Nothing is taken for a frame whose header and
payload checksums are not right, and nothing is changed. Memory is bounded whatever a file's size.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import CorruptionError
from lakebed.host import Disk, File, Mode, Readable, fill, read_exactly
from lakebed.wal.folder import Layout, file_numbers, read_identity, read_kind
from lakebed.wal.frame import (
    END_BLOCK,
    ENTRY,
    HEADER_BYTES,
    KINDS,
    FileHeader,
    FrameHeader,
    decode_file_header,
    decode_header,
)
from lakebed.wal.scan import Ending, Fields, FileScan, Stop, later_headers

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCK_BYTES: Final = 4096
"""What is given up for one unreadable sector."""


_LINKS_MAX: Final = 65_536
"""How many frames are remembered that say the same of what is synced: many group commits."""


class Forgiving:
    """A file whose unreadable blocks read as zeros, so that what surrounds them can be had."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()
        self._unreadable: set[int] = set()

    def size(self) -> int:
        """Return the file's length when it was opened."""
        return self._size

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Read; if the device fails, read to the end of the block, or put zeros for it."""
        try:
            return self._file.read_into(buffer, position)
        except OSError:
            view = memoryview(buffer).cast("B")[: _BLOCK_BYTES - position % _BLOCK_BYTES]
        try:
            return self._file.read_into(view, position)
        except OSError:
            self._unreadable.add(position // _BLOCK_BYTES)
            length = max(0, min(len(view), self._size - position))
            view[:length] = bytes(length)
            return length

    def has_failed(self, start: int, end: int) -> bool:
        """Return whether the device failed to read any of these bytes."""
        return any(
            start < (block + 1) * _BLOCK_BYTES and block * _BLOCK_BYTES < end
            for block in self._unreadable
        )


class Frame(NamedTuple):
    """A valid frame. `payload` is that of a frame that is not an entry, until the next piece."""

    position: int
    fields: Fields
    payload: memoryview


class Damaged(NamedTuple):
    """Bytes that are not what was written; none, up to `end`, where something is missing."""

    position: int
    reason: str
    end: int
    header: FrameHeader | None = None
    """The frame's header, if that is right and only the payload is damaged."""


class Torn(NamedTuple):
    """A write that was cut short; nothing from here on was ever acknowledged as synced."""

    position: int
    reason: str


Piece: TypeAlias = Frame | Damaged | Torn


class FileWalk:
    """One pass over what is readable of a file.

    `parent` is the link that the first frame should name, or None if it is not known.
    `torn_allowed`: damage at the end that no later frame proves is a write cut short by a crash.
    """

    def __init__(
        self,
        file: Forgiving,
        *,
        file_number: int,
        salt: int,
        parent: int | None,
        torn_allowed: bool,
    ) -> None:
        self._file = file
        self._number = file_number
        self._salt = salt
        self._torn_allowed = torn_allowed
        self._durable = 0
        self._links: set[int] = set()
        self._proof: int | None = None
        self._resumed = -1
        self.link = self._first_parent() if parent is None else parent
        """The link of the last frame."""
        self.end = HEADER_BYTES
        """Where the frames end."""

    def _first_parent(self) -> int:
        header = self._header_at(HEADER_BYTES)
        return header.parent if header is not None else 0

    def pieces(self) -> Iterator[Piece]:
        """Yield frames and what is between them, in the order of the file."""
        start: int | None = HEADER_BYTES
        while start is not None:
            scan = FileScan(
                self._file, file_number=self._number, salt=self._salt, parent=self.link, start=start
            )
            for position, fields in scan.frames():
                self._note_synced(fields[10])
                if len(self._links) < _LINKS_MAX:
                    self._links.add(fields[1] << 32 | fields[3])
                yield Frame(position, fields, scan.payload)
            self.link, self.end = scan.link, scan.stop.position
            piece, start = self._after(scan.stop)
            if piece is not None:
                yield piece

    def _after(self, stop: Stop) -> tuple[Piece | None, int | None]:
        """Return what is where a scan stopped, and where to continue, if anywhere."""
        position, reason = stop.position, _reason(stop)
        if stop.ending is Ending.END and self._has_end_block(position):
            if not any(True for _ in self._headers(position + 1)):
                return None, None
            reason = "zeros before the end"
        if self._has_grown(position):
            return None, position
        if self._is_torn(stop):
            return Torn(position, reason), None
        header = self._header_at(position) if stop.detail == "payload" else None
        if header is not None and self._is_followed(position, header):
            self._note_synced(header.durable_through)
            self.link, end = header.link, position + header.span
            return self._damage(position, end, reason, header), end
        resume, header = self._next_good(position)
        if header is None:
            return self._damage(position, self._file.size(), reason), None
        self.link, self._resumed = header.parent, resume
        return self._damage(position, resume, reason), resume

    def _has_grown(self, position: int) -> bool:
        """Return whether a living process wrote the next frame here since the scan looked."""
        header = self._header_at(position)
        if header is None or header.parent != self.link:
            return False
        return self._plausible(position, header) and self._payload_right(position, header)

    def _note_synced(self, durable: int) -> None:
        """Note how far the file was synced; frames that say less are not looked for any more."""
        if durable != self._durable:
            self._durable = durable
            self._links.clear()

    def _is_torn(self, stop: Stop) -> bool:
        """Decide as `recovery.decide` does.

        But what goes beyond the end of the file was cut off: a file never shrinks.
        """
        cut_off = stop.ending is Ending.END and not self._has_end_block(stop.position)
        if cut_off or stop.ending in (Ending.SHORT, Ending.OUT_OF_PLACE):
            return False
        return self._torn_allowed and self._proven_through(stop.position) <= stop.position

    def _damage(
        self, start: int, end: int, reason: str, header: FrameHeader | None = None
    ) -> Damaged:
        end = max(start, min(end, self._file.size()))
        failed = self._file.has_failed(start, end)
        return Damaged(start, "the device cannot read it" if failed else reason, end, header)

    def _has_end_block(self, position: int) -> bool:
        """Return whether the zeros that end a file are complete, not cut off."""
        whole = position + HEADER_BYTES <= self._file.size()
        return whole and not self._file.has_failed(position, position + HEADER_BYTES)

    def _is_followed(self, position: int, header: FrameHeader) -> bool:
        """Return whether the file continues or ends where a frame with a damaged payload says."""
        end = position + header.span
        following = self._header_at(end)
        if following is not None:
            return following.parent == header.link
        return read_exactly(self._file, end, HEADER_BYTES) == END_BLOCK

    def _headers(self, start: int) -> Iterator[tuple[int, FrameHeader]]:
        return later_headers(self._file, file_number=self._number, salt=self._salt, start=start)

    def _header_at(self, position: int) -> FrameHeader | None:
        header = decode_header(read_exactly(self._file, position, HEADER_BYTES), self._salt)
        return header if header is not None and header.file_number == self._number else None

    def _proven_through(self, position: int) -> int:
        """Return how far the file was synced, as the frames behind its first damage say."""
        if self._proof is None:
            headers = self._headers(position + 1)
            self._proof = max((header.durable_through for _, header in headers), default=0)
        return self._proof

    def _next_good(self, start: int) -> tuple[int, FrameHeader | None]:
        """Find the next frame whose header and payload are right, at `start` or behind it."""
        if start == self._resumed:
            start += HEADER_BYTES
        for position, header in self._headers(start):
            if self._plausible(position, header) and self._payload_right(position, header):
                return position, header
        return start, None

    def _plausible(self, position: int, header: FrameHeader) -> bool:
        """Return whether a frame can have been written here.

        How far a file is synced never falls and never goes beyond the frame that says it, and no
        frame is there twice. So a copy of an older frame, inside a payload whose own header is
        damaged or where a write went astray, is not taken for a frame.
        """
        if header.kind not in KINDS or position + HEADER_BYTES + header.length > self._file.size():
            return False
        if header.kind != ENTRY and header.length > limits.MARK_BYTES_MAX:
            return False
        if header.link in self._links:
            return False
        return self._durable <= header.durable_through <= position

    def _payload_right(self, position: int, header: FrameHeader) -> bool:
        checksum = 0
        for chunk in payload_chunks(self._file, position, header.length):
            checksum = crc32c(chunk, checksum)
        return checksum == header.payload_checksum


def _reason(stop: Stop) -> str:
    if stop.ending is Ending.END:
        return "the file ends without an end block"
    return f"{stop.ending.value}: {stop.detail}" if stop.detail else stop.ending.value


def payload_chunks(file: Readable, position: int, length: int) -> Iterator[memoryview]:
    """Yield the payload of the frame at `position`, at most a megabyte at a time."""
    view = memoryview(bytearray(min(length, limits.READ_CHUNK_BYTES)))
    offset, end = position + HEADER_BYTES, position + HEADER_BYTES + length
    while offset < end and (have := fill(file, view[: end - offset], offset)):
        yield view[:have]
        offset += have


@dataclass(frozen=True)
class FoundFile:
    """A WAL file as it was found. `header` is None if it is damaged, and `problem` says how."""

    number: int
    path: Path
    size_bytes: int
    header: FileHeader | None
    problem: str = ""

    @property
    def cut_short(self) -> bool:
        """Return whether the file is shorter than it was made."""
        return self.header is not None and self.size_bytes < self.header.capacity_bytes


@dataclass(frozen=True)
class FoundLog:
    """The files of a log as they were found."""

    log_id: uuid.UUID | None
    """None if neither the identity file nor any file header can be read."""
    files: list[FoundFile]
    foreign: list[FoundFile]
    """Files that are not of this log, or a second file of a number; `problem` says which."""
    kind: str | None = None
    """What the identity file says of the kind of log, if it does."""


def find_files(disk: Disk, layout: Layout) -> FoundLog:
    """Look at every WAL file's header. Raises `OSError`, and `FormatTooNewError` of any of them."""
    files_found = []
    for file_number in file_numbers(disk, layout):
        try:
            files_found.append(_examine_file(disk, layout, file_number))
        except FileNotFoundError:
            continue  # a name that leads nowhere is a file that is missing
    identity, kind = _identity(disk, layout)
    log_id = identity or _most_common_id(files_found)
    foreign = [
        replace(file, problem=f"belongs to log {file.header.log_id}")
        for file in files_found
        if file.header is not None and file.header.log_id != log_id
    ]
    ours = [file for file in files_found if file.header is None or file.header.log_id == log_id]
    files: dict[int, FoundFile] = {}
    for file in sorted(ours, key=lambda candidate: candidate.path != layout.file(candidate.number)):
        if file.number in files:
            foreign.append(replace(file, problem=f"is a second file of number {file.number}"))
        elif file.path != layout.file(file.number):
            files[file.number] = replace(file, problem=f"its name is not of number {file.number}")
        else:
            files[file.number] = file
    return FoundLog(log_id, sorted(files.values(), key=lambda file: file.number), foreign, kind)


def _examine_file(disk: Disk, layout: Layout, file_number: int) -> FoundFile:
    path = layout.file(file_number)
    file = disk.open(path, Mode.READ)
    try:
        readable = Forgiving(file)
        size = readable.size()
        header = decode_file_header(read_exactly(readable, 0, HEADER_BYTES), path)
    except CorruptionError as error:
        return FoundFile(file_number, path, size, None, error.message)
    finally:
        file.close()
    return FoundFile(header.number, path, size, header)


def _identity(disk: Disk, layout: Layout) -> tuple[uuid.UUID | None, str | None]:
    try:
        return read_identity(disk, layout), read_kind(disk, layout)
    except OSError:
        return (
            None,
            None,
        )  # an unreadable identity file is a missing one: the file headers have it too


def _most_common_id(files: list[FoundFile]) -> uuid.UUID | None:
    counted = Counter(file.header.log_id for file in files if file.header is not None)
    return counted.most_common(1)[0][0] if counted else None
