"""What a damaged log held, decided frame by frame, and written again.

Every frame says something about the index the log had reached when it was written. Where that is
not the index reached so far, something between was damaged:

    an entry i                 the log had reached i - 1
    a hard state, an idle mark the log had reached its index
    a release, a truncation    the log had reached at least its index
    a file header              the log had reached its first index - 1

If the log had come further than what was saved, the indexes between are lost, and a gap frame keeps
their place: indexes never move. If it had not come as far, a truncation was among the damaged
bytes, and is made up for by another.

One thing cannot be known: a truncation that was damaged together with all the entries behind it
that took the place of voided ones. The voided entries are then saved.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from crc32c import crc32c

from lakebed.errors import CorruptionError
from lakebed.host import Readable, read_exactly
from lakebed.types import HardState
from lakebed.wal.appender import hard_state_request, mark_request, release_request
from lakebed.wal.copying import HELD_BYTES_MAX, Copy, check_unchanged
from lakebed.wal.examine import Frame, payload_chunks
from lakebed.wal.frame import (
    ENTRY,
    FLAG_RESET,
    HEADER_BYTES,
    FileHeader,
    FrameHeader,
    FrameKind,
    decode_gap,
    decode_hard_state,
    encode_gap,
)
from lakebed.wal.recovery import Mark
from lakebed.wal.request import Request
from lakebed.wal.scan import Fields


class Ranges:
    """Ranges of indexes, ascending and apart. Memory is by the number of ranges."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, first: int, last: int) -> None:
        """Add a range above all others."""
        if self._ranges and self._ranges[-1][1] + 1 == first:
            first = self._ranges.pop()[0]
        self._ranges.append((first, last))

    def cut(self, last: int) -> None:
        """Forget everything above `last`."""
        while self._ranges and self._ranges[-1][1] > last:
            first, _ = self._ranges.pop()
            if first <= last:
                self._ranges.append((first, last))

    def drop(self, through: int) -> None:
        """Forget everything up to `through`."""
        self._ranges = [
            (max(first, through + 1), last) for first, last in self._ranges if last > through
        ]

    def count(self) -> int:
        """Count the indexes."""
        return sum(last - first + 1 for first, last in self._ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)


