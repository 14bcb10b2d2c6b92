"""What a running pipeline shows: a table on a terminal, lines elsewhere, JSON for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import click

from lakebed.cli.output import (
    count_text,
    flush,
    number,
    write_json,
    write_table,
    write_wrapped,
)
from lakebed.spark.pipeline.status import FlowStatus

if TYPE_CHECKING:
    from rich.live import Live

_COLUMNS: Final = ("flow", ">batch", ">read", ">read/s", ">lag", "counted")
_SAY_SECONDS: Final = 10.0
"""How often a line says how far the flows are where no user watches."""


class View:
    """Receives the progress of the flows, and shows it."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._terminal = sys.stderr.isatty() and not as_json
        self._live: Live | None = None
        self._shown: dict[str, FlowStatus] = {}
        self._said_at = time.monotonic()

    def __enter__(self) -> Self:
        if self._terminal:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, statuses: Sequence[FlowStatus]) -> None:
        """Show how far the flows are now."""
        if self._as_json:
            self._write_json(statuses)
        elif self._live is not None:
            self._live.update(_table(statuses), refresh=True)
        elif time.monotonic() - self._said_at > _SAY_SECONDS:
            self._said_at = time.monotonic()
            for status in statuses:
                if self._is_news(status):
                    click.echo(_line(status), err=True)

    def finish(self, statuses: Sequence[FlowStatus]) -> None:
        """Show what the flows have done, when they have ended."""
        if self._live is not None:
            self._live.stop()
        if not self._as_json:
            write_table(_COLUMNS, [_row(status) for status in statuses])
            for status in statuses:
                for line in restarts_text(status):
                    write_wrapped(f"{status.flow} {line}")

    def _write_json(self, statuses: Sequence[FlowStatus]) -> None:
        for status in statuses:
            if self._is_news(status):
                write_json("flow", status.document())
        flush()

    def _is_news(self, status: FlowStatus) -> bool:
        """Return whether a flow has made progress since it was shown."""
        before = self._shown.get(status.flow)
        self._shown[status.flow] = status
        return before is None or _key(before) != _key(status)


def _key(status: FlowStatus) -> tuple[object, ...]:
    """Return what makes a status worth showing again."""
    return status.batch, status.state, status.restarts, status.next_attempt


def restarts_text(status: FlowStatus) -> Iterator[str]:
    """Describe the restarts of a flow: how many, after which error, and when the next one is."""
    if status.last_error is None:
        return
    times = count_text(status.restarts, "time", "times")
    upcoming = f", next attempt at {status.next_attempt}" if status.next_attempt else ""
    yield f"restarted {times}{upcoming}; last error: {status.last_error}"


def counts_text(status: FlowStatus) -> Iterator[str]:
    """Yield the counts of each part, without those that are 0."""
    for part, counts in status.counts.items():
        missed = "not " if part.endswith(".expect") else ""
        texts = [
            f"{count} {missed}{name}"
            for name, count in counts.items()
            if name != "rows" and count > 0
        ]
        if texts:
            yield f"{part.removesuffix('.expect')}: {', '.join(texts)} of {counts.get('rows', 0)}"


def _row(status: FlowStatus) -> tuple[str, ...]:
    return (
        status.flow,
        number(status.batch),
        str(status.rows),
        f"{status.rows_per_second:.0f}",
        number(status.lag),
        "; ".join(counts_text(status)) or "-",
    )


def _line(status: FlowStatus) -> str:
    batch, rows, lag = number(status.batch), status.rows, number(status.lag)
    restarts = "".join(f"; {text}" for text in restarts_text(status))
    return f"{status.flow}: batch {batch}, {rows} records read, lag {lag}{restarts}"


def _table(statuses: Sequence[FlowStatus]) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left")
    restarts = []
    for status in statuses:
        table.add_row(*_row(status))
        restarts += [f"{status.flow} {line}" for line in restarts_text(status)]
    if not restarts:
        return table
    return Group(table, *(Text(line, no_wrap=True, overflow="ellipsis") for line in restarts))
