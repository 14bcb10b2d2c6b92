"""`lakebed owner`: which server owns a log in a store, and how another one is made its owner."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lakebed.cli.data import FolderOrStore, confirm, yes_option
from lakebed.cli.output import json_option, write_json, write_line, write_table
from lakebed.cli.serve import locate_log
from lakebed.engine.owner_status import OwnerControl, OwnerStatus
from lakebed.errors import InvalidArgumentError

_data_option = click.option(
    "--data",
    "data",
    metavar="URL|DIR",
    envvar="LAKEBED_DATA",
    show_envvar=True,
    required=True,
    type=FolderOrStore(),
    help="The URL of the log's store, or the folder of a server of it.",
)
_timeout_option = click.option(
    "--timeout",
    "timeout_seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="How long to wait for another server to take over.",
)


@click.group(short_help="Show and change which server owns a log in a store.")
def owner() -> None:
    """Show and change which server owns a log in an object store.

    The commands use the store alone, with its credentials; they need no connection to a server.
    """


@owner.command(short_help="Show which server owns the log.")
@_data_option
@json_option
def status(data: Path | str, *, as_json: bool) -> None:
    """Show the owner in the lease, whether it renews the lease, its term, and the fences.

    Watches the lease for up to half of `lease_ms`.
    """
    _show(_control(data).status(), as_json=as_json)


@owner.command("hand-over", short_help="Have the owner hand the log to a standby.")
@_data_option
@_timeout_option
@json_option
def hand_over(data: Path | str, timeout_seconds: float, *, as_json: bool) -> None:
    """Ask the owner to finish its calls and release the log; wait until a standby serves it.

    The owner must run with --standby, and continues as a standby.
    """
    _show(_control(data).hand_over(timeout_seconds=timeout_seconds), as_json=as_json)


@owner.command(short_help="Declare the owner gone, so that a standby takes over now.")
@_data_option
@_timeout_option
@yes_option
@json_option
def take(data: Path | str, timeout_seconds: float, *, yes: bool, as_json: bool) -> None:
    """Release the lease of an owner that is gone, instead of waiting until it expires.

    An owner that is alive is interrupted: its writes in flight have an unknown outcome. With
    `acks = "local"`, what it has not shipped is set aside in its folder.
    """
    control = _control(data)
    confirm("Take the log from its owner?", yes=yes)
    _show(control.take(timeout_seconds=timeout_seconds), as_json=as_json)


def _control(data: Path | str) -> OwnerControl:
    _, config = locate_log(data, None)
    if not config.ships:
        raise InvalidArgumentError(
            "the log is on this disk alone: only a log in a store has an owner to change",
            path=data,
        )
    return OwnerControl(config)


def _show(shown: OwnerStatus, *, as_json: bool) -> None:
    if as_json:
        write_json("owner", asdict(shown))
        return
    rows: list[tuple[str, Any]] = [
        ("store", shown.store),
        ("owner", shown.owner or "none"),
        ("address", shown.address or "unknown"),
        ("state", shown.state),
        ("renews its lease", "yes" if shown.alive else "not seen"),
        ("term", str(shown.term)),
        ("base", f"slot {shown.base_slot}, entry {shown.base_index}"),
        ("last slot", str(shown.last_slot)),
    ]
    write_table(("", ""), rows)
    if shown.fences_missing:
        terms = ", ".join(map(str, shown.fences_missing))
        write_line(f"fences are missing, of terms {terms}: check lifecycle rules of the bucket")
