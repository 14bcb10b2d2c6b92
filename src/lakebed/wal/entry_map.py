"""Where each entry is stored: which file, and from which position to walk to it.

The live part of the log is a list of extents. An extent is a run of consecutive indexes written one
after another into one file; a truncation cuts extents and starts a new one, so an index that was
written twice is found where it was written last. Each extent remembers a position about every 256
KiB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from lakebed import limits


class EntryPosition(NamedTuple):
    """A frame to walk from.

    The entry `index` is at `position` of file `number`; `last` is the extent's last.
    """

    number: int
    index: int  # type: ignore[assignment]  # as in Entry
    position: int
    last: int


@dataclass
class EntryExtent:
    """Consecutive entries of one file."""

    number: int
    first: int
    last: int
    indexes: array[int] = field(default_factory=lambda: array("Q"))
    positions: array[int] = field(default_factory=lambda: array("Q"))

    def remember(self, marks: list[tuple[int, int]]) -> None:
        """Remember the positions of entries, one about every 256 KiB."""
        due = self.positions[-1] + limits.MARK_EVERY_BYTES if self.positions else 0
        if marks[-1][1] < due:
            return
        for index, position in marks:
            if position >= due:
                self.indexes.append(index)
                self.positions.append(position)
                due = position + limits.MARK_EVERY_BYTES

    def cut(self, last: int) -> None:
        """Forget everything above `last`."""
        self.last = last
        keep = bisect_right(self.indexes, last)
        del self.indexes[keep:], self.positions[keep:]


class EntryMap:
    """The live extents, in index order. One thread at a time; the log's mutex guards it."""

    def __init__(self) -> None:
        self._extents: list[EntryExtent] = []
        self._firsts: list[int] = []
        self._growing = False
        self.changes = 0
        """Counts truncations and resets, so that a reader knows its remembered place may be void.
        """

    def add(self, *, file_number: int, first: int, last: int, marks: list[tuple[int, int]]) -> None:
        """Add entries `first` to `last`, just written to file `file_number`.

        `marks` are (index, position), the first one included.
        """
        extent = self._extents[-1] if self._extents and self._growing else None
        if extent is None or extent.number != file_number or extent.last + 1 != first:
            extent = EntryExtent(file_number, first, last)
            self._extents.append(extent)
            self._firsts.append(first)
            self._growing = True
        extent.last = last
        extent.remember(marks)

    def grow(self, file_number: int, first: int, last: int, end: int) -> bool:
        """Add entries `first` to `last` that end at `end`, if that is all there is to it.

        False, and nothing is changed, if they start an extent or one of them is to be remembered.
        """
        if not self._growing or not self._extents:
            return False
        extent = self._extents[-1]
        due = extent.positions[-1] + limits.MARK_EVERY_BYTES
        if extent.number != file_number or extent.last + 1 != first or end > due:
            return False
        extent.last = last
        return True

    def truncate(self, last: int) -> None:
        """Forget every entry above `last`."""
        while self._extents and self._extents[-1].first > last:
            self._extents.pop()
            self._firsts.pop()
        if self._extents and self._extents[-1].last > last:
            self._extents[-1].cut(last)
        self._growing = False
        self.changes += 1

    def truncate_above(self, last: int) -> None:
        """Forget every entry above `last`, if there is any; otherwise change nothing."""
        if self._extents and self._extents[-1].last > last:
            self.truncate(last)

    def drop_files_below(self, file_number: int) -> None:
        """Forget the extents of files that are gone."""
        self._extents = [extent for extent in self._extents if extent.number >= file_number]
        self._firsts = [extent.first for extent in self._extents]

    def find(self, index: int) -> EntryPosition | None:
        """Return the nearest remembered position up to `index`, or None if no extent holds it."""
        position = bisect_right(self._firsts, index) - 1
        if position < 0 or self._extents[position].last < index:
            return None
        extent = self._extents[position]
        mark = bisect_right(extent.indexes, index) - 1
        return EntryPosition(
            extent.number, extent.indexes[mark], extent.positions[mark], extent.last
        )

    def next_after(self, index: int) -> int | None:
        """Return the first index above `index` that an extent holds."""
        position = bisect_right(self._firsts, index)
        return self._firsts[position] if position < len(self._firsts) else None

    def gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges from `first` to `last` that no extent holds."""
        gaps = []
        for extent in self._extents:
            if extent.first > first:
                gaps.append((first, extent.first - 1))
            first = max(first, extent.last + 1)
        if first <= last:
            gaps.append((first, last))
        return gaps

    def __len__(self) -> int:
        return len(self._extents)
