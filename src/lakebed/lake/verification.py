"""Checks a segment against everything that is known about it, reading every byte from the disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from lakebed import limits
from lakebed.errors import CorruptionError, from_os_error
from lakebed.host import Disk, File, fill
from lakebed.lake.columns import ascending, column_numbers
from lakebed.lake.open_segment import (
    OpenSegment,
    check_size,
    chunk_damage_error,
    open_file,
    open_segment,
)
from lakebed.lake.schema import COLUMNS
from lakebed.lake.segment_index import MAGIC, RowGroup
from lakebed.state.values import Segment


def verify_segment(disk: Disk, path: Path, partition: int, segment: Segment) -> None:
    """Return if every checksum, count, offset, partition and timestamp is right; raise otherwise.

    Bytes are read by position first: a sector that cannot be read is an error that way, where a
    memory map would end the process.
    """
    file = open_file(disk, path)
    try:
        check_size(path, segment, file.size())
        file.drop_cache()  # what counts is what the device holds
        _check_ends(file, segment)
        opened = open_segment(disk, path, segment)
        _check_chunks(file, opened)
    except OSError as error:
        raise from_os_error(error, "reading a segment", path) from error
    finally:
        file.close()
    _check_records(opened, partition, segment)


def _check_ends(file: File, segment: Segment) -> None:
    tail = segment.file_bytes - segment.tail_bytes
    if _checksum(file, 0, len(MAGIC)) != crc32c(MAGIC):
        raise CorruptionError("a segment's first bytes are damaged", path=file.path, byte=0)
    if _checksum(file, tail, segment.tail_bytes) != segment.tail_checksum:
        raise CorruptionError(
            "a segment's tail is damaged", path=file.path, byte=tail, length=segment.tail_bytes
        )


def _check_chunks(file: File, opened: OpenSegment) -> None:
    for row_group, group in enumerate(opened.index.row_groups):
        for leaf, (start, length, checksum) in enumerate(group.chunks):
            if _checksum(file, start, length) != checksum:
                raise chunk_damage_error(file.path, start, length, opened.leaves[leaf], row_group)


def _checksum(file: File, start: int, length: int) -> int:
    """Return the checksum of bytes of the file, as far as it goes."""
    buffer = memoryview(bytearray(min(length, limits.READ_CHUNK_BYTES)))
    checksum = done = 0
    while done < length:
        count = fill(file, buffer[: length - done], start + done)
        if not count:
            break
        checksum = crc32c(buffer[:count], checksum)
        done += count
    return checksum


def _check_records(opened: OpenSegment, partition: int, segment: Segment) -> None:
    after = segment.base
    for row_group, group in enumerate(opened.index.row_groups):
        batch = opened.batch(opened.columns(row_group, COLUMNS))
        wrong = _wrong(batch, group, partition, after, segment)
        if wrong is not None:
            raise CorruptionError(
                "a segment's records are not what its index says",
                path=opened.path,
                byte=group.chunks[0].start,
                row_group=row_group,
                column=wrong,
            )
        after = group.last + 1
    _check_times(opened, segment)


def _wrong(
    batch: pa.RecordBatch, group: RowGroup, partition: int, after: int, segment: Segment
) -> str | None:
    """Name the column of a row group that is not as it should be."""
    if any(batch.column(name).null_count for name in COLUMNS[:3]):
        return "partition, offset or timestamp"
    if (column_numbers(batch, "partition") != partition).any():
        return "partition"
    offsets = column_numbers(batch, "offset")
    ends = (int(offsets[0]), int(offsets[-1]))
    if ends != (group.first, group.last) or group.first < after or group.last >= segment.end:
        return "offset"
    if not ascending(offsets):
        return "offset"
    times = column_numbers(batch, "timestamp")
    if (int(times.min()), int(times.max())) != (group.time_min_us, group.time_max_us):
        return "timestamp"
    batch.validate(full=True)
    return None


def _check_times(opened: OpenSegment, segment: Segment) -> None:
    groups = opened.index.row_groups
    least = min((group.time_min_us for group in groups), default=0)
    greatest = max((group.time_max_us for group in groups), default=0)
    if (least, greatest) != (segment.time_min_us, segment.time_max_us):
        raise CorruptionError(
            "a segment's times are not what the log says",
            path=opened.path,
            found=f"{least}..{greatest}",
            expected=f"{segment.time_min_us}..{segment.time_max_us}",
        )
