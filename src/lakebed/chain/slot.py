"""The format of a slot: one group of entries, or a fence, as one object of the store.

    head     magic 4, version 2, kind 1, reserved 1, log id 16, slot 8, term 8, owner's nonce 16,
             first index 8, digest of the slot before 16, entries 4, parts 4, body bytes 8,
             CRC32C 4 of head and tables (with this field zero)
    entries  for each: term 8, length 4, CRC32C of the payload 4, kind 1, reserved 7
    parts    for each: length 8, CRC32C 4, reserved 4
    padding  to a multiple of 64
    body     the payloads, each padded to a multiple of 64; absent if there are parts

Integers are little-endian. Entry i has index `first index` + i. A group whose body is large is
stored in parts: objects with a name used once, written before the slot that lists them.

A slot is valid if and only if its checksum is right, it has the log's id and the number of its
name, and every payload has its checksum. Its digest is the first 128 bits of SHA-256 over head and
tables. Payloads enter it through their checksums. A slot names the digest of the slot before it, so
two readers that accept the same slot have read the same history.

A fence is a slot without entries, whose term is its own number: it takes the log over from the
owner before. Fences are never removed.
"""

from __future__ import annotations

import enum
import hashlib
import struct
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import CorruptionError, ForeignFileError, FormatTooNewError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC: Final = b"LBSL"
VERSION: Final = 1
DIGEST_BYTES: Final = 16
NO_DIGEST: Final = bytes(DIGEST_BYTES)
"""The digest before the first slot."""

PART_BYTES: Final = 4 * limits.MIB
"""A larger body is stored in parts of this size."""

_HEAD: Final = struct.Struct("<4sHBx16sQQ16sQ16sIIQI")
_ENTRY: Final = struct.Struct("<QIIB7x")
_PART: Final = struct.Struct("<QI4x")
_ALIGNMENT: Final = 64
_COUNT_MAX: Final = 1 << 20


class SlotKind(enum.IntEnum):
    """What a slot is."""

    DATA = 1
    FENCE = 2


class SlotEntry(NamedTuple):
    """An entry of the log: its place is that of the group's first entry plus its position."""

    term: int
    kind: int
    length: int
    checksum: int


class SlotPart(NamedTuple):
    """A piece of a body that is a separate object."""

    length: int
    checksum: int


@dataclass(frozen=True)
class Slot:
    """A slot as it was read: everything but the payloads is verified."""

    number: int
    term: int
    kind: SlotKind
    nonce: bytes
    first_index: int
    previous: bytes
    entries: tuple[SlotEntry, ...]
    parts: tuple[SlotPart, ...]
    body_bytes: int
    digest: bytes
    body: memoryview
    """Empty if the body is in parts."""

    @property
    def last_index(self) -> int:
        """The index of the last entry; of an empty slot, that of the entry before it."""
        return self.first_index + len(self.entries) - 1


def slot_name(slot_number: int) -> str:
    """Return the name of a slot's object."""
    return f"wal/{slot_number:016x}"


def part_name(slot: Slot, position: int) -> str:
    """Return the name of a part's object, which no other part ever has."""
    checksum = slot.parts[position].checksum
    return f"parts/{slot.term:x}-{slot.nonce.hex()}-{slot.number:x}-{position}-{checksum:08x}"


class Encoded(NamedTuple):
    """A slot's object, its digest, and the objects of its parts, which are written first."""

    data: bytes
    digest: bytes
    parts: tuple[tuple[str, bytes], ...]
    slot: Slot


def encode_fence(
    log_id: uuid.UUID, slot_number: int, *, nonce: bytes, next_index: int, previous: bytes
) -> Encoded:
    """Build the fence of an owner, whose term is the fence's number."""
    kind = SlotKind.FENCE
    slot = Slot(
        slot_number, slot_number, kind, nonce, next_index, previous, (), (), 0, b"", memoryview(b"")
    )
    return _encode(log_id, slot, [])


def encode_data(
    log_id: uuid.UUID,
    slot_number: int,
    *,
    term: int,
    nonce: bytes,
    first_index: int,
    previous: bytes,
    entries: Sequence[tuple[SlotEntry, Sequence[Buffer]]],
    part_bytes: int = PART_BYTES,
) -> Encoded:
    """Build the slot of a group; the buffers of an entry are its payload."""
    pieces: list[Buffer] = []
    body_bytes = 0
    for entry, buffers in entries:
        pieces += buffers
        padding = -entry.length % _ALIGNMENT
        pieces.append(bytes(padding))
        body_bytes += entry.length + padding
    parts: tuple[SlotPart, ...] = ()
    cuts: list[bytes] = []
    if body_bytes > part_bytes:
        cuts = list(_cut(pieces, part_bytes))
        parts = tuple(SlotPart(len(cut), crc32c(cut)) for cut in cuts)
    slot = Slot(
        number=slot_number,
        term=term,
        kind=SlotKind.DATA,
        nonce=nonce,
        first_index=first_index,
        previous=previous,
        entries=tuple(entry for entry, _ in entries),
        parts=parts,
        body_bytes=body_bytes,
        digest=b"",
        body=memoryview(b""),
    )
    encoded = _encode(log_id, slot, [] if parts else pieces)
    names = [part_name(slot, position) for position in range(len(parts))]
    return encoded._replace(parts=tuple(zip(names, cuts, strict=True)))


