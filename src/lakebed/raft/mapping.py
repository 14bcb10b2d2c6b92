"""Between the replicated log's values and the WAL's: entries, runs of them, marks, and the scan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakebed import limits
from lakebed.errors import CorruptionError, EntryLostError
from lakebed.raft.checks import not_found
from lakebed.raft.codec import Note, decode_membership, decode_note
from lakebed.raft.history import Boundary, History
from lakebed.raft.values import LogEntry, Membership
from lakebed.types import EntryKind
from lakebed.wal import Entry, Mark, Wal

_READ_ENTRIES_MAX = 1000
"""How many entries are read from the WAL at a time."""

_FRAME_BYTES = 128
"""What a frame takes beside its payload at most: the header, and padding."""


def read_durable(wal: Wal, first: int, last: int, bytes_max: int) -> list[LogEntry]:
    """Read entries from the WAL until one goes beyond `bytes_max`, or a salvage left a hole."""
    found: list[LogEntry] = []
    taken_bytes = 0
    while first <= last and taken_bytes <= bytes_max:
        try:
            batch = wal.read(
                first,
                max_entries=min(_READ_ENTRIES_MAX, last + 1 - first),
                max_bytes=bytes_max + 1 - taken_bytes,
            )
        except EntryLostError:
            if found:
                return found
            raise
        if not batch:  # truncated a moment ago
            raise not_found(first, wal.last_index)
        found += [LogEntry(each.index, each.term, each.payload, each.kind) for each in batch]
        taken_bytes += sum(len(each.payload) for each in batch)
        first += len(batch)
    return found


def runs(entries: Sequence[LogEntry]) -> Iterator[list[LogEntry]]:
    """Split entries into what the WAL takes or refuses as one: a term, and no more than a group.

    A configuration entry is a run of its own. A group that is refused must leave nothing behind
    that could be taken in its place.
    """
    run: list[LogEntry] = []
    run_bytes = 0
    for entry in entries:
        size_bytes = entry.payload_bytes + _FRAME_BYTES
        if run and not (
            entry.kind is run[0].kind is EntryKind.NORMAL
            and entry.term == run[0].term
            and run_bytes + size_bytes <= limits.GROUP_BYTES_MAX
            and len(run) < limits.GROUP_FRAMES_MAX
        ):
            yield run
            run, run_bytes = [], 0
        run.append(entry)
        run_bytes += size_bytes
    if run:
        yield run


def note_of(mark: Mark) -> Note:
    """Return what a release mark says about its snapshot."""
    try:
        return decode_note(mark.note)
    except CorruptionError as error:
        raise CorruptionError(
            "the release mark does not name a snapshot", index=mark.index, reason=repr(str(error))
        ) from error


def boundary_of(mark: Mark) -> Boundary:
    """Return where a release mark's snapshot ends."""
    return Boundary(mark.index, mark.term, note_of(mark).membership) if mark.index else Boundary()


def load_history(wal: Wal) -> History:
    """Read every entry's term, and every membership, from the WAL.

    Entries that a salvage could not save have no term; reading one raises `EntryLostError`.
    """
    history = History(boundary_of(wal.mark))
    while history.last_index < wal.last_index:
        try:
            batch = wal.read(history.last_index + 1)
        except EntryLostError as error:
            following = error.facts.get("next_index")
            lost = following - 1 if isinstance(following, int) else wal.last_index
            history.add(lost, None)
            continue
        for entry in batch:
            history.add(entry.index, entry.term, _membership(entry))
    return history


def _membership(entry: Entry) -> Membership | None:
    if entry.kind is not EntryKind.CONFIGURATION:
        return None
    try:
        return decode_membership(entry.payload)
    except CorruptionError as error:
        raise CorruptionError(
            "a configuration entry does not hold a membership",
            index=entry.index,
            reason=repr(str(error)),
        ) from error
