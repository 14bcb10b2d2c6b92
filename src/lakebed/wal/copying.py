"""Writing a log again, frame by frame, with indexes, terms and times as they were.

The frames are encoded and the files made by the same `Appender` that writes a log in use. Only an
entry too large to be held in memory is written here, a piece at a time. Nothing is synced before a
file is full: the copy counts for nothing until it is whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import DeviceError
from lakebed.host import Disk, write_all
from lakebed.reports.wal import Counters
from lakebed.types import HardState
from lakebed.wal.appender import Appender, NoRoomError, Tail, mark_request
from lakebed.wal.folder import Layout
from lakebed.wal.frame import (
    END_BLOCK,
    ENTRY,
    FRAME_BODY,
    FRAME_MAGIC,
    FRAME_PREFIX,
    HEADER_BYTES,
    FrameKind,
    padding,
    salt_of,
)
from lakebed.wal.recovery import Mark
from lakebed.wal.request import Request
from lakebed.wal.scan import Fields
from lakebed.wal.spares import Spares

HELD_BYTES_MAX: Final = limits.MIB
"""Frames are collected up to this before they are written; a larger entry is never held whole."""


class _FrameClock:
    """Tells the time of the frame that is being copied."""

    def __init__(self) -> None:
        self.now_us = 0

    def time_us(self) -> int:
        return self.now_us

    def monotonic(self) -> float:
        return 0.0


class Copy:
    """A log that is being written. `finish` makes it durable; `close` gives up what is open."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        log_id: uuid.UUID,
        *,
        file_bytes: int,
        time_us: int,
        start: Mark | None = None,
    ) -> None:
        self._clock = _FrameClock()
        self._clock.now_us = time_us
        self._salt = salt_of(log_id)
        counters = Counters()
        spares = Spares(disk, layout, counters, file_bytes=file_bytes, count=0, threaded=False)
        self._appender = Appender(
            disk=disk,
            layout=layout,
            log_id=log_id,
            spares=spares,
            counters=counters,
            clock=self._clock,
        )
        self._group: list[Request] = []
        self._group_bytes = 0
        self.size_bytes = 0
        """The length of the files that are full."""
        self._tail = self._first_file(start or Mark())

    def _first_file(self, start: Mark) -> Tail:
        """Make the first file, of a log that continues after what `start` releases."""
        try:
            return self._appender.start_file(
                file_number=1,
                span_bytes=0,
                link=0,
                last_index=start.index,
                last_term=start.term,
                hard_state=HardState(),
                mark=start,
            )
        except NoRoomError as error:
            raise error.cause from error

    @property
    def files(self) -> int:
        """Count the files."""
        return self._tail.number

    def put(self, request: Request, time_us: int) -> None:
        """Write a frame that fits into memory. Frames of one moment are written together."""
        if time_us != self._clock.now_us or self._group_bytes + request.span > HELD_BYTES_MAX:
            self._flush()
        if not self._appender.has_room(self._tail, self._group_bytes + request.span):
            self._make_room(request.span)
        self._clock.now_us = time_us
        self._group.append(request)
        self._group_bytes += request.span

    def put_large(self, fields: Fields, chunks: Iterator[memoryview]) -> None:
        """Write an entry whose payload comes in pieces.

        Its header is written last, so that an entry cut short is not one.
        """
        length, index, term, time_us = fields[2], fields[8], fields[9], fields[12]
        span = HEADER_BYTES + length + len(padding(length))
        self._make_room(span)
        tail = self._tail
        assert index == tail.last_index + 1, "an entry is copied to where it belongs"  # noqa: S101
        self._write_payload(tail.position + HEADER_BYTES, fields, chunks)
        body = FRAME_BODY.pack(
            length,
            fields[3],
            ENTRY,
            fields[5],
            0,
            tail.number,
            index,
            term,
            tail.synced,
            tail.link,
            time_us,
        )
        checksum = crc32c(body, self._salt)
        write_all(
            tail.file, [FRAME_PREFIX.pack(FRAME_MAGIC, checksum), body], tail.position, HEADER_BYTES
        )
        self._tail = tail._replace(
            position=tail.position + span,
            link=checksum << 32 | fields[3],
            last_index=index,
            last_term=term,
            idle=False,
        )

    def _write_payload(self, position: int, fields: Fields, chunks: Iterator[memoryview]) -> None:
        start, checksum = position, 0
        for chunk in chunks:
            checksum = crc32c(chunk, checksum)
            write_all(self._tail.file, [chunk], position, len(chunk))
            position += len(chunk)
        check_unchanged(fields, length=position - start, checksum=checksum)
        end = padding(fields[2]) + END_BLOCK
        write_all(self._tail.file, [end], position, len(end))

    def finish(self) -> None:
        """Write the end of the log and sync it."""
        self._flush()
        mark = mark_request(FrameKind.IDLE)
        if not self._appender.has_room(self._tail, mark.span):
            self._make_room(mark.span)
        # Synced before the mark is written, which says so: damage is then told from a torn write.
        self._tail = self._appender.sync(self._tail)
        self._tail = self._appender.write(self._tail, [mark], sync=True)
        self._tail.file.sync()
        self.size_bytes += self._tail.size

    def close(self) -> None:
        """Close the file that is open, and its folder."""
        self._tail.file.close()
        self._appender.close()

    def _make_room(self, span: int) -> None:
        """Write what is held; take a new file into use if the next frame does not fit this one."""
        self._flush()
        if self._appender.has_room(self._tail, span):
            return
        full = self._tail
        try:
            self._tail = self._appender.rotate(full, span)
        except NoRoomError as error:
            raise error.cause from error
        full.file.close()
        self.size_bytes += full.size

    def _flush(self) -> None:
        if self._group:
            self._tail = self._appender.write(self._tail, self._group, sync=False)
            self._group, self._group_bytes = [], 0


def check_unchanged(fields: Fields, *, length: int, checksum: int) -> None:
    """Refuse a payload that is no longer what it was when its checksum was verified."""
    if length != fields[2] or checksum != fields[3]:
        raise DeviceError(
            "a payload changed between two reads", file=fields[7], index=fields[8], bytes=fields[2]
        )
