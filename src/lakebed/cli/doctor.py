"""`lakebed doctor`: tells whether a log is well, and what to do if it is not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from lakebed.cli.data import FolderType, check_log
from lakebed.cli.health import OK, PROBLEM, WARNING, Check, Examination
from lakebed.cli.output import Meter, json_option, write_json, write_line, write_table
from lakebed.cli.store_health import store_checks
from lakebed.errors import from_os_error
from lakebed.host import OsDisk

_EXIT: Final = {OK: 0, PROBLEM: 1, WARNING: 3}


@click.command(short_help="Check a log from end to end.")
@click.option(
    "--data",
    "folder",
    metavar="DIR",
    envvar="LAKEBED_DATA",
    show_envvar=True,
    required=True,
    type=FolderType(),
    help="The log's folder.",
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, folder: Path, *, as_json: bool) -> None:
    """Check the log in DIR from end to end, changing nothing.

    Checks the owner, every byte of the WAL, the snapshot, every byte of every segment, unknown
    files, permissions and disk space; of a log in a store, its lease and fences.

    Exit code 0: no problem. 3: a warning. 1: an error.
    """
    check_log(folder)
    with Meter(silent=as_json) as meter:
        try:
            checks = [*Examination(OsDisk(), folder, meter).checks(), *store_checks(folder)]
        except OSError as error:
            raise from_os_error(error, "examining the log", folder) from error
    _show(checks, as_json=as_json)
    verdicts = {check.verdict for check in checks}
    worst = PROBLEM if PROBLEM in verdicts else WARNING if WARNING in verdicts else OK
    ctx.exit(_EXIT[worst])


def _show(checks: list[Check], *, as_json: bool) -> None:
    if as_json:
        for check in checks:
            write_json("check", {**asdict(check), "advice": check.advice or None})
        return
    write_table(
        ("check", "", "found"), [(check.name, check.verdict, check.found) for check in checks]
    )
    advised = [check for check in checks if check.advice and check.verdict != OK]
    if advised:
        write_line("")
    for advised_check in advised:
        write_line(f"{advised_check.name}: {advised_check.advice}")
