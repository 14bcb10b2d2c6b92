"""Output of commands: tables for people, JSON lines for programs, errors on stderr.

Results go to stdout; errors and progress to stderr. Colours and bars are for terminals only, and
`NO_COLOR` is respected. A reader that stops reading (`| head`) ends a command without a word.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from lakebed.errors import LakebedError, LockedError

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_JSON: Final = "lakebed.json"
_PIPE_BROKEN: Final = 128 + 13
"""The exit code of a program that SIGPIPE ended, which is what happened."""
_INTERRUPTED: Final = 128 + 2
"""The exit code of a program that Ctrl-C ended."""
_QUIET_SECONDS: Final = 2.0
"""Work shorter than this says nothing about its progress, unless a user watches."""
_BLINK_SECONDS: Final = 0.2
"""How often a line on a terminal is written again."""
_WIDE: Final = 400
"""Columns of a table that goes into a file or a pipe: it is never wrapped."""
_ENDLESS: Final = 10_000
"""Columns of a table of which nothing may be cut off."""

_Command = TypeVar("_Command", bound=Callable[..., object])


class OutputError(Exception):
    """What was to be shown cannot be written: standard output is closed, or its disk is full."""


class LakebedGroup(click.Group):
    """A group of commands that shows our errors as messages and ends quietly on a broken pipe."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                flush()
        except LakebedError as error:
            raise ShownError(error, as_json=bool(ctx.meta.get(_JSON))) from error
        except BrokenPipeError:
            # What is still buffered goes to a pipe of our own: in the broken one it would fail
            # again when the interpreter ends, and be complained about.
            os.dup2(os.pipe()[1], sys.stdout.fileno())
            ctx.exit(_PIPE_BROKEN)
        except OutputError as error:
            click.echo(f"error: the output cannot be written: {error}", err=True)
            os.dup2(os.pipe()[1], 1)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(_INTERRUPTED)


class ShownError(click.ClickException):
    """One of our errors, for stderr; exit code 1."""

    def __init__(self, error: LakebedError, *, as_json: bool) -> None:
        super().__init__(str(error))
        self._error = error
        self._as_json = as_json

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the error."""
        text = f"error: {self._error}\n{advice(self._error)}"
        if self._as_json:
            text = json.dumps({"type": "error", **error_facts(self._error)})
        click.echo(text, file=file, err=True)


def advice(error: LakebedError) -> str:
    """Return what to do about an error, and by which code programs know it."""
    return f"advice: {_advice(error)} (code: {error.code})"


def _advice(error: LakebedError) -> str:
    """Return an error's advice; of a log that a server owns, how to get at it there."""
    url = error.facts.get("url")
    if isinstance(error, LockedError) and url is not None:
        return f"a server owns it: connect to that by --data {url}, or stop it first"
    return error.advice


def warn(problem: str, error: LakebedError) -> None:
    """Write an error to stderr that does not end the command."""
    click.echo(f"warning: {problem}: {error}\n{advice(error)}", err=True)


def error_facts(error: LakebedError) -> dict[str, object]:
    """Return an error as plain data."""
    return {
        "code": error.code,
        "message": error.message,
        "facts": {name: _plain(value) for name, value in error.facts.items()},
        "advice": _advice(error),
        "retriable": error.retriable,
    }


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | None) else str(value)