def _cut(pieces: Sequence[Buffer], part_bytes: int) -> Iterator[bytes]:
    """Copy buffers together, once, into parts of a size; the last one may be shorter."""
    waiting: list[memoryview] = []
    size = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while size + len(view) >= part_bytes:
            taken = part_bytes - size
            yield b"".join((*waiting, view[:taken]))
            view, waiting, size = view[taken:], [], 0
        if view:
            waiting.append(view)
            size += len(view)
    if waiting:
        yield b"".join(waiting)


def _encode(log_id: uuid.UUID, slot: Slot, body: Sequence[Buffer]) -> Encoded:
    tables = b"".join(
        [
            *(
                _ENTRY.pack(entry.term, entry.length, entry.checksum, entry.kind)
                for entry in slot.entries
            ),
            *(_PART.pack(part.length, part.checksum) for part in slot.parts),
        ]
    )
    checksum = crc32c(tables, crc32c(_head(log_id, slot, 0)))
    top = _head(log_id, slot, checksum) + tables
    digest = hashlib.sha256(top).digest()[:DIGEST_BYTES]
    inline = slot.body_bytes and not slot.parts
    data = b"".join((top, bytes(-len(top) % _ALIGNMENT), *body)) if inline else top
    return Encoded(data, digest, (), slot)


def _head(log_id: uuid.UUID, slot: Slot, checksum: int) -> bytes:
    return _HEAD.pack(
        MAGIC,
        VERSION,
        slot.kind,
        log_id.bytes,
        slot.number,
        slot.term,
        slot.nonce,
        slot.first_index,
        slot.previous,
        len(slot.entries),
        len(slot.parts),
        slot.body_bytes,
        checksum,
    )


def decode_slot(data: bytes, log_id: uuid.UUID, slot_number: int) -> Slot:
    """Read a slot and verify all but its payloads; raise an error that names it."""
    facts = {"slot": slot_number, "name": slot_name(slot_number)}
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise CorruptionError("an object is not a slot of a log", **facts)
    (_, version, kind, log, slot, term, nonce, first, previous, count, parts, body, checksum) = (
        _HEAD.unpack_from(data)
    )
    if version != VERSION:
        raise FormatTooNewError("a slot has a newer format", version=version, **facts)
    end = _HEAD.size + count * _ENTRY.size + parts * _PART.size
    if max(count, parts) > _COUNT_MAX or end > len(data):
        raise CorruptionError("a slot is cut short", bytes=len(data), **facts)
    blank = data[: _HEAD.size - 4] + bytes(4)
    tables = data[_HEAD.size : end]
    if crc32c(tables, crc32c(blank)) != checksum or kind not in tuple(SlotKind):
        raise CorruptionError("a slot does not have its checksum", **facts)
    if log != log_id.bytes:
        raise ForeignFileError(
            "a slot belongs to another log", log=uuid.UUID(bytes=log), expected=log_id, **facts
        )
    if slot != slot_number:
        raise CorruptionError("a slot has the number of another", number=slot, **facts)
    table_end = count * _ENTRY.size
    start = end + (-end % _ALIGNMENT)
    inline = memoryview(data)[start:] if body and not parts else memoryview(b"")
    if not parts and len(inline) != body:
        raise CorruptionError("a slot is cut short", bytes=len(data), **facts)
    return Slot(
        number=slot,
        term=term,
        kind=SlotKind(kind),
        nonce=nonce,
        first_index=first,
        previous=previous,
        entries=tuple(
            SlotEntry(of, what, length, check)
            for of, length, check, what in _ENTRY.iter_unpack(tables[:table_end])
        ),
        parts=tuple(SlotPart(*values) for values in _PART.iter_unpack(tables[table_end:])),
        body_bytes=body,
        digest=hashlib.sha256(data[:end]).digest()[:DIGEST_BYTES],
        body=inline,
    )


def payloads(slot: Slot, body: memoryview) -> Iterator[tuple[int, SlotEntry, memoryview]]:
    """Return index, entry and payload of each entry, each payload verified."""
    position = 0
    for index, entry in enumerate(slot.entries):
        payload = body[position : position + entry.length]
        if len(payload) != entry.length or crc32c(payload) != entry.checksum:
            raise CorruptionError(
                "an entry of a slot does not have its checksum",
                slot=slot.number,
                index=slot.first_index + index,
            )
        yield slot.first_index + index, entry, payload
        position += entry.length + (-entry.length % _ALIGNMENT)
