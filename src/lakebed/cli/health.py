"""Checks of a log's folder from end to end, which change nothing in it and do not take its lock.

The state is worked out as opening would: the newest usable snapshot, and every entry of the WAL
behind it. So the checks know which segments there should be, also those that came or went since
the last checkpoint.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lakebed import limits
from lakebed.config import CONFIG_NAME
from lakebed.engine.leftovers import may_be_dropped, may_be_unfinished, segment_owners
from lakebed.errors import CorruptionError, LakebedError, RejectedError
from lakebed.host import Disk
from lakebed.iceberg.derived_folder import NAME as DERIVED_NAME
from lakebed.lake.folder import LakeFolder
from lakebed.lake.locations import TABLES_NAME
from lakebed.lake.segment_reader import SegmentReader
from lakebed.state.command_codec import decode
from lakebed.state.image import State, decode_state
from lakebed.state.machine import carry_out
from lakebed.state.machine import decide as decide_command
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.state.values import LOCAL, STORE, Segment
from lakebed.types import EntryKind, Progress
from lakebed.wal.folder import IDENTITY_NAME, LOCK_NAME, Layout
from lakebed.wal.frame import salt_of
from lakebed.wal.reader import Maps, read_run
from lakebed.wal.recovery import Survey, Verdict
from lakebed.wal.verify import Findings, verify

OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"

_SPACE_LOW: Final = 1 * limits.GIB
"""Free space below which there is a warning."""
_SPACE_OUT: Final = 128 * limits.MIB
"""Free space in which hardly another WAL file and a checkpoint fit."""
_NAMED_MAX: Final = 5
"""The most files named in one line."""
_OURS: Final = {
    IDENTITY_NAME,
    LOCK_NAME,
    CONFIG_NAME,
    "wal",
    "lake",
    TABLES_NAME,
    DERIVED_NAME,
    "fetched",
    "snapshots",
    "staging",
    "quarantine",
}


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    verdict: str
    found: str
    advice: str = ""


@dataclass
class Examination:
    """A folder that is being examined: each check may build on what one before it found."""

    disk: Disk
    folder: Path
    progress: Progress
    state: State | None = None
    """The state after opening the log; None if that is unknown."""
    findings: Findings | None = field(default=None, init=False)

    def checks(self) -> Iterator[Check]:
        """Check everything, the WAL first."""
        yield from self._wal()
        yield from self._snapshots()
        yield from self._replay()
        yield from self._segments()
        yield from self._strangers()
        yield from self._aside()
        yield from self._permissions()
        yield from self._space()

    def _wal(self) -> Iterator[Check]:
        findings = verify(
            self.disk,
            Layout(self.folder),
            lambda done, total: self.progress("verifying the WAL", done, total),
        )
        self.findings = findings
        if findings.owner is not None:
            owner = " ".join(f"{name}={value}" for name, value in findings.owner.items())
            advice = "stop it for a complete check; what it writes during this one may look wrong"
            yield Check("owner", WARNING, f"a running process owns the log: {owner}", advice)
        else:
            yield Check("owner", OK, "the log is not in use")
        yield _wal_check(findings)
        if findings.survey is not None and findings.survey.identity_missing:
            finding = "missing or damaged"
            yield Check("identity", WARNING, finding, "open the log: that rebuilds it")

    @property
    def _survey(self) -> Survey | None:
        return None if self.findings is None else self.findings.survey

    @property
    def _bad(self) -> str:
        """The verdict on missing files: a warning while an owner may be changing them."""
        return PROBLEM if self.findings is None or self.findings.owner is None else WARNING

    # The state

    def _snapshots(self) -> Iterator[Check]:
        survey, folder = self._survey, SnapshotFolder(self.disk, self.folder)
        if survey is None:
            return
        mark, last, bad = survey.state.mark.index, survey.state.last_index, 0
        for index in reversed(folder.indexes()):
            try:
                state = decode_state(folder.load(index), folder.path(index))
            except LakebedError as error:
                bad += 1
                advice = "opening passes it over if it can; `lakebed checkpoint` writes a new one"
                yield Check("snapshot", WARNING, str(error), advice)
                continue
            if mark <= index <= last:
                self.state = state
                yield Check("snapshot", OK, f"at entry {index}")
                return
            if self.findings is not None and self.findings.error is not None:
                finding = f"at entry {index}; the WAL can be read up to entry {last} only"
                yield Check("snapshot", WARNING, finding, "see to the WAL first")
                return
            break
        if mark:
            yield Check(
                "snapshot",
                self._bad,
                f"none that the WAL continues from; it begins after entry {mark}",
                "bring the folder `snapshots` back from a copy",
            )
        else:
            self.state = State()
            finding = "none; the WAL alone has everything" if bad else "none yet"
            yield Check("snapshot", OK, finding)

    def _replay(self) -> Iterator[Check]:
        survey, state = self._survey, self.state
        if survey is None or state is None or self.findings is None:
            return
        first = state.numbers["applied"] + 1
        if self.findings.error is not None:
            self.state = None  # it ends somewhere in the middle
            return
        try:
            count = self._apply(survey, state)
        except (LakebedError, OSError) as error:
            self.state = None
            advice = "run `lakebed wal verify` and restore a copy"
            yield Check("entries", self._bad, str(error), advice)
            return
        yield Check("entries", OK, f"{count} behind the snapshot, from {first} on, can be replayed")

    def _apply(self, survey: Survey, state: State) -> int:
        """Bring the state to the end of the WAL; return how many entries that took."""
        maps = Maps(self.disk, survey.layout)
        count = 0
        index, last = state.numbers["applied"] + 1, survey.state.last_index
        while index <= last:
            run_location = survey.state.entries.find(index)
            if run_location is None:
                raise CorruptionError("an entry is missing", index=index)
            run, _ = read_run(
                maps.get(run_location.number),
                salt_of(survey.log_id),
                run_location,
                first=index,
                last=min(run_location.last, last),
                bytes_max=limits.READ_CHUNK_BYTES,
            )
            for entry in run:
                if entry.kind is EntryKind.NORMAL:
                    _apply_one(state, entry.index, entry.payload)
            index += len(run)
            count += len(run)
            self.progress("replaying entries", index, last)
        return count

    # Segments

    def _segments(self) -> Iterator[Check]:
        state = self.state
        if state is None:
            return
        lake = LakeFolder(self.disk, self.folder)
        reader = SegmentReader(lake, 0)
        everywhere = [
            (*key, segment)
            for key, partition in sorted(state.partitions.items())
            for segment in partition.segments
        ]
        wanted = [segment for segment in everywhere if segment[2].place != STORE]
        total = sum(segment.file_bytes for *_, segment in wanted)
        done = bad = 0
        for topic, partition, segment in wanted:
            try:
                reader.verify(topic, partition, segment)
            except LakebedError as error:
                bad += 1
                name = state.topics[topic].name if topic in state.topics else str(topic)
                yield self._bad_segment(name, segment, error)
            done += segment.file_bytes
            self.progress("verifying segments", done, total)
        if not bad:
            yield Check("segments", OK, f"{len(wanted)}, {total} bytes, all verified")
        if len(everywhere) > len(wanted):
            stored = f"{len(everywhere) - len(wanted)} in the object store alone"
            yield Check("stored segments", OK, f"{stored}; these are checked when they are read")

    def _bad_segment(self, topic: str, segment: Segment, error: LakebedError) -> Check:
        if segment.place == LOCAL:
            advice = (
                "restore this file from a copy; until then compaction and merging of topic "
                f"{topic} fail, and the rest of the log is not affected"
            )
            return Check("segment", self._bad, f"of topic {topic}: {error}", advice)
        advice = "the object store has this segment too: remove the file, and it is read from there"
        return Check("segment", WARNING, str(error), advice)

    # Files

    def _strangers(self) -> Iterator[Check]:
        if self.state is None:
            return
        unknown, left = self._stray_files(self.state)
        unknown += [
            str(self.folder / name)
            for name in self.disk.names(self.folder)
            if name not in _OURS and not name.startswith(IDENTITY_NAME)
        ]
        if unknown:
            advice = "see what they are; segments among them are put aside when the log is opened"
            yield Check("unknown files", WARNING, _list(unknown), advice)
        else:
            yield Check("unknown files", OK, "none")
        if left["unfinished"] or left["dropped"]:
            finding = f"{left['unfinished']} unfinished and {left['dropped']} dropped segments"
            yield Check("leftovers", OK, f"{finding}; opening the log removes them")
        if left["waiting"]:
            finding = f"{left['waiting']} dropped, until no reader of a table can need them"
            yield Check("waiting for removal", OK, finding)

    def _stray_files(self, state: State) -> tuple[list[str], Counter[str]]:
        """Return files of the lake that are unknown, and count those that the log left there."""
        needed = {
            (*key, segment.id)
            for key, partition in state.partitions.items()
            for segment in partition.segments
            if segment.place != STORE
        }
        owners = segment_owners(state)
        lake, unknown, left = LakeFolder(self.disk, self.folder), [], Counter[str]()
        with_table = self.disk.names(self.folder / TABLES_NAME)
        for name in lake.listing():
            if isinstance(name, Path):
                unfinished = lake.parse_unfinished(name)
                if unfinished is not None and may_be_unfinished(state, unfinished):
                    left["unfinished"] += 1
                else:
                    unknown.append(str(name))
            elif name in needed:
                continue
            elif owners.get(name.segment) == name[:2] or may_be_dropped(state, owners, name):
                left["waiting" if str(name.topic) in with_table else "dropped"] += 1
            else:
                unknown.append(str(lake.path(*name)))
        return unknown, left

    def _aside(self) -> Iterator[Check]:
        names = self.disk.names(self.folder / "quarantine")
        if names:
            advice = "they are not part of the log: see what they are, then move them elsewhere"
            yield Check("put aside", WARNING, f"in quarantine: {_list(names)}", advice)
        torn = self.disk.names(Layout(self.folder).torn)
        if torn:
            advice = "they were never acknowledged; remove them when they are no longer of interest"
            yield Check("torn tails", OK, f"{len(torn)} kept in wal/torn", advice)

    def _permissions(self) -> Iterator[Check]:
        loose = [str(path) for path in _everything(self.folder) if _mode(path) & 0o077]
        if loose:
            advice = f"chmod -R go= {self.folder}"
            yield Check(
                "permissions", WARNING, f"other users have access to {_list(loose)}", advice
            )
        else:
            yield Check("permissions", OK, "only the owner has access")

    def _space(self) -> Iterator[Check]:
        free = shutil.disk_usage(self.folder).free
        finding = f"{free // limits.MIB} MiB free"
        if free < _SPACE_LOW:
            verdict = PROBLEM if free < _SPACE_OUT else WARNING
            advice = "free space, or shorten retention (`lakebed topic alter`)"
            yield Check("disk space", verdict, finding, advice)
        else:
            yield Check("disk space", OK, finding)


def _wal_check(findings: Findings) -> Check:
    survey = findings.survey
    if findings.error is not None:
        return Check("WAL", PROBLEM, str(findings.error), findings.error.advice)
    if findings.verdict is Verdict.TORN_TAIL:
        advice = "open the log: that cuts it; nothing proves that it was synced"
        return Check("WAL", WARNING, "the last write was cut short by a crash", advice)
    if survey is None:
        return Check("WAL", PROBLEM, findings.verdict.value, "run `lakebed wal verify`")
    gaps = survey.state.gaps()
    if gaps:
        advice = "entries were lost before it was salvaged; restore a copy if there is one"
        return Check("WAL", WARNING, f"holes at {gaps}", advice)
    first, last = survey.state.mark.index + 1, survey.state.last_index
    return Check("WAL", OK, f"entries {first} to {last}, {survey.used_bytes} bytes, verified")


def _apply_one(state: State, index: int, payload: memoryview) -> None:
    command, _ = decode(payload)
    with contextlib.suppress(RejectedError):  # refused when it was written, too
        carry_out(decide_command(state, index, command).changes)
    state.numbers["applied"] = index


def _everything(folder: Path) -> Iterator[Path]:
    yield folder
    yield from sorted(folder.rglob("*"))


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.lstat().st_mode)
    except OSError:  # gone since it was listed
        return 0


def _list(names: list[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
