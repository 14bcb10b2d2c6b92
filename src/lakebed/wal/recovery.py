"""What a scan of the whole log says, and what follows from it. Reading only: `repair.py` acts.

The decision is a pure table (`decide`), the same that docs/ARCHITECTURE.md prints:

    what is at the first bad position         proven?  last file?  verdict
    nothing bad                               -        -           open
    zeros, short, bad checksum, residue       no       yes         torn tail
    zeros, short, bad checksum, residue       yes      any         corruption
    zeros, short, bad checksum, residue       no       no          corruption
    a valid frame out of its place            -        any         corruption
    the device cannot read it                 -        any         device error

*Proven* means that a valid frame further on in the file was written when the bad position was
already synced.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lakebed import limits
from lakebed.errors import (
    CorruptionError,
    DeviceError,
    ForeignFileError,
    LakebedError,
    MissingFileError,
    from_os_error,
)
from lakebed.host import Disk, File, Mode, read_exactly
from lakebed.types import HardState
from lakebed.wal.entry_map import EntryMap
from lakebed.wal.folder import Layout, file_numbers, read_identity
from lakebed.wal.frame import (
    ENTRY,
    FLAG_RESET,
    HEADER_BYTES,
    FileHeader,
    FrameKind,
    decode_file_header,
    decode_gap,
    decode_hard_state,
    salt_of,
)
from lakebed.wal.scan import Ending, Fields, FileScan, Stop, end_of_content, later_headers

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class Verdict(enum.Enum):
    """What to do with the log."""

    OPEN = "open"
    TORN_TAIL = "torn tail"
    CORRUPTION = "corruption"
    DEVICE_ERROR = "device error"


def decide(ending: Ending, *, clean: bool, proven: bool, last_file: bool) -> Verdict:
    """Return the verdict for what a file's scan stopped at.

    `clean`: nothing is missing where the scan stopped. In the last file: no frame of it is
    behind. In another: the next file continues it.
    """
    if ending is Ending.UNREADABLE:
        return Verdict.DEVICE_ERROR
    if ending is Ending.OUT_OF_PLACE:
        return Verdict.CORRUPTION
    if ending is Ending.END and clean and not proven:
        return Verdict.OPEN
    if proven or not last_file:
        return Verdict.CORRUPTION
    return Verdict.TORN_TAIL


@dataclass(frozen=True)
class Mark:
    """The last release: everything at or below `index` is held elsewhere, and `note` says where."""

    index: int = 0
    term: int = 0
    note: bytes = b""


@dataclass
class LogState:
    """The logical result of the frames so far."""

    entries: EntryMap = field(default_factory=EntryMap)
    last_index: int = 0
    last_term: int = 0
    hard_state: HardState = field(default_factory=HardState)
    mark: Mark = field(default_factory=Mark)
    durable_through: int = HEADER_BYTES
    link: int = 0
    idle: bool = False
    """The last frame is an idle mark."""

    def gaps(self) -> list[tuple[int, int]]:
        """Return first and last index of each hole that salvage left."""
        return self.entries.gaps(self.mark.index + 1, self.last_index)


@dataclass
class FileReport:
    """What was found in one file."""

    number: int
    path: Path
    size_bytes: int
    header: FileHeader
    used_bytes: int = HEADER_BYTES
    frames: int = 0
    entries: int = 0
    first_index: int | None = None
    last_index: int | None = None
    first_time_us: int | None = None
    last_time_us: int | None = None
    released: bool = False
    """A leftover below a gap in the numbers: its entries were released before."""


@dataclass
class Survey:
    """The whole log as it was found."""

    layout: Layout
    log_id: uuid.UUID
    files: list[FileReport]
    state: LogState
    verdict: Verdict
    stop: Stop | None = None
    error: LakebedError | None = None
    """What opening the log would raise; None if it would open."""

    identity_missing: bool = False
    torn_bytes: int = 0

    @property
    def frames(self) -> int:
        """Count valid frames."""
        return sum(file.frames for file in self.files)

    @property
    def used_bytes(self) -> int:
        """Count bytes in use."""
        return sum(file.used_bytes for file in self.files)


def survey(disk: Disk, layout: Layout, progress: Progress | None = None) -> Survey:
    """Read and verify the whole log, changing nothing; what is wrong is in the result, not raised.

    Raised are only what makes a survey impossible: no file header can be trusted, another log's
    file, a newer format, an unreadable folder.
    """
    try:
        return _Surveyor(disk, layout, progress).run()
    except OSError as error:
        raise from_os_error(error, "reading the log", layout.root) from error


class _Surveyor:
    def __init__(self, disk: Disk, layout: Layout, progress: Progress | None) -> None:
        self.disk = disk
        self.layout = layout
        self.progress = progress
        self.done_bytes = 0
        self.total_bytes = 0

    def run(self) -> Survey:
        identity = read_identity(self.disk, self.layout)
        reports = [
            self._header(file_number) for file_number in file_numbers(self.disk, self.layout)
        ]
        if not reports:
            raise MissingFileError("the log has no WAL file", path=self.layout.wal)
        log_id = self._log_id(identity, reports)
        self.total_bytes = sum(report.size_bytes for report in reports)
        live = _last_run(reports)
        result = Survey(self.layout, log_id, reports, LogState(), Verdict.OPEN)
        result.identity_missing = identity is None
        first = live[0].header
        result.state.last_index = first.first_index - 1
        result.state.link = first.parent
        for report, after in zip(live, [*live[1:], None], strict=True):
            self._scan(result, report, after)
            if result.verdict is not Verdict.OPEN:
                break
        if result.error is None:
            _check_start(result, live[0])
        return result

    def _header(self, file_number: int) -> FileReport:
        path = self.layout.file(file_number)
        file = self.disk.open(path, Mode.READ)
        try:
            size = file.size()
            header = decode_file_header(read_exactly(file, 0, HEADER_BYTES), path)
        except OSError as error:
            raise from_os_error(error, "reading a file header", path) from error
        finally:
            file.close()
        if header.number != file_number:
            raise CorruptionError(
                "the content of the file does not match its name",
                file=path,
                byte=16,
                number=header.number,
            )
        if size < header.capacity_bytes:
            raise CorruptionError(
                "the file was cut short", file=path, byte=size, made_with=header.capacity_bytes
            )
        return FileReport(file_number, path, size, header)

    def _log_id(self, identity: uuid.UUID | None, reports: list[FileReport]) -> uuid.UUID:
        log_id = identity or reports[0].header.log_id
        for report in reports:
            if report.header.log_id != log_id:
                raise ForeignFileError(
                    "the file belongs to another log",
                    file=report.path,
                    its_log=report.header.log_id,
                    this_log=log_id,
                )
        return log_id

    def _scan(self, result: Survey, report: FileReport, after: FileReport | None) -> None:
        file = self.disk.open(report.path, Mode.READ)
        try:
            self._scan_open(result, report, file, after)
        finally:
            file.close()
        self.done_bytes += report.size_bytes

    def _scan_open(
        self, result: Survey, report: FileReport, file: File, after: FileReport | None
    ) -> None:
        state, salt = result.state, salt_of(result.log_id)
        state.durable_through = HEADER_BYTES
        scan = FileScan(file, file_number=report.number, salt=salt, parent=state.link)
        stop = self._replay(scan, report, state) or scan.stop
        state.link = scan.link
        report.used_bytes = stop.position
        if after is not None:
            clean = after.header.parent == state.link
            clean = clean and after.header.first_index == state.last_index + 1
            _judge(result, report, stop, clean=clean, proven=False, last=False)
            return
        proven, behind = False, 0
        if stop.ending not in (Ending.UNREADABLE, Ending.OUT_OF_PLACE):
            headers = later_headers(
                file, file_number=report.number, salt=salt, start=stop.position + 1
            )
            for position, header in headers:
                proven = proven or header.durable_through > stop.position
                behind = position + header.span - stop.position
        _judge(result, report, stop, clean=behind == 0, proven=proven, last=True)
        if result.verdict is Verdict.TORN_TAIL:
            result.torn_bytes = end_of_content(file, stop.position) - stop.position

    def _replay(self, scan: FileScan, report: FileReport, state: LogState) -> Stop | None:
        """Apply a file's frames to the state; return the stop if one is out of order."""
        run = _EntryRun(report, state)
        since = 0
        for position, fields in scan.frames():
            if fields[4] == ENTRY:
                if fields[8] != run.next_index:
                    return run.stop(position, f"entry {fields[8]} where {run.next_index} belongs")
                if position >= run.next_mark:
                    run.mark(position, fields)
                run.next_index += 1
                run.last = fields
            else:
                problem = run.other(fields, scan.payload)
                if problem:
                    return run.stop(position, problem)
            since += 1
            if since >= 4096 and self.progress is not None:
                since = 0
                self.progress(self.done_bytes + position, self.total_bytes)
        run.close()
        if self.progress is not None:
            self.progress(self.done_bytes + report.size_bytes, self.total_bytes)
        return None


