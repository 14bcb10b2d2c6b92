"""The end of the log on disk: encodes groups of frames, writes, syncs, takes new files into use.

All that changes is one immutable `Tail`, replaced in a single assignment after the disk has
confirmed. An attempt that was interrupted before (by Ctrl-C in the thread that led the commit) can
therefore be made again from the start: it writes the same bytes to the same place.

Order of syncs in a rotation, and why:

1. sync the old file: a later file proves that this one is whole
2. write header, carried frames and end block into a spare file, and sync it: a file with a WAL name
   has a valid header
3. rename it to its WAL name, sync the folder: the name survives before anything in the file is
   acknowledged
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import DiskFullError, LakebedError, from_os_error
from lakebed.host import Clock, Disk, File, failpoints, write_all
from lakebed.reports.wal import Counters
from lakebed.types import HardState
from lakebed.wal.folder import Layout
from lakebed.wal.frame import (
    END_BLOCK,
    ENTRY,
    FLAG_RESET,
    FRAME_BODY,
    FRAME_MAGIC,
    FRAME_PREFIX,
    HEADER_BYTES,
    FileHeader,
    FrameKind,
    encode_hard_state,
    salt_of,
)
from lakebed.wal.recovery import Mark
from lakebed.wal.request import Request, join_small
from lakebed.wal.spares import Spares

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BEFORE_WRITE = failpoints.define("wal.group.before_write")
_WRITTEN = failpoints.define("wal.group.written")
_SYNCED = failpoints.define("wal.group.synced")
_OLD_SYNCED = failpoints.define("wal.rotate.old_synced")
_HEADER_WRITTEN = failpoints.define("wal.rotate.header_written")
_HEADER_SYNCED = failpoints.define("wal.rotate.header_synced")
_RENAMED = failpoints.define("wal.rotate.renamed")
_FOLDER_SYNCED = failpoints.define("wal.rotate.folder_synced")


_JOIN_ABOVE: Final = 16
"""A group of more buffers than this has its small ones copied together."""


class Tail(NamedTuple):
    """Where the log ends, on disk and logically."""

    file: File
    number: int
    size: int
    """The file's length; writing never goes beyond it."""
    position: int
    """Where the next frame goes."""
    synced: int
    """How many bytes of the file are known to be synced."""
    link: int
    last_index: int
    last_term: int
    hard_state: HardState
    mark: Mark
    idle: bool
    """The last frame is an idle mark."""


