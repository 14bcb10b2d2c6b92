"""What every implementation of the log refuses, and with which error: pure functions of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakebed.errors import (
    EntryNotFoundError,
    EntryReleasedError,
    EntryTooLargeError,
    InvalidArgumentError,
    LakebedError,
    NotContiguousError,
)
from lakebed.raft.codec import decode_membership
from lakebed.raft.values import LogEntry, Membership, Snapshot, check_term, is_u64
from lakebed.types import EntryKind, HardState


def checked_entries(
    entries: Sequence[LogEntry], *, last_index: int, last_term: int, bytes_max: int
) -> list[LogEntry]:
    """Return entries that may follow `last_index` at `last_term`, with flat payloads, or refuse."""
    checked = []
    for entry in entries:
        check_term(entry.term)
        if entry.index != last_index + 1 or entry.term < last_term:
            raise NotContiguousError(
                "the entry does not follow the last one",
                index=entry.index,
                term=entry.term,
                last_index=last_index,
                last_term=last_term,
            )
        if not isinstance(entry.kind, EntryKind):
            raise InvalidArgumentError(
                "an entry's kind must be an EntryKind", kind=repr(entry.kind)
            )
        checked.append(_flat(entry, bytes_max))
        last_index, last_term = entry.index, entry.term
    return checked


def _flat(entry: LogEntry, bytes_max: int) -> LogEntry:
    """Return the entry with a payload of single bytes, refusing what is none or is too large."""
    try:
        view = memoryview(entry.payload).cast("B")
    except TypeError as error:
        raise InvalidArgumentError(
            "an entry's payload must be bytes or a contiguous buffer",
            got=type(entry.payload).__name__,
        ) from error
    if len(view) > bytes_max:
        raise EntryTooLargeError("the entry is too large", bytes=len(view), bytes_max=bytes_max)
    return entry if isinstance(entry.payload, bytes) else replace(entry, payload=view)


def check_hard_state(current: HardState, following: HardState) -> None:
    """Refuse a hard state that would take the node back to an earlier term."""
    check_term(following.term)
    if following.vote is not None and not is_u64(following.vote):
        raise InvalidArgumentError(
            "vote must be an integer of 64 bits or None", vote=repr(following.vote)
        )
    if following.term < current.term:
        raise InvalidArgumentError(
            "the term must not decrease", term=following.term, current_term=current.term
        )


def check_range(first: int, last: int | None, bytes_max: int) -> None:
    """Refuse a read that could never give anything."""
    if bytes_max < 1 or (last is not None and last < first - 1):
        raise InvalidArgumentError(
            "a read goes from first to last and takes at least one byte",
            first=first,
            last=last,
            bytes_max=bytes_max,
        )


def within(entries: Sequence[LogEntry], bytes_max: int) -> list[LogEntry]:
    """Return the first entry, and those after it whose payloads fit `bytes_max` together."""
    taken_bytes = 0
    for number, entry in enumerate(entries):
        taken_bytes += entry.payload_bytes
        if number and taken_bytes > bytes_max:
            return list(entries[:number])
    return list(entries)


def checked_membership(entry: LogEntry) -> Membership | None:
    """Return what a configuration entry says, None for another; refuse one that says nothing."""
    if entry.kind is not EntryKind.CONFIGURATION:
        return None
    try:
        return decode_membership(entry.payload)
    except LakebedError as error:
        raise InvalidArgumentError(
            "a configuration entry's payload is not a membership",
            index=entry.index,
            reason=repr(str(error)),
        ) from error


def check_snapshot_follows(snapshot: Snapshot, boundary_term: int) -> None:
    """Refuse a snapshot that is newer than the last one and yet of an earlier term."""
    if snapshot.term < boundary_term:
        raise InvalidArgumentError(
            "a snapshot's term must not decrease",
            index=snapshot.index,
            term=snapshot.term,
            last_term=boundary_term,
        )


def released(index: int, snapshot_index: int) -> EntryReleasedError:
    """Report that an entry is in the snapshot."""
    return EntryReleasedError("the entry was released", index=index, first_index=snapshot_index + 1)


def not_found(index: int, last_index: int) -> EntryNotFoundError:
    """Report that an entry is not there yet."""
    return EntryNotFoundError("the entry does not exist yet", index=index, last_index=last_index)


def check_truncation(from_index: int, snapshot_index: int) -> None:
    """Refuse to void what the snapshot holds."""
    if from_index <= snapshot_index:
        raise InvalidArgumentError(
            "cannot truncate what the snapshot holds",
            from_index=from_index,
            snapshot_index=snapshot_index,
        )