class _EntryRun:
    """Collects consecutive entries of one file, and hands them to the state in one go."""

    def __init__(self, report: FileReport, state: LogState) -> None:
        self.report = report
        self.state = state
        self.next_index = state.last_index + 1
        self.first_index = self.next_index
        self.last: Fields = (0,) * 13  # of the last entry
        self.marks: list[tuple[int, int]] = []
        self.next_mark = 0

    def mark(self, position: int, fields: Fields) -> None:
        """Remember the position of the next entry."""
        if self.report.first_time_us is None:
            self.report.first_time_us = fields[12]
        self.marks.append((self.next_index, position))
        self.next_mark = position + 65_536

    def other(self, fields: Fields, payload: memoryview) -> str | None:
        """Apply a frame that is not an entry; return what is wrong with it, if anything."""
        self.close()
        self.report.frames += 1
        self.state.durable_through = fields[10]
        self.state.idle = fields[4] == FrameKind.IDLE
        try:
            return apply_mark(self.state, fields, payload)
        except CorruptionError as error:
            return str(error)
        finally:
            self._restart()

    def stop(self, position: int, problem: str) -> Stop:
        self.close()
        return Stop(Ending.OUT_OF_PLACE, position, problem)

    def close(self) -> None:
        count = self.next_index - self.first_index
        if count:
            state, report, last = self.state, self.report, self.last
            state.entries.add(
                file_number=report.number,
                first=self.first_index,
                last=self.next_index - 1,
                marks=self.marks,
            )
            state.last_index, state.last_term = self.next_index - 1, last[9]
            state.durable_through, state.idle = last[10], False
            report.last_time_us = last[12]
            report.frames += count
            report.entries += count
            report.first_index = report.first_index or self.first_index
            report.last_index = state.last_index
        self._restart()

    def _restart(self) -> None:
        self.next_index = self.first_index = self.state.last_index + 1
        self.marks = []
        self.next_mark = 0


