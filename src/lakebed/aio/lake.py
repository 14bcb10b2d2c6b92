"""Iceberg tables and object store of a log, awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from lakebed.aio.loop import told_in_loop
from lakebed.api.parts import LakeApi
from lakebed.reports.lake import LakeStats, RemovalReport, SnapshotInfo, SyncReport, TableInfo
from lakebed.types import Progress

RunSlowly = Callable[..., Awaitable[Any]]
"""Calls something in a thread that may take its time."""


class AsyncLake:
    """Tables, store and removal of one log. Any task.

    A catalog or a store may be far away: everything here runs in the threads for what takes long.
    """

    def __init__(self, lake: LakeApi, run: RunSlowly, quickly: RunSlowly) -> None:
        self._lake = lake
        self._run = run
        self._quickly = quickly

    async def sync(
        self,
        topic: str | None = None,
        *,
        take_over: bool = False,
        progress: Progress | None = None,
    ) -> SyncReport:
        """Bring tables, and the store, up to date now; of one topic, or of all.

        A table that somebody else has changed is refused, unless you `take_over`: then it shows
        exactly the log's records again. `progress` is called in the event loop.
        """
        tell = None if progress is None else told_in_loop(progress)
        call = partial(self._lake.sync, topic, take_over=take_over, progress=tell)
        report: SyncReport = await self._run(call)
        return report

    async def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over.

        With `now`, older snapshots are expired first and no file is granted a grace period: readers
        that have begun may fail.
        """
        report: RemovalReport = await self._run(partial(self._lake.gc, now=now))
        return report

    async def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        found: list[TableInfo] = await self._run(self._lake.tables)
        return found

    async def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        found: TableInfo = await self._run(self._lake.describe, topic)
        return found

    async def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, the oldest first."""
        found: list[SnapshotInfo] = await self._run(self._lake.history, topic)
        return found

    async def table(self, topic: str) -> Any:
        """Return the pyiceberg table of a topic, showing everything that is in segments now.

        Its own methods block: call them in a thread.
        """
        return await self._run(self._lake.table, topic)

    async def stats(self) -> LakeStats:
        """Return counters, and how far the tables are behind."""
        found: LakeStats = await self._quickly(self._lake.stats)
        return found
