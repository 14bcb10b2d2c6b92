"""Reading entries by index, from memory maps of the files.

Payloads are views of the map: nothing is copied, and Arrow buffers in them can be used as they are.
Every entry's checksums are verified each time it is read, because what was right when it was
written may have been damaged since. A file that is read is never recycled while a view of it lives:
its name is removed instead, and the file system keeps the bytes as long as the map.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from lakebed import limits
from lakebed.errors import (
    CorruptionError,
    EntryLostError,
    EntryNotFoundError,
    EntryReleasedError,
    LakebedError,
)
from lakebed.host import Disk, Mapping, Mode
from lakebed.types import Entry, EntryKind
from lakebed.wal.entry_map import EntryMap, EntryPosition
from lakebed.wal.folder import Layout
from lakebed.wal.frame import ENTRY, FLAG_CONFIGURATION, FRAME_HEADER, FRAME_MAGIC, HEADER_BYTES

if TYPE_CHECKING:
    from lakebed.wal.appender import Tail

_WINDOW_BYTES: Final = 4_096
_WINDOW_BYTES_MAX: Final = 1 << 20
"""The first view of a file that is read, and the largest of those that follow."""
_KINDS: Final = (EntryKind.NORMAL, EntryKind.CONFIGURATION)


class Maps:
    """Mapped files by number; the last few stay mapped."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        self._guard = threading.Lock()
        self._alive: weakref.WeakValueDictionary[int, Mapping] = weakref.WeakValueDictionary()
        self._recent: OrderedDict[int, Mapping] = OrderedDict()
        self._forgotten = 0

    def get(self, file_number: int) -> Mapping:
        """Return the map of a file; one that goes away is not found any more."""
        with self._guard:
            if file_number <= self._forgotten:
                # It is about to be recycled: a view of it would change under its reader.
                raise FileNotFoundError(
                    2, "the file was released", str(self._layout.file(file_number))
                )
            mapping = self._alive.get(file_number)
            if mapping is None:
                mapping = self._open(file_number)
                self._alive[file_number] = mapping
            self._recent[file_number] = mapping
            self._recent.move_to_end(file_number)
            if len(self._recent) > limits.MAPPED_FILES_MAX:
                self._recent.popitem(last=False)
            return mapping

    def forget(self, file_number: int) -> bool:
        """Unmap a file that goes away; False if views of it are still in use."""
        with self._guard:
            self._forgotten = max(self._forgotten, file_number)
            self._recent.pop(file_number, None)
            return file_number not in self._alive

    def close(self) -> None:
        """Drop every map; views that callers hold stay valid."""
        with self._guard:
            self._recent.clear()

    def _open(self, file_number: int) -> Mapping:
        file = self._disk.open(self._layout.file(file_number), Mode.READ)
        try:
            return file.map()
        finally:
            file.close()


class Reader:
    """Reads entries up to the tail. Any thread."""

    def __init__(
        self,
        *,
        maps: Maps,
        entries: EntryMap,
        guard: threading.Lock,
        salt: int,
        tail: Callable[[], Tail],
    ) -> None:
        self._maps = maps
        self._entries = entries
        self._guard = guard
        self._salt = salt
        self._tail = tail
        self._behind = _Behind(0, 0, 0, 0)

    def read(self, index: int, *, max_entries: int, max_bytes: int) -> list[Entry]:
        """Return entries from `index` on, at least one, at most so many.

        An empty list at the end of the log.
        """
        tail = self._tail()
        if index == tail.last_index + 1:
            return []
        _check_range(index, tail)
        entries: list[Entry] = []
        taken = 0
        while len(entries) < max_entries and (taken < max_bytes or not entries):
            next_index = index + len(entries)
            if next_index > tail.last_index:
                break
            run = self._read_extent(next_index, tail, max_entries - len(entries), max_bytes - taken)
            if not run:
                if entries:
                    break
                raise self._entry_lost_error(next_index)
            entries += run
            taken += sum(len(entry.payload) for entry in run)
        return entries

    def _read_extent(self, index: int, tail: Tail, max_entries: int, max_bytes: int) -> list[Entry]:
        """Read what one extent holds from `index` on.

        Nothing if the log was salvaged without it.
        """
        with self._guard:
            start_at = self._entries.find(index)
            if start_at is None:
                return []
            try:
                mapping = self._maps.get(start_at.number)
            except FileNotFoundError:
                _check_range(index, self._tail())  # it may have been released a moment ago
                raise
            changes, behind = self._entries.changes, self._behind
        # A place before this extent is behind another one: what follows it there was truncated.
        if behind[:3] == (index, start_at.number, changes) and behind.position > start_at.position:
            start_at = start_at._replace(index=index, position=behind.position)
        last = min(start_at.last, tail.last_index, index + max_entries - 1)
        entries, position = read_run(
            mapping, self._salt, start_at, first=index, last=last, bytes_max=max_bytes
        )
        self._behind = _Behind(entries[-1].index + 1, start_at.number, changes, position)
        return entries

    def _entry_lost_error(self, index: int) -> LakebedError:
        _check_range(index, self._tail())  # it may have been released or truncated a moment ago
        with self._guard:
            following = self._entries.next_after(index)
        return EntryLostError(
            "the entry was lost before the log was salvaged", index=index, next_index=following
        )


