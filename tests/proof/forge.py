"""Frames and files that are not what was written, with their checksums made right again."""

from __future__ import annotations

from crc32c import crc32c

from lakebed.wal.frame import (
    FILE_HEADER,
    FRAME_HEADER,
    FRAME_MAGIC,
    HEADER_BYTES,
    FrameHeader,
)


def sealed_header(header: FrameHeader, salt: int) -> bytes:
    """Return a frame header with the checksum its fields call for."""
    packed = FRAME_HEADER.pack(*header)
    return FRAME_HEADER.pack(*header._replace(checksum=crc32c(packed[8:], salt)))


def forged(data: bytes, position: int, salt: int, **fields: int) -> bytes:
    """Change fields of the frame at `position`, so that its header checksum is right."""
    header = FrameHeader._make(FRAME_HEADER.unpack_from(data, position))._replace(**fields)
    end = position + HEADER_BYTES
    return data[:position] + sealed_header(header, salt) + data[end:]


def forged_file_header(data: bytes, **fields: object) -> bytes:
    """Change fields of a file header, so that its checksum is right."""
    names = ["magic", "version", "checksum", "number", "units", "log_id", "first_index"]
    values = dict(zip([*names, "parent", "time_us"], FILE_HEADER.unpack_from(data), strict=True))
    values |= fields
    packed = FILE_HEADER.pack(*values.values())
    values["checksum"] = crc32c(packed[16:], crc32c(packed[:12]))
    return FILE_HEADER.pack(*values.values()) + data[HEADER_BYTES:]


def rechained(data: bytes, salt: int) -> bytes:
    """Make each frame name the one before as its parent, as far as frames follow each other."""
    changed = bytearray(data)
    parent: int = FILE_HEADER.unpack_from(changed)[7]
    position = HEADER_BYTES
    while position + HEADER_BYTES <= len(changed):
        header = FrameHeader._make(FRAME_HEADER.unpack_from(changed, position))
        if header.magic != FRAME_MAGIC:
            break
        sealed = sealed_header(header._replace(parent=parent), salt)
        changed[position : position + HEADER_BYTES] = sealed
        parent = FrameHeader._make(FRAME_HEADER.unpack(sealed)).link
        position += header.span
    return bytes(changed)
