"""The replicated log: what consensus asks of storage, and the implementation in memory.

`MemoryLog` is the contract in its plainest form. `WalLog` keeps it on disk and must not be told
from it, restarts and power cuts included.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lakebed import limits
from lakebed.errors import ClosedError
from lakebed.raft.checks import (
    check_hard_state,
    check_range,
    check_snapshot_follows,
    check_truncation,
    checked_entries,
    checked_membership,
    not_found,
    released,
    within,
)
from lakebed.raft.codec import decode_membership
from lakebed.raft.values import LogEntry, Membership, Snapshot
from lakebed.types import Closing, EntryKind, HardState

if TYPE_CHECKING:
    from typing_extensions import Buffer

READ_BYTES_MAX = 16 * limits.MIB
"""How much `entries` gives at a time unless told otherwise."""


@runtime_checkable
class RaftLog(Protocol):
    """Entries in order of index, a hard state, and the snapshot that replaced the oldest entries.

    Any thread may call any method. A refused call (`RejectedError`) has changed nothing.
    """

    @property
    def first_index(self) -> int:
        """The first index that is not in the snapshot; one above the last if there is no entry."""
        ...

    @property
    def last_index(self) -> int:
        """The last entry's index, or the snapshot's, or 0."""
        ...

    @property
    def last_term(self) -> int:
        """The term at the last index."""
        ...

    @property
    def snapshot_index(self) -> int:
        """The last index that the snapshot holds; 0 without one."""
        ...

    @property
    def hard_state(self) -> HardState:
        """The last hard state set."""
        ...

    def term_at(self, index: int) -> int | None:
        """Return the term at an index: 0 at 0, the snapshot's at its own, None where unknown."""
        ...

    def entry(self, index: int) -> LogEntry:
        """Return one entry, or raise that it is not there yet or no more."""
        ...

    def entries(
        self, first: int, last: int | None = None, bytes_max: int = READ_BYTES_MAX
    ) -> list[LogEntry]:
        """Return entries `first` to `last` (or to the end), in order and without a hole.

        At least one, and no more than fit `bytes_max`. None right behind the end of the log.
        """
        ...

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries behind the last one: visible at once, durable when `sync` returns.

        All are refused, before a byte is written, if one does not follow the one before it or has a
        lower term (`NotContiguousError`).
        """
        ...

    def propose(self, payload: Buffer, term: int, kind: EntryKind = EntryKind.NORMAL) -> int:
        """Append an entry at the next index, and return that index when it is durable.

        Many threads that propose at a time share one sync.
        """
        ...

    def sync(self) -> None:
        """Return when everything appended before is durable; raise if it is not."""
        ...

    def truncate_suffix(self, from_index: int) -> None:
        """Void every entry from `from_index` on; durable when this returns.

        Nothing behind the end; refused at or below the snapshot.
        """
        ...

    def set_hard_state(self, state: HardState) -> None:
        """Remember a term and a vote, durable when this returns. A lower term is refused."""
        ...

    def snapshot(self) -> Snapshot | None:
        """Return the last snapshot applied."""
        ...

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """Let a snapshot replace every entry up to its index; durable when this returns.

        One at or below `snapshot_index` changes nothing. Entries after it stay if the log holds the
        entry at its index with its term; otherwise all are void, and the log goes on after it. The
        hard state stays. Space that cannot be freed now is freed later.
        """
        ...

    def membership(self) -> Membership:
        """Return the membership in force: the last configuration entry's, or the snapshot's."""
        ...

    def close(self) -> None:
        """Make what was appended durable and return the log up. A second call does nothing."""
        ...


class MemoryLog(Closing):
    """The log in memory: for tests, and for nodes that may forget."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._entries: list[LogEntry] = []
        self._hard_state = HardState()
        self._snapshot: Snapshot | None = None
        self._closed = False

    @property
    def first_index(self) -> int:
        """See `RaftLog`."""
        return self.snapshot_index + 1

    @property
    def last_index(self) -> int:
        """See `RaftLog`."""
        with self._guard:
            return self.snapshot_index + len(self._entries)

    @property
    def last_term(self) -> int:
        """See `RaftLog`."""
        with self._guard:
            return self._entries[-1].term if self._entries else self._snapshot_term

    @property
    def snapshot_index(self) -> int:
        """See `RaftLog`."""
        snapshot = self._snapshot
        return snapshot.index if snapshot else 0

    @property
    def hard_state(self) -> HardState:
        """See `RaftLog`."""
        return self._hard_state

    @property
    def _snapshot_term(self) -> int:
        snapshot = self._snapshot
        return snapshot.term if snapshot else 0

    def term_at(self, index: int) -> int | None:
        """See `RaftLog`."""
        with self._guard:
            if index == 0:
                return 0
            if index == self.snapshot_index:
                return self._snapshot_term
            if not self.first_index <= index <= self.last_index:
                return None
            return self._entries[index - self.first_index].term

    def entry(self, index: int) -> LogEntry:
        """See `RaftLog`."""
        entries = self.entries(index, index)
        if not entries:
            raise not_found(index, self.last_index)
        return entries[0]

    def entries(
        self, first: int, last: int | None = None, bytes_max: int = READ_BYTES_MAX
    ) -> list[LogEntry]:
        """See `RaftLog`."""
        check_range(first, last, bytes_max)
        with self._guard:
            self._check_open()
            if first < self.first_index:
                raise released(first, self.snapshot_index)
            if first > self.last_index + 1:
                raise not_found(first, self.last_index)
            end = self.last_index if last is None else min(last, self.last_index)
            found = self._entries[first - self.first_index : end + 1 - self.first_index]
            return within(found, bytes_max)

    def append(self, entries: Sequence[LogEntry]) -> None:
        """See `RaftLog`."""
        with self._guard:
            self._check_open()
            checked = checked_entries(
                entries,
                last_index=self.last_index,
                last_term=self.last_term,
                bytes_max=limits.ENTRY_BYTES_MAX,
            )
            for entry in checked:
                checked_membership(entry)
            self._entries += [
                LogEntry(entry.index, entry.term, bytes(entry.payload), entry.kind)
                for entry in checked
            ]

    def propose(self, payload: Buffer, term: int, kind: EntryKind = EntryKind.NORMAL) -> int:
        """See `RaftLog`."""
        with self._guard:
            index = self.last_index + 1
            self.append([LogEntry(index, term, payload, kind)])
            return index

    def sync(self) -> None:
        """See `RaftLog`; there is nothing to wait for."""
        self._check_open()

    def truncate_suffix(self, from_index: int) -> None:
        """See `RaftLog`."""
        with self._guard:
            self._check_open()
            check_truncation(from_index, self.snapshot_index)
            del self._entries[from_index - self.first_index :]

    def set_hard_state(self, state: HardState) -> None:
        """See `RaftLog`."""
        with self._guard:
            self._check_open()
            check_hard_state(self._hard_state, state)
            self._hard_state = state

    def snapshot(self) -> Snapshot | None:
        """See `RaftLog`."""
        self._check_open()
        return self._snapshot

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """See `RaftLog`."""
        with self._guard:
            self._check_open()
            if snapshot.index <= self.snapshot_index:
                return
            check_snapshot_follows(snapshot, self._snapshot_term)
            if self.term_at(snapshot.index) == snapshot.term:
                del self._entries[: snapshot.index + 1 - self.first_index]
            else:
                self._entries.clear()
            self._snapshot = snapshot

    def membership(self) -> Membership:
        """See `RaftLog`."""
        with self._guard:
            for entry in reversed(self._entries):
                if entry.kind is EntryKind.CONFIGURATION:
                    return decode_membership(entry.payload)
            return self._snapshot.membership if self._snapshot else Membership()

    def close(self) -> None:
        """See `RaftLog`."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log is closed")
