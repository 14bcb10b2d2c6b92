"""The log that a command works on: the option `--data`, and opening it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import pyarrow as pa

import lakebed
from lakebed.cli.output import Meter
from lakebed.client.address import url_of
from lakebed.config import STORE_SCHEMES
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import (
    GroupNotFoundError,
    LakebedError,
    NotALogError,
    TopicNotFoundError,
    from_os_error,
)
from lakebed.host import OsDisk
from lakebed.suggest import did_you_mean
from lakebed.topic.schema import decode_schema
from lakebed.wal.folder import Layout, is_log

_Command = TypeVar("_Command", bound=Callable[..., object])

Target = Path | str
"""A log's folder, or the URL of a served one."""

_CONNECT_MS: Final = 5_000
"""How long a server is looked for before the command gives up."""


class TargetType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A log's folder, or the URL of a served one."""

    name = "DIR|URL"

    def convert(
        self, value: Any, _param: click.Parameter | None, _context: click.Context | None
    ) -> Target:
        """Take a URL as it is, and anything else as a path."""
        return value if isinstance(value, str) and "://" in value else Path(value)


def is_store(target: object) -> bool:
    """Return True for the URL of a store, and not of a server."""
    return isinstance(target, str) and target.partition("://")[0] in STORE_SCHEMES


class FolderOrStore(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A log's folder, or the URL of the store that it is in: for the process that owns it."""

    name = "DIR|URL"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Target:
        """Take a store's URL as it is, and anything but another URL as a path."""
        return str(value) if is_store(value) else FolderType().convert(value, param, context)


class FolderType(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A log's folder, for commands that need its files: a URL is refused."""

    name = "DIR"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Path:
        """Take anything but a URL as a path."""
        if isinstance(value, str) and "://" in value:
            self.fail(
                f"{value!r} is a URL; this command needs the log's folder: run it where that is",
                param,
                context,
            )
        return Path(value)


data_option = click.option(
    "--data",
    "folder",
    metavar="DIR|URL",
    envvar="LAKEBED_DATA",
    show_envvar=True,
    required=True,
    type=TargetType(),
    help="The log's folder, or the URL of a server or of a store.",
)
"""Decorator: adds the option `--data` to a command."""


def yes_option(command: _Command) -> _Command:
    """Add the option `--yes` to a command."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(command)


@contextlib.contextmanager
def open_log(folder: Target, *, make: bool = False, silent: bool) -> Iterator[lakebed.Log]:
    """Open the log in a folder within the block, or connect to the server that owns it.

    A long recovery shows its progress. A log is created only with `make`: otherwise a mistyped
    folder is an error, as is an address where no server answers soon.
    """
    if isinstance(folder, str) and is_store(folder):
        pass  # the log is in a store: this process takes it over
    elif isinstance(folder, str):
        lakebed.open(folder, lakebed.ClientConfig(retry_ms=_CONNECT_MS)).close()
    elif not make or url_of(folder):
        check_log(folder)
    with Meter(silent=silent) as meter:
        log = lakebed.open(os.fspath(folder), progress=meter)
    with log:
        try:
            yield log
        except (TopicNotFoundError, GroupNotFoundError) as error:
            raise _suggest(log, error) from error


def _suggest(log: lakebed.Log, error: LakebedError) -> LakebedError:
    """Return an error about an unknown topic or group with the closest name, if any."""
    is_topic = isinstance(error, TopicNotFoundError)
    name = str(error.facts.get("topic" if is_topic else "group", ""))
    with contextlib.suppress(LakebedError):  # the error to report is the first one
        names = log.topics() if is_topic else log.groups()
        return type(error)(f"{error.message}{did_you_mean(name, names)}", **error.facts)
    return error


def is_served(log: lakebed.Log) -> bool:
    """Return whether another process owns the log, and serves it."""
    return not isinstance(log, EmbeddedLog)


class Destination(NamedTuple):
    """What a writer needs to know of a topic."""

    schema: pa.Schema | None
    record_bytes_max: int


def destination(log: lakebed.Log, topic: str) -> Destination:
    """Return what a writer needs to know of a topic; needs only permission to write."""
    # Not `describe_topic`, which describes what a topic holds and needs permission to read.
    target = log._backend.writing.target(topic)
    schema = None if target.raw else decode_schema(target.topic.schemas[-1])
    return Destination(schema, target.config.record_bytes_max)


def check_log(folder: Path) -> None:
    """Raise `NotALogError` if a folder holds no log."""
    try:
        exists = is_log(OsDisk(), Layout(folder))
    except OSError as error:
        raise from_os_error(error, "looking for the log", folder) from error
    if not exists:
        url = url_of(folder)
        asked = f": did you mean {url}?" if url else ""
        raise NotALogError(f"there is no log in this folder{asked}", path=folder)


def confirm(question: str, *, yes: bool) -> None:
    """Continue only if the user confirms: on a terminal when asked, otherwise with `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("confirmation needs a terminal; use --yes")
    click.confirm(question, abort=True, err=True)


def settings(pairs: tuple[str, ...], option: str = "--config") -> dict[str, object]:
    """Parse `name=value` pairs."""
    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=f"'{option}'")
        values[name] = value
    return values