class NoRoomError(Exception):
    """No file could be had for the next group; nothing was written. `cause` says why."""

    def __init__(self, cause: LakebedError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Appender:
    """Owns the active file. One thread at a time: the one that leads the commit."""

    def __init__(
        self,
        *,
        disk: Disk,
        layout: Layout,
        log_id: uuid.UUID,
        spares: Spares,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._log_id = log_id
        self._salt = salt_of(log_id)
        self._spares = spares
        self._counters = counters
        self._clock = clock
        self._folder = disk.open_folder(layout.wal)
        """Open all the time: a rotation that has begun to write must not need a descriptor."""

    def close(self) -> None:
        """Close the WAL folder; a second call does nothing."""
        self._folder.close()

    def write(self, tail: Tail, group: list[Request], *, sync: bool) -> Tail:
        """Write a group behind `tail`, synced if asked; set each request's index."""
        # A group that is written again keeps its time: a power cut may mix sectors of both writes.
        group[0].time_us = time_us = group[0].time_us or self._clock.time_us()
        salt, file_number, synced = self._salt, tail.number, tail.synced
        link, index, term = tail.link, tail.last_index, tail.last_term
        hard_state, mark = tail.hard_state, tail.mark
        pack_body, pack_prefix, checksum_of = FRAME_BODY.pack, FRAME_PREFIX.pack, crc32c
        buffers: list[Buffer] = []
        size_bytes = 0
        for request in group:
            if request.kind == ENTRY:
                index += 1
                request.index = index
                term = request.term
            else:
                index, term, hard_state, mark = _after(request, index, term, hard_state, mark)
            body = pack_body(
                request.length,
                request.checksum,
                request.kind,
                request.flags,
                0,
                file_number,
                request.index,
                request.term,
                synced,
                link,
                time_us,
            )
            checksum = checksum_of(body, salt)
            link = checksum << 32 | request.checksum
            buffers.append(pack_prefix(FRAME_MAGIC, checksum) + body)
            buffers += request.parts
            size_bytes += request.span
        buffers.append(END_BLOCK)
        if len(buffers) > _JOIN_ABOVE:
            buffers = join_small(buffers)
        _BEFORE_WRITE.hit()
        write_all(tail.file, buffers, tail.position, size_bytes + len(END_BLOCK))
        _WRITTEN.hit()
        end = tail.position + size_bytes
        if sync:
            tail.file.sync_data()
            _SYNCED.hit()
            synced = end
            self._counters.syncs += 1
        idle = request.kind == FrameKind.IDLE
        return Tail(
            tail.file,
            file_number,
            tail.size,
            end,
            synced,
            link,
            index,
            term,
            hard_state,
            mark,
            idle,
        )

    def sync(self, tail: Tail) -> Tail:
        """Make everything up to `tail` survive a power cut."""
        tail.file.sync_data()
        _SYNCED.hit()
        self._counters.syncs += 1
        return tail._replace(synced=tail.position)

    def has_room(self, tail: Tail, span_bytes: int) -> bool:
        """Return whether frames of this size and the end block fit the active file."""
        return tail.position + span_bytes + len(END_BLOCK) <= tail.size

    def rotate(self, tail: Tail, span_bytes: int) -> Tail:
        """Take a new file into use with room for `span_bytes`.

        The old one is whole and synced before.
        """
        if tail.synced < tail.position:
            tail = self.sync(tail)
        tail.file.sync()
        _OLD_SYNCED.hit()
        following = self.start_file(
            file_number=tail.number + 1,
            span_bytes=span_bytes,
            link=tail.link,
            last_index=tail.last_index,
            last_term=tail.last_term,
            hard_state=tail.hard_state,
            mark=tail.mark,
        )
        self._counters.rotations += 1
        return following

    def start_file(
        self,
        *,
        file_number: int,
        span_bytes: int,
        link: int,
        last_index: int,
        last_term: int,
        hard_state: HardState,
        mark: Mark,
    ) -> Tail:
        """Make the file `file_number` and its carried frames durable under its name."""
        if file_number > limits.FILE_NUMBER_MAX:
            raise NoRoomError(
                DiskFullError("the log has used every file number", number=file_number)
            )
        self._remove_unfinished(file_number)
        carried = _frames_to_carry(hard_state, mark)
        needed = (
            HEADER_BYTES + sum(request.span for request in carried) + span_bytes + len(END_BLOCK)
        )
        try:
            file = self._spares.take(needed) if file_number > 1 else self._spares.first()
        except OSError as error:
            self._counters.errors += 1
            cause = from_os_error(error, "making the next WAL file", self._layout.wal)
            raise NoRoomError(cause) from error
        size = file.size()
        time_us = self._clock.time_us()
        header = FileHeader(file_number, size, self._log_id, last_index + 1, link, time_us)
        write_all(file, [header.encode(), END_BLOCK], 0, HEADER_BYTES + len(END_BLOCK))
        start = Tail(
            file,
            file_number,
            size,
            HEADER_BYTES,
            0,
            link,
            last_index,
            last_term,
            hard_state,
            mark,
            True,
        )
        tail = self.write(start, carried, sync=False) if carried else start
        _HEADER_WRITTEN.hit()
        file.sync()
        _HEADER_SYNCED.hit()
        path = self._layout.file(file_number)
        self._disk.rename(file.path, path)
        file.path = path
        _RENAMED.hit()
        self._folder.sync()
        _FOLDER_SYNCED.hit()
        return tail._replace(synced=tail.position, idle=True)

    def _remove_unfinished(self, file_number: int) -> None:
        """Remove what a rotation that was cut short (Ctrl-C) left under the next number.

        Nothing in it was acknowledged. If it stayed, and the disk were too full for another, the
        file before would grow on behind its back.
        """
        try:
            self._disk.remove(self._layout.file(file_number))
        except FileNotFoundError:
            return
        self._folder.sync()


def _after(
    request: Request, index: int, term: int, hard_state: HardState, mark: Mark
) -> tuple[int, int, HardState, Mark]:
    """Return index, term, hard state and mark after a frame that is not an entry."""
    kind, value = request.kind, request.content
    if isinstance(value, HardState):
        request.index = index
        return index, term, value, mark
    if isinstance(value, Mark):
        if request.flags & FLAG_RESET:
            return value.index, value.term, hard_state, value
        return index, value.term if value.index == index else term, hard_state, value
    if kind == FrameKind.IDLE:
        request.index, request.term = index, term
        return index, term, hard_state, mark
    return request.index, request.term, hard_state, mark  # truncate, gap


def _frames_to_carry(hard_state: HardState, mark: Mark) -> list[Request]:
    """Return the frames that each file repeats, so that the files before it can go."""
    carried = []
    if hard_state != HardState():
        carried.append(hard_state_request(hard_state))
    if mark != Mark():
        carried.append(release_request(mark, reset=False))
    return carried


def hard_state_request(state: HardState) -> Request:
    """Build the frame of a hard state."""
    payload = encode_hard_state(state)
    return mark_request(FrameKind.HARD_STATE, payload, term=state.term, value=state)


def release_request(mark: Mark, *, reset: bool) -> Request:
    """Build the frame of a release."""
    flags = FLAG_RESET if reset else 0
    return mark_request(
        FrameKind.RELEASE, mark.note, index=mark.index, term=mark.term, flags=flags, value=mark
    )


def mark_request(
    kind: FrameKind,
    payload: bytes = b"",
    *,
    index: int = 0,
    term: int = 0,
    flags: int = 0,
    value: HardState | Mark | None = None,
) -> Request:
    """Build a frame that is not an entry."""
    parts = (payload,) if payload else ()
    request = Request(kind, parts, len(payload), flags=flags, term=term)
    request.index, request.content = index, value
    return request
