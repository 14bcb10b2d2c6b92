"""Iceberg tables and object store of a log, awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakebed.aio._stubs import AsyncLakeStub
from lakebed.api.parts import LakeApi
from lakebed.bridge.threads import Threads, progress_in_loop
from lakebed.reports.lake import SyncReport
from lakebed.types import Progress


class AsyncLake(AsyncLakeStub):
    """Tables, store and removal of one log. Any task.

    A catalog or a store may be far away: everything here runs in the threads for what takes long.
    """

    def __init__(self, lake: LakeApi, threads: Threads, check_open: Callable[[], None]) -> None:
        super().__init__(threads, check_open)
        self._lake = lake

    async def sync(
        self,
        topic: str | None = None,
        *,
        take_over: bool = False,
        progress: Progress | None = None,
    ) -> SyncReport:
        """Update the tables, and the object store, now.

        A table that another writer has changed is refused, unless you `take_over`: then it shows
        exactly the log's records again. `progress` is called in the event loop.

        Arguments and errors are those of `log.lake.sync`.
        """
        tell = None if progress is None else progress_in_loop(progress)
        return await self._run_slowly(self._lake.sync, topic, take_over=take_over, progress=tell)

    async def table(self, topic: str) -> Any:
        """Return the pyiceberg table of a topic, with everything that is in segments now.

        Its own methods block: call them in a thread.
        """
        return await self._run_slowly(self._lake.table, topic)