class Rebuild:
    """The log as far as it has been written again."""

    def __init__(self, copy: Copy) -> None:
        self.last_index = 0
        self.last_term = 0
        self.hard_state = HardState()
        self.mark = Mark()
        self.lost = Ranges()
        self.lost_before = Ranges()
        """What an earlier salvage could not save."""
        self.broken = False
        """Something was damaged, and nothing since then says which index the log had reached."""
        self._copy = copy
        self._terms: list[tuple[int, int]] = [(0, 0)]

    def file_header(self, header: FileHeader) -> None:
        """Take in what a file header says."""
        self._reach(header.first_index - 1, header.time_us)

    def frame(self, frame: Frame, file: Readable) -> str:
        """Take in a frame; return what is wrong with it, if it cannot be used."""
        fields, kind = frame.fields, frame.fields[4]
        try:
            if kind == ENTRY:
                return self._entry(frame.position, fields, file)
            if kind == FrameKind.HARD_STATE:
                return self._hard_state(fields, decode_hard_state(frame.payload))
            if kind == FrameKind.TRUNCATE:
                return self._truncation(fields)
            if kind == FrameKind.RELEASE:
                return self._release(fields, bytes(frame.payload))
            if kind == FrameKind.GAP:
                return self._old_gap(fields, decode_gap(frame.payload))
        except CorruptionError as error:
            return error.message
        return self._reach(fields[8], fields[12], fields[9])

    def take_damaged_payload(self, header: FrameHeader) -> None:
        """Take in a frame of which only the header is right."""
        if header.kind in (ENTRY, FrameKind.GAP):
            if header.kind == ENTRY:
                self._reach(header.index - 1, header.time_us)
            if header.index > self.last_index:
                self._gap(header.index, header.term, header.time_us, self.lost)
        elif header.kind == FrameKind.HARD_STATE:
            self._reach(header.index, header.time_us)
        elif header.flags & FLAG_RESET:
            self.broken = True

    def count_saved(self) -> int:
        """Count the entries that can be read in the copy, once everything was taken in."""
        self.lost.drop(self.mark.index)
        self.lost_before.drop(self.mark.index)
        holes = self.lost.count() + self.lost_before.count()
        return self.last_index - self.mark.index - holes

    def _entry(self, position: int, fields: Fields, file: Readable) -> str:
        index, term = fields[8], fields[9]
        if problem := self._reach(index - 1, fields[12]):
            return problem
        if fields[2] > HELD_BYTES_MAX:
            self._copy.put_large(fields, payload_chunks(file, position, fields[2]))
        else:
            payload = read_exactly(file, position + HEADER_BYTES, fields[2])
            check_unchanged(fields, length=len(payload), checksum=crc32c(payload))
            parts = (payload,) if payload else ()
            request = Request(ENTRY, parts, fields[2], flags=fields[5], term=term)
            self._copy.put(request, fields[12])
        self._at(index, term)
        return ""

    def _hard_state(self, fields: Fields, state: HardState) -> str:
        problem = self._reach(fields[8], fields[12])
        if state != self.hard_state:  # each file repeats it
            self._copy.put(hard_state_request(state), fields[12])
            self.hard_state = state
        return problem

    def _truncation(self, fields: Fields) -> str:
        index, term, time_us = fields[8], fields[9], fields[12]
        if index < self.mark.index:
            return f"truncation to {index}, below the release of {self.mark.index}"
        if index > self.last_index:
            self._gap(index, term, time_us, self.lost)
        else:
            self._truncate(index, term, time_us)
        self.broken = False
        return ""

    def _release(self, fields: Fields, note: bytes) -> str:
        mark, reset = Mark(fields[8], fields[9], note), bool(fields[5] & FLAG_RESET)
        if mark.index < self.mark.index:
            return f"release of {mark.index}, below that of {self.mark.index}"
        if reset:
            self._void(mark)
        elif mark.index > self.last_index:
            self._gap(mark.index, mark.term, fields[12], self.lost)
        if reset or mark != self.mark:  # each file repeats it
            self._copy.put(release_request(mark, reset=reset), fields[12])
            self.mark = mark
            if mark.index == self.last_index:
                self._at(mark.index, mark.term)
        return ""

    def _old_gap(self, fields: Fields, first: int) -> str:
        if problem := self._reach(first - 1, fields[12]):
            return problem
        if fields[8] < first:
            return f"gap from {first} to {fields[8]}"
        self._gap(fields[8], fields[9], fields[12], self.lost_before)
        return ""

    def _reach(self, index: int, time_us: int, term: int | None = None) -> str:
        """Make up for what is damaged, knowing the index that the log had reached here."""
        if index < self.mark.index:
            return f"index {index} where {self.mark.index} was released"
        if index > self.last_index:
            self._gap(index, self.last_term if term is None else term, time_us, self.lost)
        elif index < self.last_index:
            self._truncate(index, self._term_at(index), time_us)
        self.broken = False
        return ""

    def _gap(self, last: int, term: int, time_us: int, ranges: Ranges) -> None:
        first = self.last_index + 1
        request = mark_request(FrameKind.GAP, encode_gap(first), index=last, term=term)
        self._copy.put(request, time_us)
        ranges.add(first, last)
        self._at(last, term)

    def _truncate(self, index: int, term: int, time_us: int) -> None:
        self._copy.put(mark_request(FrameKind.TRUNCATE, index=index, term=term), time_us)
        self.lost.cut(index)
        self.lost_before.cut(index)
        del self._terms[bisect_right(self._terms, (index, 2**64)) :]
        self._at(index, term)

    def _void(self, mark: Mark) -> None:
        """Forget everything: the log continues after a reset."""
        self.lost.cut(0)
        self.lost_before.cut(0)
        self._terms = [(0, 0)]
        self._at(mark.index, mark.term)
        self.broken = False

    def _at(self, index: int, term: int) -> None:
        """Go to an index; where the term changes is remembered, for later truncations."""
        self.last_index, self.last_term = index, term
        if self._terms[-1][1] != term:
            self._terms.append((index, term))

    def _term_at(self, index: int) -> int:
        return self._terms[max(0, bisect_right(self._terms, (index, 2**64)) - 1)][1]
