"""A folder and the chain: which entries both have, and what is done with the others.

| the folder's WAL | what happens |
|---|---|
| is empty, or ends before the base | the base's snapshot is installed, slots are added |
| agrees, and is shorter | the entries it lacks are added from the slots |
| agrees, and is longer | what only it has is shipped, once this process owns the log |
| differs from some index on | the rest is set aside in `diverged/`; then as if it were empty |

Two logs agree up to an index if the entry there has the same term in both: no two owners have the
same term, and an owner writes an index once. Nothing is merged, and nothing is removed: a folder
in `diverged/` has every entry that was set aside.
"""

from __future__ import annotations

import bisect
import json
import logging
from pathlib import Path
from typing import Final

from crc32c import crc32c

from lakebed.chain.calls import Procedure
from lakebed.chain.checkpoint import read_snapshot
from lakebed.chain.records import Base
from lakebed.chain.slot import Slot, payloads
from lakebed.errors import LakebedError, translate_os_errors
from lakebed.host import Disk, failpoints
from lakebed.host.atomic import write_atomically
from lakebed.host.disk import write_all
from lakebed.state.command_codec import decode
from lakebed.state.commands import parts_of
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.types import Entry, EntryKind
from lakebed.wal import Wal

_log = logging.getLogger("lakebed.engine")

DIVERGED: Final = "diverged"
_APPEND_ENTRIES: Final = 512

_SET_ASIDE = failpoints.define("chain.local_set_aside")
_INSTALLED = failpoints.define("chain.snapshot_installed")
_RESET = failpoints.define("chain.local_reset")


class DivergedError(Exception):
    """The folder's WAL differs from the chain, from an index on."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class LocalLog:
    """The folder's WAL as a follower of the chain, before the log is recovered from it."""

    def __init__(self, wal: Wal, disk: Disk, folder: Path, snapshots: SnapshotFolder) -> None:
        self._wal = wal
        self._disk = disk
        self._folder = folder
        self._snapshots = snapshots
        self._reset = False
        self.diverged_entries = 0

    # Follower

    def load(self, base: Base) -> Procedure[None]:
        """Keep the WAL if it includes the base; else become the base's snapshot."""
        wal = self._wal
        if not self._reset:
            differs = self._first_difference(base)
            if differs is not None:
                raise DivergedError(differs)
            if base.index <= wal.last_index:
                return
        data = yield from read_snapshot(base)
        self._install(base, data)

    def apply(self, slot: Slot, body: memoryview) -> None:
        """Compare a slot with the WAL, and add the entries that the WAL lacks."""
        wal = self._wal
        missing: list[tuple[int, int, bytes]] = []
        for index, entry, payload in payloads(slot, body):
            if index <= wal.mark.index:
                continue
            if index > wal.last_index:
                missing.append((entry.term, entry.kind, bytes(payload)))
                continue
            local = wal.entry(index)
            if (local.term, len(local.payload)) != (entry.term, entry.length) or crc32c(
                local.payload
            ) != entry.checksum:
                raise DivergedError(index)
        self._append(missing)

    def _append(self, missing: list[tuple[int, int, bytes]]) -> None:
        start = 0
        while start < len(missing):
            term, kind, payload = missing[start]
            if kind != EntryKind.NORMAL:
                self._wal.append(payload, term=term, kind=EntryKind(kind))
                start += 1
                continue
            end = start
            while (
                end < len(missing)
                and end - start < _APPEND_ENTRIES
                and missing[end][:2] == (term, kind)
            ):
                end += 1
            self._wal.append_many([item[2] for item in missing[start:end]], term=term)
            start = end

    # Where they differ

    def _first_difference(self, base: Base) -> int | None:
        """Return the first index at which the WAL has another term than the chain up to its base.

        Terms never descend, so an entry behind the base with a smaller term than the base's
        differs as well; for the others the slots decide.
        """
        wal = self._wal
        firsts = [first for _, first in base.terms]

        def term_of(index: int) -> int:
            position = bisect.bisect_right(firsts, index)
            return base.terms[position - 1][0] if position else 0

        mark = wal.mark
        if 0 < mark.index <= base.index and mark.term != term_of(mark.index):
            return mark.index + 1
        for entry in wal.entries():
            if entry.index > base.index:
                return entry.index if entry.term < base.term else None
            if entry.term != term_of(entry.index):
                return entry.index
        return None

    def set_aside(self, index: int) -> None:
        """Copy every entry from `index` on to `diverged/`, with a report; then begin again."""
        wal = self._wal
        entries = list(wal.entries(index))
        report = _report(entries, wal)
        target = self._folder / DIVERGED / f"{index:020d}-{wal.last_index:020d}-{wal.last_term:x}"
        with translate_os_errors("setting entries aside", target):
            self._disk.make_folder(target)
            for entry in entries:
                self._write(target / f"{entry.index:020d}.entry", bytes(entry.payload))
            self._write(target / "report.json", json.dumps(report, indent=1).encode())
            self._disk.sync_folder(target)
            self._disk.sync_folder(target.parent)
        _SET_ASIDE.hit()
        self.diverged_entries += len(entries)
        self._reset = True
        _log.error(
            "the folder has %d entries that the store does not have; they are set aside: %s",
            len(entries),
            target,
        )

    def _write(self, path: Path, data: bytes) -> None:
        with write_atomically(self._disk, path, sync_folder=False) as file:
            if data:
                write_all(file, [data], 0, len(data))

    def _install(self, base: Base, data: bytes) -> None:
        """Make the folder that of a log whose snapshot is the base's and whose WAL is empty."""
        wal = self._wal
        if wal.last_index == 0 and not base.index:
            return
        if data:
            self._snapshots.write(base.index, data)
        # Before the WAL is reset: a snapshot of what was set aside must not be recovered from.
        self._snapshots.remove_all_but(*([base.index] if data else []))
        _INSTALLED.hit()
        wal.release(base.index, term=base.term, reset=True)
        _RESET.hit()
        self._reset = False


def _report(entries: list[Entry], wal: Wal) -> dict[str, object]:
    """Describe entries that were set aside."""
    records: dict[str, int] = {}
    unknown = 0
    for entry in entries:
        try:
            for part in parts_of(decode(entry.payload)[0]):
                name = f"topic {part.topic}"
                records[name] = records.get(name, 0) + sum(run.records for run in part.runs)
        except (LakebedError, TypeError, ValueError):
            unknown += 1
    times = [entry.time_us for entry in entries if entry.time_us]
    return {
        "log_id": str(wal.log_id),
        "entries": len(entries),
        "first_index": entries[0].index if entries else 0,
        "last_index": entries[-1].index if entries else 0,
        "bytes": sum(len(entry.payload) for entry in entries),
        "records": records,
        "entries_without_records": unknown,
        "first_time_us": min(times, default=0),
        "last_time_us": max(times, default=0),
        "terms": sorted({entry.term for entry in entries}),
    }
