"""Reading a write-ahead log: its bounds, entries by index, iteration, following its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from lakebed import limits
from lakebed.errors import (
    ClosedError,
    EntryLostError,
    EntryNotFoundError,
    InvalidArgumentError,
    from_os_error,
)
from lakebed.types import Entry, HardState
from lakebed.wal.arguments import check_index, check_number
from lakebed.wal.entry_map import EntryMap
from lakebed.wal.group_commit import GroupCommit
from lakebed.wal.reader import Reader
from lakebed.wal.recovery import Mark
from lakebed.wal.writer import Writer


class WalReading:
    """What a `Wal` reads. Any thread may call any method."""

    folder: Path
    commits: GroupCommit
    _entries: EntryMap
    _guard: threading.Lock
    _reader: Reader
    _writer: Writer

    @property
    def first_index(self) -> int:
        """The first index that can be read, if the log is not empty."""
        return self.commits.tail.mark.index + 1

    @property
    def last_index(self) -> int:
        """The last index acknowledged; 0 in a new log."""
        return self.commits.tail.last_index

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self.commits.tail.last_term

    @property
    def hard_state(self) -> HardState:
        """The last hard state set."""
        return self.commits.tail.hard_state

    @property
    def mark(self) -> Mark:
        """The last release."""
        return self.commits.tail.mark

    def gaps(self) -> list[tuple[int, int]]:
        """Return first and last index of each hole, if the log was salvaged from a damaged one."""
        tail = self.commits.tail
        with self._guard:
            return self._entries.gaps(tail.mark.index + 1, tail.last_index)

    def entry(self, index: int) -> Entry:
        """Return one entry."""
        entries = self.read(index, max_entries=1)
        if not entries:
            raise EntryNotFoundError(
                "the entry does not exist yet", index=index, last_index=self.last_index
            )
        return entries[0]

    def read(
        self, index: int, *, max_entries: int = 1000, max_bytes: int = 16 * limits.MIB
    ) -> list[Entry]:
        """Return entries from `index` on, at least one, at most so many.

        An empty list at the end of the log.
        """
        self._check_usable()
        check_index(index)
        check_number("max_entries", max_entries)
        check_number("max_bytes", max_bytes)
        if max_entries < 1 or max_bytes < 1:
            raise InvalidArgumentError(
                "max_entries and max_bytes must be 1 or more",
                max_entries=max_entries,
                max_bytes=max_bytes,
            )
        try:
            return self._reader.read(index, max_entries=max_entries, max_bytes=max_bytes)
        except OSError as error:
            raise from_os_error(error, "reading the log", self.folder) from error

    def entries(
        self, first: int | None = None, last: int | None = None, *, skip_lost: bool = False
    ) -> Iterator[Entry]:
        """Iterate from `first` (default: the first) to `last` (default: the end of the log now).

        A hole in a salvaged log raises `EntryLostError`, or is passed over with `skip_lost`.
        """
        index = self.first_index if first is None else check_index(first)
        end = self.last_index if last is None else min(check_index(last), self.last_index)
        while index <= end:
            try:
                batch = self.read(index, max_entries=min(1000, end - index + 1))
            except EntryLostError:
                following = self._next_after(index)
                if not skip_lost:
                    raise
                index = end + 1 if following is None else following
                continue
            if not batch:
                return  # the log was truncated at the same time
            yield from batch
            index += len(batch)

    def follow(self, first: int | None = None, *, timeout: float | None = None) -> Iterator[Entry]:
        """Iterate from `first` and wait for new entries.

        End when the log is closed or none came for `timeout` seconds.
        """
        self._check_usable()
        index = self.first_index if first is None else check_index(first)
        while self.commits.wait_for(index, timeout):
            try:
                batch = self.read(index)
            except ClosedError:
                return
            for entry in batch:
                yield entry
                index += 1
        if self._writer.poison is not None:
            raise self._writer.poison_error()

    def wait(self, index: int, timeout: float | None = None) -> bool:
        """Wait until `index` can be read; False if it could not in time or the log was closed."""
        self._check_usable()
        return self.commits.wait_for(check_index(index), timeout)

    def term_at(self, index: int) -> int:
        """Return the term of an entry that exists or was the last one released."""
        tail = self.commits.tail
        if index == tail.last_index:
            return tail.last_term
        if index == tail.mark.index:
            return tail.mark.term
        return self.entry(index).term

    def _next_after(self, index: int) -> int | None:
        with self._guard:
            return self._entries.next_after(index)

    def _check_usable(self) -> None:
        raise NotImplementedError