def json_option(command: _Command) -> _Command:
    """Return a command the option `--json`; errors are then JSON too."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        ctx.meta[_JSON] = value
        return value

    return click.option(
        "--json", "as_json", is_flag=True, callback=remember, help="Write JSON lines."
    )(command)


def write_line(text: str) -> None:
    """Write a line; unlike `click.echo`, not one system call for each where no user watches."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    try:
        sys.stdout.write(text + "\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror) from error


def write_bytes(data: bytes) -> None:
    """Write bytes as they are, behind what was written before."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror) from error


def flush() -> None:
    """Write what is still buffered."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror) from error


def write_json(kind: str, values: Mapping[str, object]) -> None:
    """Write one JSON line."""
    write_line(
        json.dumps({"type": kind, **{key: _plain_deep(value) for key, value in values.items()}})
    )


def _plain_deep(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain_deep(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_deep(inner) for inner in value]
    return _plain(value)


def write_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Write names and values in two columns."""
    shown = list(facts)
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        write_line(f"{name:<{width}}  {value}")


def write_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, whole: bool = False
) -> None:
    """Write a table; columns that begin with `>` are aligned to the right.

    What does not fit on the screen is cut off, unless the `whole` is wanted.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    terminal, text = sys.stdout.isatty(), io.StringIO()
    Console(
        file=text,  # not stdout: what a broken pipe means is decided here, not there
        force_terminal=terminal,
        width=_ENDLESS if whole else shutil.get_terminal_size().columns if terminal else _WIDE,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        highlight=False,
    ).print(table)
    for line in text.getvalue().splitlines():
        write_line(line if terminal else line.rstrip())


def write_wrapped(text: str) -> None:
    """Write a line; on a terminal it is wrapped, with later lines indented."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _ENDLESS
    for line in textwrap.wrap(text, width, subsequent_indent="    ", break_long_words=False):
        write_line(line)


def number(value: int | None) -> str:
    """Return a number as text, or a dash."""
    return "-" if value is None else str(value)


def count_text(count: int, one: str, many: str) -> str:
    """Return a count with the word for it: `1 record`, `2 records`."""
    return f"{count} {one if count == 1 else many}"


def size(count: int) -> str:
    """Return a number of bytes as text in a suitable unit."""
    value, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1024 and unit != "TiB":
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def moment(time_us: int | None, *, fine: bool = False) -> str:
    """Return a time in UTC as text, to the second or the microsecond."""
    if time_us is None:
        return "-"
    try:
        time = datetime.fromtimestamp(time_us / 1_000_000, UTC).replace(
            microsecond=time_us % 1_000_000
        )
    except (OverflowError, ValueError, OSError):
        return f"{time_us} us"
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if fine else "%Y-%m-%dT%H:%M:%SZ")


def ranges(spans: Iterable[tuple[int, int]]) -> str:
    """Show ranges of integers."""
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in spans)


class Meter:
    """Progress on stderr: a bar on a terminal, a line at intervals elsewhere, nothing with JSON.

    No line is written twice, and work that was reported is reported when it is done.
    """

    def __init__(self, *, silent: bool, unit: str = "") -> None:
        self._silent = silent
        self._unit = unit
        """What is counted; bytes, if nothing is said."""
        self._terminal = sys.stderr.isatty()
        self._said_at = time.monotonic()
        self._said: tuple[str, str] | None = None
        """The last line: of what work, and how far that was."""
        self._bar: Bar | None = None
        self._tallied = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._tallied:
            click.echo("\r\x1b[K", err=True, nl=False)

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Show how far the work has come."""
        if self._silent:
            return
        if self._terminal:
            self._draw(doing, done, total)
        elif self._is_due(doing, ended=done >= total):
            whole = f"{total} {self._unit}" if self._unit else size(total)
            far = f"{done * 100 // max(1, total)} % of {whole}"
            if self._said != (doing, far):
                self._said_at = time.monotonic()
                self._said = doing, far
                click.echo(f"{doing}: {far}", err=True)

    def _is_due(self, doing: str, *, ended: bool) -> bool:
        spoken_of = self._said is not None and self._said[0] == doing
        return (ended and spoken_of) or time.monotonic() - self._said_at > _QUIET_SECONDS

    def tally(self, text: str) -> None:
        """Return how much is done, where the total is unknown; nothing in the first 2 s."""
        wait = _BLINK_SECONDS if self._tallied else _QUIET_SECONDS
        if self._silent or time.monotonic() - self._said_at <= wait:
            return
        self._said_at = time.monotonic()
        if self._terminal:
            self._tallied = True
            click.echo(f"\r{text}\x1b[K", err=True, nl=False)
        else:
            click.echo(text, err=True)

    def _draw(self, doing: str, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
        )

        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn() if self._unit else DownloadColumn(binary_units=True),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(doing, total=total)
            self._bar.start()
        task = self._bar.tasks[0]
        self._bar.update(task.id, description=doing, completed=done, total=total)
