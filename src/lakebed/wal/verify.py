"""Verifying a log without owning it: what opening it would find, told as exactly as possible.

`recovery.survey` is the judge. Here is added what only matters to somebody who looks from outside:
the index at which a damaged file header or a missing file begins to hurt, and the end of a log that
a living process is writing meanwhile.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakebed.errors import (
    DeviceError,
    LakebedError,
    MissingFileError,
    StopError,
    from_os_error,
)
from lakebed.host import Disk, Mode
from lakebed.wal.examine import FileWalk, Forgiving, FoundLog, Frame, find_files
from lakebed.wal.folder import Layout, living_owner
from lakebed.wal.frame import ENTRY, FrameKind, salt_of
from lakebed.wal.recovery import Progress, Survey, Verdict, survey
from lakebed.wal.scan import FileScan

_ATTEMPTS: Final = 3
"""How often a log in use is read, when it changed under the reader."""

_FILE_NAME: Final = re.compile(r"(\d{20})\.wal")


@dataclass(frozen=True)
class Findings:
    """What verifying found."""

    layout: Layout
    verdict: Verdict
    log_id: uuid.UUID | None
    survey: Survey | None
    """None if the log could not be read far enough for one."""
    error: LakebedError | None
    """What opening would raise, with the first bad file, byte and index."""
    owner: dict[str, object] | None
    """The living process that owns the log, and may be moving its end."""


def verify(disk: Disk, layout: Layout, progress: Progress | None = None) -> Findings:
    """Read and verify every byte that counts, changing nothing.

    Damage is in the result. Raised is what makes the question meaningless: a newer format, a folder
    that may not be read.
    """
    try:
        owner = living_owner(disk, layout)
        for _ in range(_ATTEMPTS - 1):
            findings = _verify(disk, layout, progress, owner)
            if owner is None or findings.verdict is Verdict.OPEN:
                return findings
        return _verify(disk, layout, progress, owner)
    except OSError as error:
        raise from_os_error(error, "reading the log", layout.root) from error


def _verify(
    disk: Disk, layout: Layout, progress: Progress | None, owner: dict[str, object] | None
) -> Findings:
    try:
        found = survey(disk, layout, progress)
    except StopError as stopped:
        return _unsurveyed(disk, layout, stopped, owner)
    verdict, error = found.verdict, found.error
    if owner is not None and _end_moved(disk, found):
        verdict, error = Verdict.OPEN, None
    if isinstance(error, MissingFileError):
        error = _missing(disk, found, error)
    return Findings(layout, verdict, found.log_id, found, error, owner)


def _unsurveyed(
    disk: Disk, layout: Layout, error: StopError, owner: dict[str, object] | None
) -> Findings:
    """Report a log of which a file header is bad, with the index where that begins to hurt."""
    found = find_files(disk, layout)
    verdict = Verdict.DEVICE_ERROR if isinstance(error, DeviceError) else Verdict.CORRUPTION
    index = _index_of(disk, found, error)
    shown = error if index is None else type(error)(error.message, **error.facts, index=index)
    return Findings(layout, verdict, found.log_id, None, shown, owner)


def _index_of(disk: Disk, found: FoundLog, error: StopError) -> int | None:
    """Return the first index at risk from what is wrong at a file and byte, if it can be known."""
    path, byte = error.facts.get("file"), error.facts.get("byte", 0)
    if not isinstance(path, Path) or not isinstance(byte, int) or found.log_id is None:
        return None
    match = _FILE_NAME.fullmatch(path.name)
    if match is None or path not in {file.path for file in found.files}:
        return None
    return _index_at(disk, path, int(match.group(1)), found.log_id, byte)


def _index_at(disk: Disk, path: Path, number: int, log_id: uuid.UUID, byte: int) -> int | None:
    """Return the index of the first entry at or behind a byte, or the one after the last entry."""
    file = disk.open(path, Mode.READ)
    try:
        walk = FileWalk(
            Forgiving(file), number=number, salt=salt_of(log_id), parent=None, torn_allowed=False
        )
        following = None
        for piece in walk.pieces():
            if not isinstance(piece, Frame):
                continue
            kind, index = piece.fields[4], piece.fields[8]
            if piece.position >= byte and kind == ENTRY:
                return index
            if kind != FrameKind.RELEASE:
                following = index + 1
            if piece.position >= byte and kind in (FrameKind.HARD_STATE, FrameKind.IDLE):
                return following
        return following
    finally:
        file.close()


def _missing(disk: Disk, found: Survey, error: MissingFileError) -> MissingFileError:
    """Return which files are missing, and from which index on, if there are files before them."""
    before = [file for file in found.files if file.released]
    first = next(file for file in found.files if not file.released)
    numbers = (before[-1].number if before else 0) + 1, first.number - 1
    facts = {**error.facts, "missing_files": _range(*numbers)}
    if before:
        lost = _index_at(disk, before[-1].path, before[-1].number, found.log_id, 2**63)
        facts["first_index_lost"] = max(lost or 1, found.state.mark.index + 1)
    return MissingFileError(error.message, **facts)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _end_moved(disk: Disk, found: Survey) -> bool:
    """Return whether a frame was written since, where the survey saw the log's end."""
    last = found.files[-1]
    in_last_file = found.error is None or found.error.facts.get("file") == last.path
    if found.stop is None or not in_last_file:
        return False
    file = disk.open(last.path, Mode.READ)
    try:
        scan = FileScan(
            file,
            number=last.number,
            salt=salt_of(found.log_id),
            parent=found.state.link,
            start=found.stop.position,
        )
        return next(scan.frames(), None) is not None
    finally:
        file.close()
