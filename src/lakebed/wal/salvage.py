"""Making a whole log out of what is readable of a damaged one, and saying what is lost.

The original is only read. The copy has the same identity, and every entry its old index, term, kind
and time. What could not be saved is a gap: reading there raises `EntryLostError` with the index to
go on at. Hard state, truncations and releases are kept, as far as they are readable.

Order of writing, and why:

1. everything into `NEW/wal.partial`: a folder with only that in it is not taken for a log
2. verify it as opening would
3. rename it to `NEW/wal`, sync the folder: the log is whole or not there
4. the identity file, last, as when a log is made

Memory is bounded whatever the size of log and entries; it grows only with the number of damaged
places.
"""

from __future__ import annotations

import os
import statistics
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lakebed import limits
from lakebed.errors import (
    CorruptionError,
    DeviceError,
    ForeignFileError,
    InvalidArgumentError,
    LockedError,
    MissingFileError,
    from_os_error,
)
from lakebed.host import Disk, Mode, OsDisk
from lakebed.types import HardState
from lakebed.wal.copying import Copy
from lakebed.wal.examine import (
    Damaged,
    FileWalk,
    Forgiving,
    FoundFile,
    FoundLog,
    Frame,
    Torn,
    find_files,
)
from lakebed.wal.folder import (
    LOCK_NAME,
    Layout,
    living_owner,
    make_folders,
    take_lock,
    write_identity,
)
from lakebed.wal.frame import CAPACITY_UNIT, HEADER_BYTES, salt_of
from lakebed.wal.rebuild import Rebuild
from lakebed.wal.recovery import Mark, Verdict, survey

SalvageProgress = Callable[[str, int, int], None]
"""Called with what is being done, bytes done and bytes in all."""

_PROGRESS_EVERY_FRAMES: Final = 1024


@dataclass(frozen=True)
class Damage:
    """Bytes of a file that could not be used; an empty range where something is missing."""

    file: Path
    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class TornTail:
    """Where the last write was cut short; opening the log would have cut it too."""

    file: Path
    byte: int
    index: int
    """The index that the first entry cut off would have had."""


@dataclass
class SalvageReport:
    """What was saved, and exactly what was not."""

    log_id: uuid.UUID
    target: Path
    saved: int = 0
    """Entries that can be read in the copy."""
    lost: list[tuple[int, int]] = field(default_factory=list)
    """First and last index of each run of entries that could not be saved."""
    lost_from: int | None = None
    """Entries from this index on may be lost, an unknown number: the end is damaged."""
    lost_before: list[tuple[int, int]] = field(default_factory=list)
    """What was missing already, because the log had been salvaged before."""
    first_index: int = 1
    last_index: int = 0
    hard_state: HardState = field(default_factory=HardState)
    mark: Mark = field(default_factory=Mark)
    damages: list[Damage] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    """First and last number of each run of files that are gone."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Files that are not of this log, and why."""
    torn: TornTail | None = None
    files: int = 0
    size_bytes: int = 0

    @property
    def lost_count(self) -> int:
        """Count the entries known to be lost."""
        return sum(last - first + 1 for first, last in self.lost)

    @property
    def complete(self) -> bool:
        """Return whether nothing was lost."""
        return not self.lost and self.lost_from is None


def salvage(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    progress: SalvageProgress | None = None,
    disk: Disk | None = None,
) -> SalvageReport:
    """Write what can be saved of the log in `source` to `target`, a new or empty folder.

    Refused while a process owns the log, if no file says which log it is, or if no file is of it.
    """
    disk, original, copy = disk or OsDisk(), Layout(Path(source)), Layout(Path(target))
    try:
        _check_apart(original, copy)
        _check_empty(disk, copy)
        owner = living_owner(disk, original)
        if owner is not None:
            raise LockedError("the log is in use", path=original.root, **owner)
        log = find_files(disk, original)
        log_id = _log_id(log, original)
        disk.make_folder(copy.root)
        lock = take_lock(disk, copy)
        try:
            return _Salvage(disk=disk, log=log, log_id=log_id, layout=copy, progress=progress).run()
        finally:
            lock.release()
    except OSError as error:
        raise from_os_error(error, "salvaging the log", error.filename or source) from error


