"""What is known of a segment's keys without decoding them, kept in memory for many segments.

A lookup asks every segment of a partition, newest first, so all of them should be at hand. They are
copies, not views of a map: a segment needs to be neither open nor on this machine to be ruled out.
They may take a fixed number of bytes. When that is reached, the segments of the highest ids stay:
those are asked first, and a fixed choice serves lookups that ask all in turn, where dropping the
least recently used would drop each just before it is asked again.
"""

from __future__ import annotations

import bisect
import operator
import threading
from typing import NamedTuple

from lakebed.lake.key_filter import Probe, may_hold

_OVERHEAD_BYTES = 400
"""About what a row group takes besides its filter and its least and greatest key."""


class RowGroupKeys(NamedTuple):
    """The keys of a row group: their filter, the least and the greatest; None if not known."""

    filter: bytes | None
    least: bytes | None
    greatest: bytes | None
    some: bool
    """Whether a record may have a key at all."""

    def may_hold(self, wanted: Probe) -> bool:
        """Return whether a key may be in the row group; False is certain."""
        if not self.some:
            return False
        if self.least is not None and wanted.key < self.least:
            return False
        if self.greatest is not None and wanted.key > self.greatest:
            return False
        return self.filter is None or may_hold(self.filter, wanted)

    @property
    def size_bytes(self) -> int:
        """Return about how much memory it takes."""
        return _OVERHEAD_BYTES + sum(
            len(part) for part in (self.filter, self.least, self.greatest) if part is not None
        )


class SegmentKeys(tuple[RowGroupKeys, ...]):
    """The keys of a segment, row group by row group."""

    __slots__ = ()

    def candidates(self, wanted: Probe) -> list[int]:
        """Return the row groups that may hold a key, the last one first."""
        candidates = [row_group for row_group, group in enumerate(self) if group.may_hold(wanted)]
        candidates.reverse()
        return candidates


class KeysCache:
    """The keys of segments, up to a number of bytes. Any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._guard = threading.Lock()
        self._held: dict[int, SegmentKeys] = {}
        self._ids: list[int] = []
        """Those that are held, the highest first: the last one is the first to go."""
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """Return about how much memory is taken."""
        return self._bytes

    def get(self, segment: int) -> SegmentKeys | None:
        """Return the keys of a segment, if they are held."""
        return self._held.get(segment)

    def put(self, segment: int, keys: SegmentKeys) -> None:
        """Keep the keys of a segment, if there is room or segments of lower ids can go for it."""
        with self._guard:
            if segment in self._held:
                return
            self._held[segment] = keys
            bisect.insort(self._ids, segment, key=operator.neg)
            self._bytes += _size(keys)
            while self._bytes > self._bytes_max:
                self._drop(len(self._ids) - 1)

    def forget(self, segment: int) -> None:
        """Drop what is held of a segment."""
        with self._guard:
            if segment in self._held:
                self._drop(bisect.bisect_left(self._ids, -segment, key=operator.neg))

    def clear(self) -> None:
        """Drop everything."""
        with self._guard:
            self._held.clear()
            self._ids.clear()
            self._bytes = 0

    def _drop(self, index: int) -> None:
        self._bytes -= _size(self._held.pop(self._ids.pop(index)))


def _size(keys: SegmentKeys) -> int:
    return sum(group.size_bytes for group in keys)
