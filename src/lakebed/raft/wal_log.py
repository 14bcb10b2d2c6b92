"""The replicated log on disk: entries, hard state, truncations in the WAL; snapshots beside it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Self

from lakebed import limits
from lakebed.errors import (
    ClosedError,
    CorruptionError,
    LakebedError,
    NotContiguousError,
    RejectedError,
    translated,
)
from lakebed.host import Clock, Disk, OsDisk
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
from lakebed.raft.codec import Note, encode_note
from lakebed.raft.log import READ_BYTES_MAX
from lakebed.raft.mapping import boundary_of, load_history, note_of, read_durable, runs
from lakebed.raft.staging import ProposalGroup, ProposalStaging
from lakebed.raft.values import LogEntry, Membership, Snapshot
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.types import Closing, EntryKind, HardState
from lakebed.wal import Wal, WalConfig, WalStats
from lakebed.wal.folder import RAFT, TOPICS, Layout, declare_kind, is_declared, other_kind

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from lakebed.wal.recovery import Progress


_TOPICS_FOLDERS: Final = frozenset(["lake", "staging", "iceberg", "derived", "quarantine"])
"""Folders beside the WAL that only a log with topics has."""


class WalLog(Closing):
    """The replicated log in a folder that this process owns.

    Any thread may call any method. Proposals and reads go on while a snapshot is written.
    """

    def __init__(self, wal: Wal, disk: Disk) -> None:
        self._wal = wal
        self._snapshots = SnapshotFolder(disk, wal.folder)
        self._snapshotting = threading.Lock()
        self._staging = ProposalStaging(self._write, self._rewound)
        self._guard = self._staging.guard
        self._appended = threading.local()
        self._closed = False
        self._process = os.getpid()
        self._history = load_history(wal)
        self._changes = 0
        """Counts what voids entries, so that a reader knows that it may have seen a mixture."""
        if wal.mark.index:
            self._snapshots.verify(wal.mark.index, note_of(wal.mark))
        self._snapshots.remove_all_but(wal.mark.index)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        config: WalConfig | None = None,
        *,
        progress: Progress | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        threaded: bool = True,
    ) -> Self:
        """Open the log in `folder`, making it if the folder is new or empty.

        A snapshot that is missing or not what was written is refused, naming the file, and so is a
        folder that holds a log with topics. The arguments are those of `Wal.open`.
        """
        disk = disk or OsDisk()
        wal = Wal.open(
            folder,
            config,
            progress=progress,
            disk=disk,
            clock=clock,
            threaded=threaded,
            kind=RAFT,
        )
        try:
            if is_declared(disk, Layout(wal.folder)):
                return cls(wal, disk)
            _check_not_topics(disk, wal)
            log = cls(wal, disk)
            declare_kind(disk, Layout(wal.folder), wal.log_id, RAFT)
            return log
        except BaseException:
            with contextlib.suppress(LakebedError):  # the first error is the one to report
                wal.close()
            raise

    # Reading

    @property
    def first_index(self) -> int:
        """See `RaftLog`."""
        return self.snapshot_index + 1

    @property
    def last_index(self) -> int:
        """See `RaftLog`; entries that are not durable yet included."""
        with self._guard:
            return self._history.last_index

    @property
    def last_term(self) -> int:
        """See `RaftLog`."""
        with self._guard:
            return self._history.last_term

    @property
    def snapshot_index(self) -> int:
        """See `RaftLog`."""
        with self._guard:
            return self._history.boundary.index

    @property
    def hard_state(self) -> HardState:
        """See `RaftLog`."""
        return self._wal.hard_state

    def term_at(self, index: int) -> int | None:
        """See `RaftLog`."""
        with self._guard:
            return self._history.term_at(index)

    def membership(self) -> Membership:
        """See `RaftLog`."""
        with self._guard:
            return self._history.membership

    def entry(self, index: int) -> LogEntry:
        """See `RaftLog`."""
        entries = self.entries(index, index)
        if not entries:
            raise not_found(index, self.last_index)
        return entries[0]

    def entries(
        self, first: int, last: int | None = None, bytes_max: int = READ_BYTES_MAX
    ) -> list[LogEntry]:
        """See `RaftLog`. Payloads are views of the WAL's files: nothing is copied."""
        check_range(first, last, bytes_max)
        while True:
            changes = self._changes
            try:
                found = self._read(first, last, bytes_max)
            except LakebedError:
                if changes == self._changes:
                    raise
                continue
            if changes == self._changes:
                return found

    def _read(self, first: int, last: int | None, bytes_max: int) -> list[LogEntry]:
        with self._guard:
            self._check_usable()
            boundary, end = self._history.boundary.index, self._history.last_index
            if first <= boundary:
                raise released(first, boundary)
            if first > end + 1:
                raise not_found(first, end)
            end = end if last is None else min(last, end)
            staged = self._staging.find(first, end)
        durable_end = staged[0].index - 1 if staged else end
        found = read_durable(self._wal, first, durable_end, bytes_max)
        if len(found) == durable_end + 1 - first:
            found += staged
        return within(found, bytes_max)

    def snapshot(self) -> Snapshot | None:
        """See `RaftLog`. The data is read from its file, and verified, at each call."""
        while True:
            with self._guard:
                self._check_usable()
            mark = self._wal.mark
            if not mark.index:
                return None
            note = note_of(mark)
            try:
                data = self._snapshots.read(mark.index, note)
            except CorruptionError:
                if mark is self._wal.mark:
                    raise
                continue  # a newer snapshot has taken its place, and its file is gone
            return Snapshot(mark.index, mark.term, note.membership, data)

    # Writing

    def append(self, entries: Sequence[LogEntry]) -> None:
        """See `RaftLog`. Buffers must not change until they are durable.

        If an earlier append of this thread was dropped meanwhile, that is raised instead.
        """
        if entries:
            self._make_room()
            with self._guard:
                self._check_appended()
                self._appended.last = self._stage(entries), entries[-1].index

    def propose(self, payload: Buffer, term: int, kind: EntryKind = EntryKind.NORMAL) -> int:
        """See `RaftLog`."""
        with self._guard:
            index = self._history.last_index + 1
            group = self._stage([LogEntry(index, term, payload, kind)])
        self._staging.wait(group)
        group.check(index)
        return index

    def sync(self) -> None:
        """See `RaftLog`: what this thread appended, and what others had appended until now."""
        with self._guard:
            self._check_usable()
            self._check_appended()
            self._appended.last = None
            group = self._staging.last()
            index = group.last_index if group is not None else 0
        if group is not None:
            self._staging.wait(group)
            group.check(index)

    def truncate_suffix(self, from_index: int) -> None:
        """See `RaftLog`."""
        with self._alone():
            self._staging.drain()
            check_truncation(from_index, self.snapshot_index)
            if from_index <= self._wal.last_index:
                with self._followed():
                    self._wal.truncate(from_index - 1)

    def set_hard_state(self, state: HardState) -> None:
        """See `RaftLog`."""
        with self._alone():
            check_hard_state(self._wal.hard_state, state)
            if state != self._wal.hard_state:
                self._wal.set_hard_state(state)

    def apply_snapshot(self, snapshot: Snapshot) -> None:
        """See `RaftLog`. Other threads write on until the last step."""
        with self._snapshotting:
            with self._alone():
                # Behind a mark of unknown outcome its file must not be replaced.
                self._wal.flush()
            if snapshot.index <= self.snapshot_index:
                return
            check_snapshot_follows(snapshot, self._history.boundary.term)
            try:
                checksum = self._snapshots.write(snapshot.index, snapshot.data)
                self._mark(snapshot, Note(len(snapshot.data), checksum, snapshot.membership))
            finally:
                self._remove_leftovers()

    def _mark(self, snapshot: Snapshot, note: Note) -> None:
        """Make a written snapshot the valid one."""
        with self._alone():
            # Entries that were refused are their callers' loss; the snapshot may free the space.
            with contextlib.suppress(RejectedError):
                self._staging.drain()
            index, term = snapshot.index, snapshot.term
            held = index <= self._wal.last_index and self._history.term_at(index) == term
            with self._followed():
                self._wal.release(index, encode_note(note), term=term, reset=not held)

    def _remove_leftovers(self) -> None:
        """Remove all snapshots but the valid one, unless it is not known which that is."""
        try:
            with self._alone():
                self._wal.flush()
        except LakebedError:
            return
        self._snapshots.remove_all_but(self._wal.mark.index)

    # Life

    def stats(self) -> WalStats:
        """Return the WAL's counters and picture."""
        return self._wal.stats()

    def close(self) -> None:
        """See `RaftLog`; waits for a snapshot that is being applied."""
        if self._process != os.getpid():
            return
        with self._snapshotting:
            if self._closed:
                return
            try:
                with self._staging.alone():
                    self._closed = True
                    self._staging.drain()
            finally:
                self._closed = True
                self._wal.close()

    # With the guard

    def _stage(self, entries: Sequence[LogEntry]) -> ProposalGroup:
        self._check_usable()
        history = self._history
        checked = checked_entries(
            entries,
            last_index=history.last_index,
            last_term=history.last_term,
            bytes_max=self._wal.config.entry_bytes_max,
        )
        memberships = [checked_membership(entry) for entry in checked]
        for entry, membership in zip(checked, memberships, strict=True):
            history.add(entry.index, entry.term, membership)
        return self._staging.add(checked)

    def _check_appended(self) -> None:
        """Raise what became of this thread's last append, once, if it was dropped."""
        last: tuple[ProposalGroup, int] | None = getattr(self._appended, "last", None)
        if last is not None and last[0].settled:
            self._appended.last = None
            last[0].check(last[1])

    def _rewound(self) -> int:
        """Take back from the view what was staged and dropped; return the last index synced."""
        self._history.cut(self._wal.last_index)
        self._changes += 1
        return self._wal.stats().durable_index

    def _check_usable(self) -> None:
        if self._closed or self._process != os.getpid():
            raise ClosedError("the log is closed", path=self._wal.folder)

    # In the thread that leads

    def _write(self, entries: Sequence[LogEntry]) -> None:
        """Hand entries to the WAL, each at its index, and return when they are durable."""
        wal = self._wal
        wal.flush()
        # If a leader was interrupted, the WAL may have taken some of these already.
        rest = [entry for entry in entries if entry.index > wal.last_index]
        try:
            for run in runs(rest):
                self._write_run(run)
        except RejectedError:
            wal.flush()  # what was taken before stays, so it must not be reported as refused
            raise
        wal.flush()

    def _write_run(self, run: list[LogEntry]) -> None:
        wal, first = self._wal, run[0]
        if first.index != wal.last_index + 1:
            raise AssertionError(f"entry {first.index} staged behind {wal.last_index}")
        if first.kind is EntryKind.NORMAL:
            wal.append_many([entry.payload for entry in run], term=first.term)
        else:
            wal.append(first.payload, term=first.term, kind=first.kind)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._guard:
            self._check_usable()
        with self._staging.alone():
            self._check_usable()
            yield

    @contextlib.contextmanager
    def _followed(self) -> Iterator[None]:
        """Bring the view in line with the WAL after a change to it, whatever became of that."""
        try:
            yield
        finally:
            with contextlib.suppress(LakebedError):
                self._wal.flush()
            with self._guard:
                self._follow()

    def _follow(self) -> None:
        wal = self._wal
        if wal.mark.index != self._history.boundary.index:
            self._history.release(boundary_of(wal.mark))
            self._changes += 1
        if self._staging.first_index != wal.last_index + 1:
            self._staging.drop(
                NotContiguousError("the log was cut where this was to follow", cut=wal.last_index)
            )
            self._rewound()

    def _make_room(self) -> None:
        """Write what is staged before it takes too much memory."""
        with self._guard:
            group = self._staging.last()
        if group is not None and group.payload_bytes > limits.QUEUE_BYTES_MAX:
            self._staging.wait(group)


def _check_not_topics(disk: Disk, wal: Wal) -> None:
    """Refuse a log with topics of version 0.6, which does not say that it is one.

    Opening it here would remove its snapshots. It has folders that no Raft node makes, or entries
    and not a single term: a node's first election gives it term 1.
    """
    with translated("looking for a log with topics", wal.folder):
        topics = not _TOPICS_FOLDERS.isdisjoint(disk.names(wal.folder))
    has_entries = wal.last_index > 0 and not wal.last_term and wal.hard_state == HardState()
    if topics or (has_entries and not wal.mark.note):
        raise other_kind(wal.folder, RAFT, TOPICS)