def _check_apart(original: Layout, copy: Layout) -> None:
    source, target = original.root.resolve(), copy.root.resolve()
    if target == source or source in target.parents or target in source.parents:
        raise InvalidArgumentError(
            "the copy must be outside of the log", path=original.root, to=copy.root
        )


def _check_empty(disk: Disk, copy: Layout) -> None:
    names = [name for name in disk.names(copy.root) if name != LOCK_NAME]
    if names:
        raise InvalidArgumentError("the folder is not empty", path=copy.root, found=names[0])


def _log_id(log: FoundLog, original: Layout) -> uuid.UUID:
    if not log.files and not log.foreign:
        raise MissingFileError("the log has no WAL file", path=original.wal)
    if log.log_id is None:
        raise CorruptionError(
            "the log cannot be identified: the identity file and every file header are damaged",
            path=original.root,
        )
    if not log.files:
        raise ForeignFileError(
            "every WAL file belongs to another log",
            file=log.foreign[0].path,
            this_log=log.log_id,
        )
    return log.log_id


@dataclass(frozen=True)
class _PartialLayout(Layout):
    """Where the copy is while it is not whole."""

    @property
    def wal(self) -> Path:
        return self.root / "wal.partial"


class _Salvage:
    def __init__(
        self,
        *,
        disk: Disk,
        log: FoundLog,
        log_id: uuid.UUID,
        layout: Layout,
        progress: SalvageProgress | None,
    ) -> None:
        self.disk = disk
        self.log = log
        self.layout = layout
        self.partial = _PartialLayout(layout.root)
        self.report = SalvageReport(log_id, layout.root)
        self.report.skipped = [(file.path, file.problem) for file in log.foreign]
        self.progress = progress
        self.done_bytes = 0
        self.total_bytes = sum(file.size_bytes for file in log.files)
        self.link: int | None = 0
        self.before: FoundFile | None = None
        self.before_end = HEADER_BYTES

    def run(self) -> SalvageReport:
        make_folders(self.disk, self.partial)
        headers = [file.header for file in self.log.files if file.header is not None]
        copy = Copy(
            self.disk,
            self.partial,
            self.report.log_id,
            file_bytes=_usual_size(self.log.files),
            time_us=headers[0].time_us if headers else 0,
        )
        try:
            rebuild = Rebuild(copy)
            for file in self.log.files:
                self._file(rebuild, file)
            copy.finish()
            self._fill_in(rebuild, copy)
        finally:
            copy.close()
        self._verify()
        self._publish()
        return self.report

    def _file(self, rebuild: Rebuild, found_file: FoundFile) -> None:
        parent = self._begin(rebuild, found_file)
        last = found_file is self.log.files[-1]
        file = self.disk.open(found_file.path, Mode.READ)
        try:
            readable = Forgiving(file)
            walk = FileWalk(
                readable,
                file_number=found_file.number,
                salt=salt_of(self.report.log_id),
                parent=parent,
                torn_allowed=last and not found_file.cut_short,
            )
            frames = self._walk(rebuild, found_file, walk, readable)
        finally:
            file.close()
        if found_file.header is None and not frames:
            rebuild.broken = True
        self.link, self.before, self.before_end = walk.link, found_file, walk.end
        self.done_bytes += found_file.size_bytes
        self._tell("copying", self.done_bytes, self.total_bytes)

    def _begin(self, rebuild: Rebuild, found_file: FoundFile) -> int | None:
        """Check a file's header and its position among the others; return its frames' parent."""
        before = self.before.number if self.before is not None else 0
        if found_file.number != before + 1:
            self.link, rebuild.broken = None, True
            if before:  # whether those before the first were released is known at the end
                self.report.missing.append((before + 1, found_file.number - 1))
        if found_file.problem:
            self._report_damage(
                found_file, 0, 0 if found_file.header else HEADER_BYTES, found_file.problem
            )
        if found_file.header is None:
            return self.link
        if found_file.cut_short:
            capacity = found_file.header.capacity_bytes
            self._report_damage(
                found_file, found_file.size_bytes, capacity, "the file was cut short"
            )
        if self.link is not None and self.link != found_file.header.parent:
            self._not_continued(rebuild)
        rebuild.file_header(found_file.header)
        return found_file.header.parent

    def _not_continued(self, rebuild: Rebuild) -> None:
        """Note that frames are missing at the end of the file before, unless that is known."""
        damages, before = self.report.damages, self.before
        if before is not None and not (damages and damages[-1].file == before.path):
            self._report_damage(
                before, self.before_end, self.before_end, "the next file does not continue it"
            )
        rebuild.broken = True

    def _walk(
        self, rebuild: Rebuild, found_file: FoundFile, walk: FileWalk, readable: Forgiving
    ) -> int:
        frames = 0
        for piece in walk.pieces():
            if isinstance(piece, Frame):
                frames += 1
                problem = rebuild.frame(piece, readable)
                if problem:
                    self._report_damage(found_file, piece.position, piece.position, problem)
                if frames % _PROGRESS_EVERY_FRAMES == 0:
                    self._tell("copying", self.done_bytes + piece.position, self.total_bytes)
            elif isinstance(piece, Torn):
                self.report.torn = TornTail(found_file.path, piece.position, rebuild.last_index + 1)
            else:
                self._take_damage(rebuild, found_file, piece)
        return frames

    def _take_damage(self, rebuild: Rebuild, found_file: FoundFile, piece: Damaged) -> None:
        self._report_damage(found_file, piece.position, piece.end, piece.reason)
        if piece.header is None:
            rebuild.broken = True
        else:
            rebuild.take_damaged_payload(piece.header)

    def _report_damage(self, found_file: FoundFile, start: int, end: int, reason: str) -> None:
        self.report.damages.append(Damage(found_file.path, start, end, reason))

    def _fill_in(self, rebuild: Rebuild, copy: Copy) -> None:
        report = self.report
        report.saved = rebuild.count_saved()
        report.lost, report.lost_before = list(rebuild.lost), list(rebuild.lost_before)
        report.lost_from = rebuild.last_index + 1 if rebuild.broken else None
        report.first_index, report.last_index = rebuild.mark.index + 1, rebuild.last_index
        report.hard_state, report.mark = rebuild.hard_state, rebuild.mark
        report.files, report.size_bytes = copy.files, copy.size_bytes
        first = self.log.files[0]
        if first.header is not None and first.header.first_index - 1 > report.mark.index:
            report.missing.insert(0, (1, first.number - 1))

    def _verify(self) -> None:
        """Read the copy as opening it would."""
        copy = survey(
            self.disk, self.partial, lambda done, total: self._tell("verifying", done, total)
        )
        report, state = self.report, copy.state
        expected = (report.last_index, report.hard_state, report.mark)
        if copy.verdict is not Verdict.OPEN or expected != (
            state.last_index,
            state.hard_state,
            state.mark,
        ):
            raise DeviceError(
                "the copy is not what was written; check the disk it is on",
                path=self.partial.wal,
                verdict=copy.verdict.value,
                found=copy.error,
            )

    def _publish(self) -> None:
        self.disk.rename(self.partial.wal, self.layout.wal)
        # From here on the folder is a log; before, it held one that was not whole.
        self.disk.sync_folder(self.layout.root)
        write_identity(self.disk, self.layout, self.report.log_id, self.log.kind)

    def _tell(self, doing: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(doing, done, total)


def _usual_size(files: list[FoundFile]) -> int:
    """Return the size that most files of the log have, for those of the copy."""
    usual = statistics.median_high(file.size_bytes for file in files)
    units = -(-usual // CAPACITY_UNIT) * CAPACITY_UNIT
    return min(max(units, limits.FILE_BYTES_MIN), limits.FILE_BYTES_MAX)
