"""Verifying a log without owning it: what opening it would find, told as exactly as possible.

`recovery.survey` is the judge. This adds what matters to an observer:
the first index that a damaged file header or a missing file affects, and the end of a log that a
living process is writing at the same time.
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

_VANISHED_ATTEMPTS: Final = 100
"""How often, if a file was gone that had just been listed: its owner frees them as it writes."""

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
        for attempt in range(1, _VANISHED_ATTEMPTS + 1):
            findings = _verify(disk, layout, progress, owner)
            is_final = attempt >= _ATTEMPTS and not _is_vanished_file(findings.error)
            if owner is None or findings.verdict is Verdict.OPEN or is_final:
                break
        return findings
    except OSError as error:
        raise from_os_error(error, "reading the log", layout.root) from error


def _is_vanished_file(error: LakebedError | None) -> bool:
    return isinstance(error, DeviceError) and error.facts.get("errno") == "ENOENT"


def _verify(
    disk: Disk, layout: Layout, progress: Progress | None, owner: dict[str, object] | None
) -> Findings:
    try:
        survey_result = survey(disk, layout, progress)
    except StopError as stopped:
        return _report_unreadable(disk, layout, stopped, owner)
    verdict, error = survey_result.verdict, survey_result.error
    if owner is not None and _end_moved(disk, survey_result):
        verdict, error = Verdict.OPEN, None
    if isinstance(error, MissingFileError):
        error = _with_missing_files(disk, survey_result, error)
    return Findings(layout, verdict, survey_result.log_id, survey_result, error, owner)


def _report_unreadable(
    disk: Disk, layout: Layout, error: StopError, owner: dict[str, object] | None
) -> Findings:
    """Report a log with a bad file header, with the first index that it affects."""
    log = find_files(disk, layout)
    verdict = Verdict.DEVICE_ERROR if isinstance(error, DeviceError) else Verdict.CORRUPTION
    index = _index_of(disk, log, error)
    shown = error if index is None else type(error)(error.message, **error.facts, index=index)
    return Findings(layout, verdict, log.log_id, None, shown, owner)


def _index_of(disk: Disk, log: FoundLog, error: StopError) -> int | None:
    """Return the first index at risk from what is wrong at a file and byte, if it can be known."""
    path, byte = error.facts.get("file"), error.facts.get("byte", 0)
    if not isinstance(path, Path) or not isinstance(byte, int) or log.log_id is None:
        return None
    match = _FILE_NAME.fullmatch(path.name)
    if match is None or path not in {file.path for file in log.files}:
        return None
    return _index_at(disk, path, int(match.group(1)), log.log_id, byte)


def _index_at(disk: Disk, path: Path, file_number: int, log_id: uuid.UUID, byte: int) -> int | None:
    """Return the index of the first entry at or behind a byte, or the one after the last entry."""
    file = disk.open(path, Mode.READ)
    try:
        walk = FileWalk(
            Forgiving(file),
            file_number=file_number,
            salt=salt_of(log_id),
            parent=None,
            torn_allowed=False,
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


def _with_missing_files(
    disk: Disk, survey_result: Survey, error: MissingFileError
) -> MissingFileError:
    """Return which files are missing, and from which index on, if there are files before them."""
    before = [file for file in survey_result.files if file.released]
    first = next(file for file in survey_result.files if not file.released)
    numbers = (before[-1].number if before else 0) + 1, first.number - 1
    facts = {**error.facts, "missing_files": _range(*numbers)}
    if before:
        lost = _index_at(disk, before[-1].path, before[-1].number, survey_result.log_id, 2**63)
        facts["first_index_lost"] = max(lost or 1, survey_result.state.mark.index + 1)
    return MissingFileError(error.message, **facts)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _end_moved(disk: Disk, survey_result: Survey) -> bool:
    """Return whether a frame was written since, where the survey saw the log's end."""
    last = survey_result.files[-1]
    in_last_file = survey_result.error is None or survey_result.error.facts.get("file") == last.path
    if survey_result.stop is None or not in_last_file:
        return False
    file = disk.open(last.path, Mode.READ)
    try:
        scan = FileScan(
            file,
            file_number=last.number,
            salt=salt_of(survey_result.log_id),
            parent=survey_result.state.link,
            start=survey_result.stop.position,
        )
        return next(scan.frames(), None) is not None
    finally:
        file.close()