class _Behind(NamedTuple):
    """Where the last read ended: the next one usually begins there."""

    index: int  # type: ignore[assignment]  # as in Entry
    number: int
    changes: int
    position: int


def _check_range(index: int, tail: Tail) -> None:
    if index <= tail.mark.index:
        raise EntryReleasedError(
            "the entry was released", index=index, first_index=tail.mark.index + 1
        )
    if index > tail.last_index:
        raise EntryNotFoundError(
            "the entry does not exist yet", index=index, last_index=tail.last_index
        )


def read_run(
    mapping: Mapping, salt: int, start_at: EntryPosition, *, first: int, last: int, bytes_max: int
) -> tuple[list[Entry], int]:
    """Read entries `first` to `last` of an extent, walking from `start_at`; stop after `bytes_max`.

    Return them and the position behind the last one. There is at least one, however large.
    """
    file_number, position = start_at.number, start_at.position
    entries: list[Entry] = []
    unpack, checksum_of, size = FRAME_HEADER.unpack_from, crc32c, len(mapping)
    make = tuple.__new__  # half the time of calling `Entry`
    taken, index = 0, start_at.index
    window, start, have = memoryview(b""), position, 0
    while index <= last and (taken < bytes_max or not entries):
        offset = position - start
        if offset + HEADER_BYTES > have:
            window, start, offset = _window(mapping, position, 2 * have, HEADER_BYTES), position, 0
            have = len(window)
            if have < HEADER_BYTES:
                raise _damage_error(mapping, file_number, position, index, "the file ends")
        fields = unpack(window, offset)
        body = offset + HEADER_BYTES
        if fields[0] != FRAME_MAGIC or checksum_of(window[offset + 8 : body], salt) != fields[1]:
            raise _damage_error(mapping, file_number, position, index, "frame header")
        end = body + fields[2]
        if fields[4] == ENTRY:
            if fields[8] != index or fields[7] != file_number or start + end > size:
                raise _damage_error(mapping, file_number, position, index, "out of place")
            if index >= first:
                if end > have:
                    window, start = _window(mapping, position, 2 * have, end - offset), position
                    have, offset, body, end = len(window), 0, HEADER_BYTES, end - offset
                payload = window[body:end]
                if checksum_of(payload) != fields[3]:
                    raise _damage_error(mapping, file_number, position, index, "payload")
                kind = _KINDS[fields[5] & FLAG_CONFIGURATION]
                entries.append(make(Entry, (index, fields[9], kind, fields[12], payload)))
                taken += fields[2]
            index += 1
        position = (start + end + 63) & -64
    return entries, position


def _window(mapping: Mapping, position: int, wanted: int, needed: int) -> memoryview:
    """Return a view from `position` on: slicing one is cheaper than asking the map each time."""
    length = max(min(wanted, _WINDOW_BYTES_MAX), _WINDOW_BYTES, needed)
    return mapping.view(position, min(position + length, len(mapping)))


def _damage_error(
    mapping: Mapping, file_number: int, position: int, index: int, what: str
) -> CorruptionError:
    return CorruptionError(
        "an entry is damaged",
        file=file_number,
        byte=position,
        index=index,
        found=repr(what),
        size=len(mapping),
    )
