"""What tests do to an open WAL from inside: the one place that knows its private parts."""

from __future__ import annotations

from collections.abc import Callable

from lakebed.wal import Wal
from lakebed.wal.appender import Tail
from lakebed.wal.request import Request


def entries_waiting(log: Wal) -> list[Request]:
    """Return the entries that wait for the group that is being committed."""
    return log.commits._queue


def fill_spares(log: Wal) -> None:
    """Make spare files, as a thread does otherwise."""
    log._opened.spares.fill()


def mark_idle(log: Wal) -> None:
    """Write the mark of an idle log, as its thread does after a while."""
    log.commits.tail = log._writer.mark_idle(log.commits.tail)


def commit_at(log: Wal, tail: Tail, group: list[Request]) -> None:
    """Commit a group at a tail; where the log then ends is not kept."""
    log._writer.commit(tail, group)


def read_behind(log: Wal, change: Callable[[], object]) -> None:
    """Make a change, and have the next reader look from where the log was before it."""
    stale, reader = [log.commits.tail], log._reader
    change()
    now = reader._tail
    reader._tail = lambda: stale.pop() if stale else now()
