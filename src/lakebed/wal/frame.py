r"""The format of a WAL file: a header, then frames. This text is its specification.

All numbers are little endian. Everything starts at a multiple of 64 bytes, so that Arrow buffers in
a payload can be used straight from a memory map.

File header, 64 bytes:

    0   magic          8 bytes   "LAKEWAL\n"
    8   version        u32       1; these 64 bytes keep their place in every later version
    12  checksum       u32       CRC32C of the other 60 bytes
    16  file number    u32       1, 2, 3 …, never used twice in a log
    20  capacity       u32       the length it was made with, in 4096 bytes; it never shrinks
    24  log identity   16 bytes  a random UUID, the same in every file of a log
    40  first index    u64       the index the first entry in this file would get
    48  parent         u64       link (below) of the last frame of the file before; 0 in file 1
    56  time           u64       when the file was taken into use, microseconds since 1970

Frame, a header of 64 bytes, the payload, and zeros up to the next multiple of 64:

    0   magic           u32   0x4D41454C
    4   header checksum u32   CRC32C of bytes 8 to 63, started from the CRC32C of the log identity
    8   payload length  u32
    12  payload check   u32   CRC32C of the payload
    16  kind            u8    1 entry, 2 hard state, 3 truncate, 4 release, 5 idle, 6 gap
    17  flags           u8    entry: 1 = configuration; release: 1 = reset
    18  reserved        u16   0
    20  file number     u32   of the file this frame was written into
    24  index           u64   see below
    32  term            u64
    40  durable through u64   how many bytes of this file were synced when this was written
    48  parent          u64   link of the frame before; in a file's first, the file header's parent
    56  time            u64   microseconds since 1970

The link of a frame is its header checksum shifted left by 32 bits, plus its payload checksum: a
hash chain over the whole log.

Kinds, what their index means, and their payload:

    entry       the entry's own index       the caller's bytes
    hard state  the last index              term u64, voted u8, vote u64
    truncate    the last index that stays   none: every entry above it is void
    release     the index released          the caller's note: all up to here is held elsewhere.
                                            With the reset flag, all entries are void and the log
                                            continues after this index
    idle        the last index              none: nothing was being written
    gap         the last index lost         first index lost u64: `salvage` could not save these

A file ends where 64 zero bytes are in place of a frame header, or where the file ends. Each write
ends with such a block, which the next write replaces: a recycled file holds old bytes behind it.

A frame is valid if and only if: its magic and header checksum are right; its payload fits the file;
its payload checksum is right. It is *in place* if also its file number is the file's, its parent is
the link of the frame before, and its index follows. A valid frame with a lower file number is
residue of a recycled file and means no more than zeros would.

`durable through` is what tells a torn write from damage: if a frame is bad and a valid one of the
same file says that the bad one's bytes had been synced, they were damaged later. The header
checksum starts from the log's identity, so that frames of other logs, also inside a payload, are
never taken for ours.

The first frames of each file repeat the hard state and the last release, if there are any: freeing
the files before loses neither.
"""

from __future__ import annotations

import enum
import struct
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import CorruptionError, FormatTooNewError
from lakebed.types import HardState

if TYPE_CHECKING:
    from typing_extensions import Buffer

ALIGN: Final = 64
HEADER_BYTES: Final = 64
FILE_MAGIC: Final = b"LAKEWAL\n"
FILE_VERSION: Final = 1
CAPACITY_UNIT: Final = 4096
FRAME_MAGIC: Final = 0x4D41454C
FRAME_MAGIC_BYTES: Final = struct.pack("<I", FRAME_MAGIC)
END_BLOCK: Final = bytes(ALIGN)

FLAG_CONFIGURATION: Final = 1
FLAG_RESET: Final = 1

FILE_HEADER: Final = struct.Struct("<8sIIII16sQQQ")
FRAME_HEADER: Final = struct.Struct("<IIIIBBHIQQQQQ")
FRAME_PREFIX: Final = struct.Struct("<II")
FRAME_BODY: Final = struct.Struct("<IIBBHIQQQQQ")
_HARD_STATE: Final = struct.Struct("<QBQ")
_GAP: Final = struct.Struct("<Q")


class FrameKind(enum.IntEnum):
    """What a frame says."""

    ENTRY = 1
    HARD_STATE = 2
    TRUNCATE = 3
    RELEASE = 4
    IDLE = 5
    GAP = 6


