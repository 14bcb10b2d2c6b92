"""From what lies on disk to a log that goes on: snapshot, replay, and files put in their place.

1. the newest snapshot that can be read and whose replay the WAL still holds
2. every entry behind it, applied exactly as when it was written
3. the lake compared with the state: a segment that the state names must be there, unless it is in
   the object store; one that it has dropped is removed, as soon as no table needs it; anything else
   was never part of the log and goes to `quarantine/`

A snapshot that cannot be read is passed over only if the one before it, or an empty state, leads to
the same place: the WAL must hold every entry since. Otherwise the log is refused.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from lakebed.engine.core import Core, Prepared, load_staged_bodies
from lakebed.engine.leftovers import may_be_dropped, may_be_unfinished, segment_owners
from lakebed.engine.write_runs import WriteRuns
from lakebed.errors import (
    CorruptionError,
    EntryLostError,
    InvalidArgumentError,
    MissingFileError,
    from_os_error,
)
from lakebed.host import Mode, read_exactly
from lakebed.lake.folder import LakeFolder, SegmentName
from lakebed.state.command_codec import decode
from lakebed.state.commands import TOPIC_COMMANDS, parts_of
from lakebed.state.decision import Dropped
from lakebed.state.image import State, decode_state
from lakebed.state.values import BOTH, LOCAL, STORE, Segment
from lakebed.wal import Wal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakebed.host import Disk
    from lakebed.state.snapshot_files import SnapshotFolder
    from lakebed.types import Entry

_log = logging.getLogger("lakebed.engine")

ENTRIES_AT_A_TIME: Final = 200


@dataclass
class Recovered:
    """What opening found and did."""

    snapshot_index: int = 0
    replayed_entries: int = 0
    snapshots_passed_over: int = 0
    files_removed: int = 0
    files_quarantined: int = 0
    snapshots: dict[int, State] = field(default_factory=dict)
    """The snapshots that can be read."""
    dropped: list[Dropped] = field(default_factory=list)
    """Segments that the log has dropped, whose files are there."""


def load_snapshot(snapshots: SnapshotFolder, wal: Wal) -> tuple[State, Recovered]:
    """Return the state to begin with."""
    recovered = Recovered()
    refusal: CorruptionError | None = None
    for index in reversed(snapshots.indexes()):
        if index < wal.mark.index:
            break  # replay would miss entries that are released
        try:
            state = decode_state(snapshots.load(index), snapshots.path(index))
            if state.numbers["applied"] != index:
                raise CorruptionError("a snapshot has another name", file=snapshots.path(index))
        except CorruptionError as error:
            _log.error("a snapshot cannot be used: %s", error)
            refusal = refusal or error
            recovered.snapshots_passed_over += 1
            continue
        recovered.snapshots[index] = state
    if not recovered.snapshots:
        if wal.mark.index > 0:
            raise refusal or MissingFileError(
                "the snapshot is missing, and the WAL does not go back far enough to replace it",
                folder=snapshots.path(0).parent,
                first_index=wal.first_index,
            )
        return State(), recovered
    recovered.snapshot_index = max(recovered.snapshots)
    if recovered.snapshot_index > wal.last_index:
        raise MissingFileError(
            "the WAL ends before the snapshot: a WAL file is missing",
            last_index=wal.last_index,
            snapshot=recovered.snapshot_index,
        )
    return recovered.snapshots[recovered.snapshot_index].copy(), recovered


def replay(
    core: Core, wal: Wal, recovered: Recovered, progress: Callable[[int, int], None]
) -> None:
    """Apply every entry behind the snapshot."""
    first, last = recovered.snapshot_index + 1, wal.last_index
    for start, end in wal.gaps():
        if end >= first:
            raise EntryLostError(
                "the log was salvaged with a gap; offsets after it are unknown",
                first=start,
                last=end,
            )
    core.bodies.update(load_staged_bodies(core))
    runs, index = WriteRuns(core), first
    while entries := wal.read(index, max_entries=ENTRIES_AT_A_TIME):
        apply_entries(core, runs, entries)
        index += len(entries)
        recovered.replayed_entries += len(entries)
        progress(index - first, last - first + 1)
    runs.finish()


def apply_entries(core: Core, runs: WriteRuns, entries: Sequence[Entry]) -> None:
    """Apply entries that follow each other; those that `runs` holds are applied by its `finish`."""
    position = runs.take(entries, 0)
    while position < len(entries):
        runs.finish()
        _apply(core, entries[position], runs)
        position = runs.take(entries, position + 1)


def _apply(core: Core, entry: Entry, runs: WriteRuns) -> None:
    """Apply an entry alone."""
    command, raw = decode(entry.payload)
    bodies = [core.body_of(part, body) for part, body in zip(parts_of(command), raw, strict=True)]
    core.apply(entry.index, Prepared(command, bodies))
    core.used["wal_bytes"] += len(entry.payload)
    if isinstance(command, TOPIC_COMMANDS):
        runs.forget()


def tidy(
    core: Core,
    lake: LakeFolder,
    disk: Disk,
    root: Path,
    recovered: Recovered,
    *,
    stored: bool,
    shared: bool = False,
) -> None:
    """Make the lake hold exactly the state's segments; `stored` if there is an object store.

    A `shared` log may have had other owners, who gave the numbers of unfinished segments of this
    folder to others: a file that is not what the state names is put aside, the store has the right
    one.
    """
    copies = {
        (topic, partition, segment.id): segment
        for (topic, partition), state in core.state.partitions.items()
        for segment in state.segments
        if shared and segment.place == BOTH
    }
    segments = {
        (topic, partition, segment.id): segment.place
        for (topic, partition), state in core.state.partitions.items()
        for segment in state.segments
    }
    if not stored:
        _check_local(segments)
    needed = {key for key, location in segments.items() if location == LOCAL or not stored}
    owners = segment_owners(core.state)
    strange: list[Path] = []
    for name in lake.listing():
        if isinstance(name, Path):
            unfinished = lake.parse_unfinished(name)
            if unfinished is not None and may_be_unfinished(core.state, unfinished):
                _remove(disk, name)
                recovered.files_removed += 1
            else:
                strange.append(name)
        elif segments.get(name) == STORE:
            lake.remove(*name)  # readers take it from the store
            recovered.files_removed += 1
        elif name in segments and _is_copy(disk, lake.path(*name), copies.get(name)):
            needed.discard(name)
        elif name not in segments and may_be_dropped(core.state, owners, name):
            recovered.dropped.append(name)  # the process died before it was removed
        else:
            strange.append(lake.path(*name))
    core.dropped.clear()
    if needed:
        raise _missing(lake, needed)
    staged = core.list_staged_needed().union(
        pending.staged
        for state in recovered.snapshots.values()
        for transaction in state.transactions.values()
        for pending in transaction.pending
    )
    strange += [core.staging.folder / name for name in core.staging.keep_only(staged)]
    for path in strange:
        quarantine(disk, root, path)
    recovered.files_quarantined = len(strange)


def quarantine(disk: Disk, root: Path, path: Path) -> None:
    """Put a file aside that is not part of the log. It is never deleted."""
    folder = root / "quarantine"
    try:
        disk.make_folder(folder)
        taken = set(disk.names(folder))
        name, attempt = f"{path.parent.name}-{path.name}", 0
        while name in taken:
            attempt += 1
            name = f"{path.parent.name}-{path.name}.{attempt}"
        disk.rename(path, folder / name)
        disk.sync_folder(folder)
        disk.sync_folder(path.parent)
    except OSError as error:
        raise from_os_error(error, "putting a file aside", path) from error
    _log.warning("a file that is not part of the log was put aside: %s", folder / name)


def _is_copy(disk: Disk, path: Path, segment: Segment | None) -> bool:
    """Return True if a file has the length and the end of a segment, if one is given."""
    if segment is None:
        return True
    try:
        file = disk.open(path, Mode.READ)
    except FileNotFoundError:
        return True  # there is nothing to put aside
    try:
        if file.size() != segment.file_bytes:
            return False
        tail = read_exactly(file, segment.file_bytes - segment.tail_bytes, segment.tail_bytes)
        return crc32c(tail) == segment.tail_checksum
    except OSError as error:
        raise from_os_error(error, "comparing a segment", path) from error
    finally:
        file.close()


def _remove(disk: Disk, path: Path) -> None:
    try:
        disk.remove(path)
    except OSError as error:
        raise from_os_error(error, "removing an unfinished segment", path) from error


def _check_local(segments: Mapping[tuple[int, int, int], int]) -> None:
    """Refuse settings without a store if a segment is there alone."""
    count = sum(location == STORE for location in segments.values())
    if count:
        raise InvalidArgumentError(
            "segments are only in the object store, and the settings name none",
            setting="store",
            segments=count,
        )


def _missing(lake: LakeFolder, needed: set[tuple[int, int, int]]) -> MissingFileError:
    first = min(needed)
    return MissingFileError("a segment is missing", file=lake.path(*first), missing=len(needed))


__all__ = ["Recovered", "SegmentName", "load_snapshot", "quarantine", "replay", "tidy"]
