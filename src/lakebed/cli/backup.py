"""`lakebed backup` and `restore`: a verified copy of a log, and a log out of one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from lakebed.cli.data import Target, data_option, open_log
from lakebed.cli.output import (
    Meter,
    count_text,
    json_option,
    moment,
    size,
    write_facts,
    write_json,
)


@click.command(short_help="Take a consistent, verified backup.")
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@data_option
@json_option
def backup(target: Path, folder: Target, *, as_json: bool) -> None:
    """Back up the log to TARGET, a new or empty folder.

    The backup is the log at one point: everything acknowledged before. Every byte is verified, then
    backup.json completes it. For a served log TARGET is a name within the folder of the server's
    setting `backups`.
    """
    with open_log(folder, silent=as_json) as log, Meter(silent=as_json) as meter:
        report = log.backup(target, progress=meter)
    if as_json:
        write_json("backup", asdict(report))
        return
    write_facts(
        [
            ("backup", report.folder),
            ("log", f"{report.log_id}, up to entry {report.index}"),
            ("holds", _contents(report.records, report.topics)),
            ("copied", f"{count_text(report.files, 'file', 'files')}, {size(report.size_bytes)}"),
            ("took", f"{report.seconds:.3f} s"),
        ]
    )
    if report.stored_segments:
        segments = count_text(report.stored_segments, "segment is", "segments are")
        click.echo(f"warning: {segments} in {report.store} alone, and not in the backup", err=True)


@click.command(short_help="Restore or check a backup.")
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "folder",
    metavar="DIR",
    envvar="LAKEBED_DATA",
    show_envvar=True,
    help="The folder of the new log; it must be new or empty.",
)
@click.option("--verify-only", is_flag=True, help="Only check the backup.")
@json_option
def restore(source: Path, folder: str | None, *, verify_only: bool, as_json: bool) -> None:
    """Restore a log from BACKUP.

    Every file of the backup is checked before anything is written; the new log is read from end to
    end.

    The log keeps its identity. If it uses an object store or an external catalog, it must not be
    used while its original is; a warning says so.
    """
    from lakebed.engine.restore import restore as restore_log
    from lakebed.engine.restore import verify_backup

    if folder is None and not verify_only:
        raise click.UsageError("--data DIR is required: the folder of the restored log")
    if folder is not None and "://" in folder and not verify_only:
        raise click.UsageError("a backup can only be restored to a folder, not to a server")
    with Meter(silent=as_json) as meter:
        if folder is None or verify_only:
            report = verify_backup(source, progress=meter)
        else:
            report = restore_log(source, folder, progress=meter)
    if as_json:
        write_json("restore", asdict(report))
        return
    done = (
        f"{report.folder}, {count_text(report.segments_verified, 'segment', 'segments')} verified"
    )
    write_facts(
        [
            ("backup", f"{source}, of {moment(report.taken_us)}"),
            ("log", f"{report.log_id}, up to entry {report.index}"),
            ("holds", _contents(report.records, report.topics)),
            ("checked", f"{count_text(report.files, 'file', 'files')}, {size(report.size_bytes)}"),
            ("restored", done if report.folder else "nothing (--verify-only)"),
            ("took", f"{report.seconds:.3f} s"),
        ]
    )
    for warning in report.warnings:
        click.echo(f"warning: {warning}", err=True)


def _contents(records: int, topics: int) -> str:
    return f"{count_text(records, 'record', 'records')} of {count_text(topics, 'topic', 'topics')}"