ENTRY: Final = int(FrameKind.ENTRY)
KINDS: Final = frozenset(int(kind) for kind in FrameKind)


class FrameHeader(NamedTuple):
    """The fields of a frame header, in their order on disk."""

    magic: int
    checksum: int
    length: int
    payload_checksum: int
    kind: int
    flags: int
    reserved: int
    file_number: int
    index: int  # type: ignore[assignment]  # as in Entry
    term: int
    durable_through: int
    parent: int
    time_us: int

    @property
    def link(self) -> int:
        """Return what the next frame must name as its parent."""
        return self.checksum << 32 | self.payload_checksum

    @property
    def span(self) -> int:
        """Return the bytes the frame takes, padding included."""
        return HEADER_BYTES + round_up(self.length)


def round_up(length: int) -> int:
    """Round a length up to the next multiple of 64."""
    return (length + 63) & ~63


def padding(length: int) -> bytes:
    """Return the zeros that follow a payload of this length."""
    return bytes(-length & 63)


def salt_of(log_id: uuid.UUID) -> int:
    """Return the value that a log's header checksums start from."""
    return crc32c(log_id.bytes)


def decode_header(data: Buffer, salt: int) -> FrameHeader | None:
    """Return the header in these 64 bytes, or None if they are not one of this log."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return None
    header = FrameHeader._make(FRAME_HEADER.unpack_from(view))
    if header.magic != FRAME_MAGIC or crc32c(view[8:HEADER_BYTES], salt) != header.checksum:
        return None
    return header


@dataclass(frozen=True)
class FileHeader:
    """The first 64 bytes of a WAL file."""

    number: int
    capacity_bytes: int
    log_id: uuid.UUID
    first_index: int
    parent: int
    time_us: int

    def encode(self) -> bytes:
        """Return the 64 bytes."""
        checksum = crc32c(self._pack(0)[16:], crc32c(self._pack(0)[:12]))
        return self._pack(checksum)

    def _pack(self, checksum: int) -> bytes:
        return FILE_HEADER.pack(
            FILE_MAGIC,
            FILE_VERSION,
            checksum,
            self.number,
            self.capacity_bytes // CAPACITY_UNIT,
            self.log_id.bytes,
            self.first_index,
            self.parent,
            self.time_us,
        )


def decode_file_header(data: bytes, name: object) -> FileHeader:
    """Return the file header in these bytes; raise what is wrong with them, naming the file."""
    if len(data) < HEADER_BYTES:
        raise CorruptionError("the file is shorter than its header", file=name, byte=len(data))
    magic, version, checksum, file_number, units, log_id, first_index, parent, time_us = (
        FILE_HEADER.unpack_from(data)
    )
    if crc32c(data[16:HEADER_BYTES], crc32c(data[:12])) != checksum or magic != FILE_MAGIC:
        raise CorruptionError("the file header is damaged", file=name, byte=0)
    if version != FILE_VERSION:
        raise FormatTooNewError(
            "the file has a newer format", file=name, version=version, supported=FILE_VERSION
        )
    if not file_number or not 0 < first_index <= limits.INDEX_MAX:
        raise CorruptionError("the file header is not of its format", file=name, byte=0)
    return FileHeader(
        file_number, units * CAPACITY_UNIT, uuid.UUID(bytes=log_id), first_index, parent, time_us
    )


def encode_hard_state(state: HardState) -> bytes:
    """Return the payload of a hard state frame."""
    return _HARD_STATE.pack(state.term, state.vote is not None, state.vote or 0)


def decode_hard_state(payload: Buffer) -> HardState:
    """Return the hard state in a payload whose checksum was right."""
    try:
        term, voted, vote = _HARD_STATE.unpack(payload)
    except struct.error as error:
        raise CorruptionError("a hard state frame is not of its format") from error
    return HardState(term, vote if voted else None)


def encode_gap(first_index: int) -> bytes:
    """Return the payload of a gap frame."""
    return _GAP.pack(first_index)


def decode_gap(payload: Buffer) -> int:
    """Return the first index that a gap frame says is lost."""
    try:
        (first_index,) = _GAP.unpack(payload)
    except struct.error as error:
        raise CorruptionError("a gap frame is not of its format") from error
    return int(first_index)
