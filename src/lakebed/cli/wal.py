"""`lakebed wal`: look at a write-ahead log, check it, and save what is left of a damaged one.

None of these commands takes the log's lock or changes anything in its folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from lakebed.cli.data import FolderType
from lakebed.cli.output import (
    Meter,
    count_text,
    error_facts,
    json_option,
    moment,
    number,
    ranges,
    size,
    write_facts,
    write_json,
    write_line,
    write_table,
)
from lakebed.errors import NotALogError, from_os_error
from lakebed.host import Disk, OsDisk
from lakebed.wal.examine import Damaged, FoundFile, Frame, Piece, Torn
from lakebed.wal.folder import Layout, is_log
from lakebed.wal.frame import FrameKind
from lakebed.wal.listing import FileRow, file_rows, walk_log
from lakebed.wal.recovery import Mark, Verdict
from lakebed.wal.salvage import SalvageReport, salvage
from lakebed.wal.verify import Findings, verify

CUT: Final = 3
"""Exit code: opening will cut a torn tail; or salvage could not save everything."""

_FRAME_LINE: Final = "{:>6}  {:>12}  {:<10}  {:>12}  {:>6}  {:>10}  {:>12}  {}"
_FRAME_COLUMNS: Final = ("file", "byte", "kind", "index", "term", "bytes", "durable", "time")
_FILE_COLUMNS: Final = (
    ">file",
    ">size",
    ">used",
    ">frames",
    ">entries",
    ">first",
    ">last",
    "first time",
    "last time",
    "state",
)

_folder = click.argument("folder", metavar="DIR", type=FolderType())


@click.group()
def wal() -> None:
    """Inspect, verify and salvage a write-ahead log."""


@wal.command("inspect", short_help="Show files, frames and state of the log in DIR.")
@_folder
@click.option("--frames", is_flag=True, help="List every frame.")
@click.option(
    "--from",
    "start",
    metavar="INDEX",
    type=click.IntRange(min=0),
    help="List frames from INDEX on.",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="List at most N frames.")
@json_option
def inspect_command(
    folder: Path, *, frames: bool, start: int | None, limit: int | None, as_json: bool
) -> None:
    """Show the files of the log in DIR, their content, and what opening it would find.

    DIR is the log's folder or the wal folder in it. A damaged log is shown as far as it is
    readable. With --limit, only frames are listed.
    """
    disk = OsDisk()
    layout = _layout(disk, folder)
    listed = frames or start is not None or limit is not None
    try:
        if listed:
            _list_frames(walk_log(disk, layout, start), limit, as_json=as_json)
        if limit is None:
            _show_log(disk, layout, after_frames=listed, as_json=as_json)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise from_os_error(error, "reading the log", layout.root) from error


def _layout(disk: Disk, folder: Path) -> Layout:
    """Find the log in a folder, or the log whose wal folder it is."""
    whole = folder.resolve()
    roots = [folder]
    if whole.name == "wal":
        roots.append(folder.parent if folder.name == "wal" else whole.parent)
    try:
        for root in roots:
            if is_log(disk, Layout(root)):
                return Layout(root)
    except OSError as error:
        raise from_os_error(error, "looking for the log", folder) from error
    raise NotALogError("there is no log in this folder", path=folder)


def _list_frames(
    pieces: Iterator[tuple[FoundFile, Piece]], limit: int | None, *, as_json: bool
) -> None:
    """Write frames one by one, and where there are none the reason."""
    if not as_json:
        write_line(_FRAME_LINE.format(*_FRAME_COLUMNS))
    count = 0
    for file, piece in pieces:
        if isinstance(piece, Frame):
            _write_frame(piece, as_json=as_json)
            count += 1
            if count == limit:
                return
        else:
            _write_hole(file, piece, as_json=as_json)


def _write_frame(frame: Frame, *, as_json: bool) -> None:
    fields = frame.fields
    kind = FrameKind(fields[4]).name.lower()
    if not as_json:
        write_line(
            _FRAME_LINE.format(
                fields[7],
                frame.position,
                kind,
                fields[8],
                fields[9],
                fields[2],
                fields[10],
                moment(fields[12], fine=True),
            )
        )
        return
    write_json(
        "frame",
        {
            "file": fields[7],
            "byte": frame.position,
            "kind": kind,
            "flags": fields[5],
            "index": fields[8],
            "term": fields[9],
            "bytes": fields[2],
            "durable_through": fields[10],
            "time_us": fields[12],
        },
    )


def _write_hole(file: FoundFile, piece: Damaged | Torn, *, as_json: bool) -> None:
    kind = "damaged" if isinstance(piece, Damaged) else "torn"
    end = piece.end if isinstance(piece, Damaged) else None
    if as_json:
        values = {"file": file.number, "byte": piece.position, "end": end, "reason": piece.reason}
        write_json(kind, values)
    else:
        through = f" (to byte {end})" if end is not None else ""
        write_line(f"{file.number:>6}  {piece.position:>12}  {kind:<10}  {piece.reason}{through}")


def _show_log(disk: Disk, layout: Layout, *, after_frames: bool, as_json: bool) -> None:
    with Meter(silent=as_json) as meter:
        findings = verify(disk, layout, lambda done, total: meter("reading", done, total))
    rows = file_rows(disk, findings)
    if as_json:
        for row in rows:
            write_json("file", _file_values(row))
        write_json("log", _log_values(findings))
        return
    if after_frames:
        write_line("")
    write_facts(_log_facts(findings))
    write_line("")
    write_table(_FILE_COLUMNS, (_file_cells(row) for row in rows))


def _file_values(row: FileRow) -> dict[str, object]:
    values = asdict(row)
    return {"file": values.pop("number"), **values, "problem": row.problem or None}


def _file_cells(row: FileRow) -> tuple[str, ...]:
    state = row.state
    if row.bad_byte is not None:
        state += f" at byte {row.bad_byte}"
    if row.problem:
        state += f": {row.problem}"
    return (
        str(row.number),
        size(row.size_bytes),
        size(row.used_bytes),
        str(row.frames),
        str(row.entries),
        number(row.first_index),
        number(row.last_index),
        moment(row.first_time_us),
        moment(row.last_time_us),
        state,
    )


def _log_values(findings: Findings) -> dict[str, object]:
    """Return what is known of the log as plain data; None where it could not be read."""
    survey = findings.survey
    values: dict[str, object] = {
        "log": findings.log_id and str(findings.log_id),
        "folder": findings.layout.root,
        "verdict": findings.verdict.value,
        "first_index": survey and survey.state.mark.index + 1,
        "last_index": survey and survey.state.last_index,
        "lost": survey and _gaps(findings),
        "last_term": survey and survey.state.last_term,
        "hard_state": survey and asdict(survey.state.hard_state),
        "mark": survey and _mark_values(survey.state.mark),
        "files": survey and len(survey.files),
        "frames": survey and survey.frames,
        "entries": survey and sum(file.entries for file in survey.files),
        "used_bytes": survey and survey.used_bytes,
        "torn_bytes": survey and survey.torn_bytes,
        "identity_missing": survey and survey.identity_missing,
        "owner": findings.owner,
    }
    return {**values, "error": findings.error and error_facts(findings.error)}


def _mark_values(mark: Mark) -> dict[str, object]:
    return {"index": mark.index, "term": mark.term, "note": mark.note.hex()}


def _gaps(findings: Findings) -> list[tuple[int, int]]:
    """Return the holes of a salvaged log; of a damaged one they are unknown."""
    if findings.survey is None or findings.error is not None:
        return []
    return list(findings.survey.state.gaps())


def _log_facts(findings: Findings) -> Iterator[tuple[str, str]]:
    """Return what is known of the log for people."""
    survey = findings.survey
    yield "log", f"{findings.log_id or 'unknown'} in {findings.layout.root}"
    if survey is not None:
        state = survey.state
        first, last = state.mark.index + 1, state.last_index
        empty = "none, the next is " + str(last + 1)
        through = "" if findings.error is None else ", as far as it can be read"
        yield "entries", (f"{first} to {last}" if first <= last else empty) + through
        if gaps := _gaps(findings):
            yield "lost", f"{ranges(gaps)}, before the log was salvaged"
        yield "hard state", f"term {state.hard_state.term}, vote {number(state.hard_state.vote)}"
        if state.mark.index:
            yield "released", f"through {state.mark.index}, note of {len(state.mark.note)} bytes"
    yield from _verdict_facts(findings)
    if findings.owner is not None:
        owner = " ".join(f"{name}={value}" for name, value in findings.owner.items())
        yield "in use", f"by a running process ({owner}); its end may change"


def _verdict_facts(findings: Findings) -> Iterator[tuple[str, str]]:
    survey = findings.survey
    yield "verdict", findings.verdict.value
    if findings.error is not None:
        yield "stops at", str(findings.error)
    elif survey is not None and findings.verdict is Verdict.TORN_TAIL and survey.stop is not None:
        torn_at = f"file={survey.files[-1].path} byte={survey.stop.position}"
        yield "torn at", f"{torn_at} index={survey.state.last_index + 1}"
        yield (
            "advice",
            "open the log: that cuts the write; nothing proves that it was synced",
        )
    if survey is not None and survey.identity_missing:
        yield "identity", "the identity file is missing or damaged; opening the log rebuilds it"


@wal.command("verify", short_help="Verify every byte of the log in DIR that counts.")
@_folder
@json_option
@click.pass_context
def verify_command(ctx: click.Context, folder: Path, *, as_json: bool) -> None:
    """Read and verify every byte of the log in DIR that counts.

    Exit code 0: the log is intact. 1: it is damaged, or the device fails; the error names file,
    byte and index. 3: the last write is torn, and nothing proves that it was synced; opening will
    cut it.
    """
    disk = OsDisk()
    layout = _layout(disk, folder)
    with Meter(silent=as_json) as meter:
        findings = verify(disk, layout, lambda done, total: meter("verifying", done, total))
    if as_json:
        write_json("verify", {**_log_values(findings), **_first_bad(findings)})
    else:
        write_facts(_verify_facts(findings))
    if findings.error is not None:
        raise findings.error
    ctx.exit(CUT if findings.verdict is Verdict.TORN_TAIL else 0)


def _verify_facts(findings: Findings) -> Iterator[tuple[str, str]]:
    survey = findings.survey
    for name, value in _log_facts(findings):
        if name != "stops at":  # the error says it
            yield name, value
    if survey is not None:
        entries = _entries(sum(file.entries for file in survey.files))
        counts = f"{count_text(survey.frames, 'frame', 'frames')}, {entries}"
        files = count_text(len(survey.files), "file", "files")
        whole = f"{files}, {counts}, {size(survey.used_bytes)}"
        stopped = findings.error is not None and survey.stop is not None
        yield "verified", f"{counts} before the damage" if stopped else whole


def _first_bad(findings: Findings) -> dict[str, object]:
    """Return file, byte and index of the first bad thing."""
    survey = findings.survey
    if findings.error is not None:
        facts = findings.error.facts
        index = facts.get("index", facts.get("first_index_lost"))
        return {"file": facts.get("file"), "byte": facts.get("byte"), "index": index}
    if survey is not None and findings.verdict is Verdict.TORN_TAIL and survey.stop is not None:
        index = survey.state.last_index + 1
        return {"file": survey.files[-1].path, "byte": survey.stop.position, "index": index}
    return {"file": None, "byte": None, "index": None}


@wal.command("salvage", short_help="Copy what is readable of the log in DIR.")
@_folder
@click.option(
    "--to",
    "target",
    metavar="NEW",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder for the copy; must not exist, or be empty.",
)
@json_option
@click.pass_context
def salvage_command(ctx: click.Context, folder: Path, target: Path, *, as_json: bool) -> None:
    """Copy what is readable of the log in DIR to NEW, as a complete log, and report what is lost.

    The original is not changed. Entries keep their indexes. Exit code 0: nothing was lost. 3:
    entries were lost; the report names them.
    """
    layout = _layout(OsDisk(), folder)
    with Meter(silent=as_json) as meter:
        report = salvage(layout.root, target, progress=meter)
    if as_json:
        write_json("salvage", _report_values(report))
    else:
        write_facts(_report_facts(report))
        _write_damages(report)
    ctx.exit(0 if report.complete else CUT)


def _report_values(report: SalvageReport) -> dict[str, object]:
    values = asdict(report)
    return {
        **values,
        "mark": _mark_values(report.mark),
        "lost_count": report.lost_count,
        "complete": report.complete,
        "skipped": [{"file": path, "reason": reason} for path, reason in report.skipped],
    }


def _report_facts(report: SalvageReport) -> Iterator[tuple[str, str]]:
    files = count_text(report.files, "file", "files")
    yield "copy", f"{report.target} ({files}, {size(report.size_bytes)}), log {report.log_id}"
    span = f", {report.first_index} to {report.last_index}" if report.saved else ""
    yield "saved", _entries(report.saved) + span
    if report.lost:
        yield "lost", f"{_entries(report.lost_count)}: {ranges(report.lost)}"
    if report.lost_from is not None:
        yield "lost", f"from index {report.lost_from} on, unknown how many"
    if report.complete:
        yield "lost", "nothing"
    if report.lost_before:
        yield "lost before", ranges(report.lost_before)
    if report.torn is not None:
        torn_at = f"file={report.torn.file} byte={report.torn.byte} index={report.torn.index}"
        yield "torn tail", f"left out, nothing proves that it was ever synced: {torn_at}"
    if report.missing:
        yield "missing", f"files {ranges(report.missing)}"


def _entries(count: int) -> str:
    return count_text(count, "entry", "entries")


def _write_damages(report: SalvageReport) -> None:
    rows = [
        (str(damage.file), f"{damage.start} to {damage.end}", damage.reason)
        for damage in report.damages
    ]
    rows += [(str(path), "skipped", reason) for path, reason in report.skipped]
    if rows:
        write_line("")
        write_table(("bad file", "bytes", "what was found"), rows)
