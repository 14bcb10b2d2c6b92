"""What there is to see in a log, file by file and frame by frame, however damaged it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lakebed.host import Disk, Mode
from lakebed.wal.examine import (
    Damaged,
    FileWalk,
    Forgiving,
    FoundFile,
    FoundLog,
    Frame,
    Piece,
    find_files,
)
from lakebed.wal.folder import Layout
from lakebed.wal.frame import ENTRY, salt_of
from lakebed.wal.recovery import FileReport, Verdict
from lakebed.wal.verify import Findings


@dataclass
class FileRow:
    """One file: what it holds, and in which state it is."""

    number: int
    path: Path
    size_bytes: int
    state: str
    """`active`, `sealed`, `released` (a leftover), `torn tail`, `damaged` or `foreign`."""
    used_bytes: int = 0
    frames: int = 0
    entries: int = 0
    first_index: int | None = None
    last_index: int | None = None
    first_time_us: int | None = None
    last_time_us: int | None = None
    bad_byte: int | None = None
    """Where the first damaged byte is."""
    problem: str = ""

    def count(self, frame: Frame) -> None:
        """Count a frame in."""
        self.frames += 1
        if frame.fields[4] != ENTRY:
            return
        self.entries += 1
        index, time_us = frame.fields[8], frame.fields[12]
        if self.first_index is None:
            self.first_index, self.first_time_us = index, time_us
        self.last_index, self.last_time_us = index, time_us

    def mark_damaged(self, byte: int, problem: str) -> None:
        """Note the first thing that is wrong with the file."""
        if not self.problem:
            self.state, self.bad_byte, self.problem = "damaged", byte, problem


def file_rows(disk: Disk, findings: Findings) -> Iterator[FileRow]:
    """Yield every file in the order of numbers; read again only what verifying did not reach."""
    survey = findings.survey
    if survey is not None and findings.verdict in (Verdict.OPEN, Verdict.TORN_TAIL):
        for report in survey.files:
            last = report is survey.files[-1]
            yield _row_from_report(
                report, torn=last and findings.verdict is Verdict.TORN_TAIL, last=last
            )
        return
    log = find_files(disk, findings.layout)
    for file in log.files:
        yield _row_from_walk(disk, log, file)
    for file in log.foreign:
        yield FileRow(file.number, file.path, file.size_bytes, "foreign", problem=file.problem)


def _row_from_report(report: FileReport, *, torn: bool, last: bool) -> FileRow:
    state = "torn tail" if torn else "active" if last else "sealed"
    return FileRow(
        report.number,
        report.path,
        report.size_bytes,
        "released" if report.released else state,
        report.used_bytes,
        report.frames,
        report.entries,
        report.first_index,
        report.last_index,
        report.first_time_us,
        report.last_time_us,
        report.used_bytes if torn else None,
    )


def _row_from_walk(disk: Disk, log: FoundLog, file: FoundFile) -> FileRow:
    last = file is log.files[-1]
    state = "active" if last else "sealed"
    row = FileRow(file.number, file.path, file.size_bytes, state)
    if file.problem:
        row.mark_damaged(0, file.problem)
    for piece in walk_file(disk, log, file):
        row.used_bytes = piece.end if isinstance(piece, Damaged) else piece.position
        if isinstance(piece, Frame):
            row.count(piece)
            row.used_bytes = (row.used_bytes + 64 + piece.fields[2] + 63) & -64
        elif isinstance(piece, Damaged):
            row.mark_damaged(piece.position, piece.reason)
        else:
            row.state, row.bad_byte = "torn tail", piece.position
    if file.cut_short:
        row.mark_damaged(file.size_bytes, "the file was cut short")
    return row


def walk_file(disk: Disk, log: FoundLog, found_file: FoundFile) -> Iterator[Piece]:
    """Yield what is readable of one file, and what lies between."""
    if log.log_id is None:
        return
    try:
        file = disk.open(found_file.path, Mode.READ)
    except FileNotFoundError:
        return  # released by a living owner since it was found
    try:
        yield from FileWalk(
            Forgiving(file),
            file_number=found_file.number,
            salt=salt_of(log.log_id),
            parent=found_file.header.parent if found_file.header is not None else None,
            torn_allowed=found_file is log.files[-1] and not found_file.cut_short,
        ).pieces()
    finally:
        file.close()


def walk_log(disk: Disk, layout: Layout, start: int | None) -> Iterator[tuple[FoundFile, Piece]]:
    """Yield every frame with its file, and what lies between; from the entry `start` on if given.

    With `start`, files that end before it are not read, and frames of lower indexes are left out.
    """
    log = find_files(disk, layout)
    for file in log.files[_first_with(log.files, start) :]:
        for piece in walk_file(disk, log, file):
            if start is None or not isinstance(piece, Frame) or piece.fields[8] >= start:
                yield file, piece


def _first_with(files: list[FoundFile], start: int | None) -> int:
    """Return the place of the last file that begins at or before an index."""
    if start is None:
        return 0
    begins = [
        position
        for position, file in enumerate(files)
        if file.header is not None and file.header.first_index <= start
    ]
    return begins[-1] if begins else 0