def apply_mark(state: LogState, fields: Fields, payload: memoryview) -> str | None:
    """Apply a frame that is not an entry to the state; return its fault, if any."""
    kind, flags, index, term = fields[4], fields[5], fields[8], fields[9]
    if index > limits.INDEX_MAX:
        return f"index {index} is beyond every log"
    if kind == FrameKind.HARD_STATE:
        state.hard_state = decode_hard_state(payload)
    elif kind == FrameKind.TRUNCATE:
        if not state.mark.index <= index <= state.last_index:
            return f"truncation to {index} outside {state.mark.index} to {state.last_index}"
        state.entries.truncate(index)
        state.last_index, state.last_term = index, term
    elif kind == FrameKind.RELEASE:
        return _apply_release(
            state, Mark(index, term, bytes(payload)), reset=bool(flags & FLAG_RESET)
        )
    elif kind == FrameKind.GAP:
        if decode_gap(payload) != state.last_index + 1 or index <= state.last_index:
            return f"gap to {index} does not follow {state.last_index}"
        state.last_index, state.last_term = index, term
    return None


def _apply_release(state: LogState, mark: Mark, *, reset: bool) -> str | None:
    if mark.index < state.mark.index or (mark.index > state.last_index and not reset):
        return f"release of {mark.index} outside {state.mark.index} to {state.last_index}"
    if reset:
        state.entries.truncate(0)
        state.last_index, state.last_term = mark.index, mark.term
    elif mark.index == state.last_index:
        state.last_term = mark.term
    state.mark = mark
    return None


def _last_run(reports: list[FileReport]) -> list[FileReport]:
    """Return the files after the last gap in the numbers.

    What is before was released and only half removed.
    """
    start = 0
    for position in range(1, len(reports)):
        if reports[position].number != reports[position - 1].number + 1:
            start = position
    for report in reports[:start]:
        report.released = True
    return reports[start:]


def _check_start(result: Survey, first: FileReport) -> None:
    """Entries before the first file must have been released, or a file is missing."""
    missing = first.header.first_index - 1
    if missing > result.state.mark.index:
        result.verdict = Verdict.CORRUPTION
        result.error = MissingFileError(
            "files before this one are missing",
            file=first.path,
            first_index_lost=result.state.mark.index + 1,
            last_index_lost=missing,
        )


def _judge(
    result: Survey, report: FileReport, stop: Stop, *, clean: bool, proven: bool, last: bool
) -> None:
    result.verdict = decide(stop.ending, clean=clean, proven=proven, last_file=last)
    if result.verdict is Verdict.OPEN:
        return
    result.stop = stop
    facts = {
        "file": report.path,
        "byte": stop.position,
        "index": result.state.last_index + 1,
        "found": repr(stop.ending.value),
    }
    if stop.detail:
        facts["detail"] = repr(stop.detail)
    if result.verdict is Verdict.DEVICE_ERROR:
        result.error = DeviceError("the device cannot read the log; nothing was changed", **facts)
    elif result.verdict is Verdict.CORRUPTION:
        result.error = CorruptionError("the log is damaged; nothing was changed", **facts)
