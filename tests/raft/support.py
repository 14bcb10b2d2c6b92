"""What the tests of the replicated log share: small logs on a simulated disk, and their picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from lakebed.config import WalConfig
from lakebed.host import Disk, ManualClock, SimDisk
from lakebed.raft import (
    EntryKind,
    HardState,
    LogEntry,
    Membership,
    RaftLog,
    Snapshot,
    WalLog,
    encode_membership,
)

ROOT = Path("/log")
SMALL = WalConfig(file_bytes=4096, spare_files=0)


def open_sim(disk: Disk, config: WalConfig = SMALL) -> WalLog:
    """Open a log on a disk of the tests, everything in this thread."""
    return WalLog.open(ROOT, config, disk=disk, clock=ManualClock(), threaded=False)


def entry(index: int, term: int = 1, payload: bytes | None = None) -> LogEntry:
    """Make an entry whose payload says where it belongs."""
    return LogEntry(index, term, b"entry %d/%d" % (index, term) if payload is None else payload)


def configuration(index: int, term: int, membership: Membership) -> LogEntry:
    """Make an entry that changes the membership."""
    return LogEntry(index, term, encode_membership(membership), EntryKind.CONFIGURATION)


def fill(log: RaftLog, last: int, term: int = 1, payload_bytes: int | None = None) -> None:
    """Append entries up to `last`, each with a sync, so that they fill one file after another."""
    payload = None if payload_bytes is None else b"x" * payload_bytes
    for index in range(log.last_index + 1, last + 1):
        log.append([entry(index, term, payload)])
        log.sync()


def snapshot(
    index: int, term: int = 1, data: bytes = b"state", voters: tuple[int, ...] = (1, 2, 3)
) -> Snapshot:
    """Make a snapshot."""
    return Snapshot(index, term, Membership(voters), data)


class Picture(NamedTuple):
    """Everything a log shows."""

    first_index: int
    last_index: int
    last_term: int
    terms: list[int | None]
    entries: list[tuple[int, int, bytes, EntryKind]]
    hard_state: HardState
    snapshot: Snapshot | None
    membership: Membership


def picture(log: RaftLog) -> Picture:
    """Read everything a log shows, and check that its parts agree."""
    found: list[LogEntry] = []
    while log.first_index + len(found) <= log.last_index:
        found += log.entries(log.first_index + len(found))
    for each in found:
        assert log.entry(each.index) == each
    held = log.snapshot()
    assert log.snapshot_index == log.first_index - 1 == (held.index if held else 0)
    return Picture(
        log.first_index,
        log.last_index,
        log.last_term,
        [log.term_at(index) for index in range(log.last_index + 3)],
        [(each.index, each.term, bytes(each.payload), each.kind) for each in found],
        log.hard_state,
        held,
        log.membership(),
    )


class _Reopening:
    """A log that is closed and opened again after every call."""

    def __init__(self, opener: Callable[[], WalLog]) -> None:
        self._opener = opener
        self._log = opener()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._log, name)
        if not callable(value) or name == "close":
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return value(*arguments, **named)
            finally:
                self._log.close()
                self._log = self._opener()

        return call


def reopening(disk: SimDisk) -> RaftLog:
    """Return a log that is closed and opened again after every call."""
    return cast(RaftLog, _Reopening(lambda: open_sim(disk)))
