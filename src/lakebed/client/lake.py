"""The lake of a served log: its tables and its object store, looked after by the server."""

from __future__ import annotations

from typing import Any

from lakebed.client.connection import Connection
from lakebed.reports.lake import LakeStats, RemovalReport, SnapshotInfo, SyncReport, TableInfo
from lakebed.types import Progress


class RemoteLake:
    """Iceberg tables and object store of a served log. Any thread; see `Lake`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def sync(
        self,
        topic: str | None = None,
        *,
        take_over: bool = False,
        progress: Progress | None = None,
    ) -> SyncReport:
        """Bring tables, and the store, up to date now; `progress` is told of the end only."""
        report: SyncReport = self._connection.call("lake_sync", topic=topic, take_over=take_over)
        if progress is not None:
            progress("bringing tables up to date", 1, 1)
        return report

    def gc(self, *, now: bool = False) -> RemovalReport:
        """Remove files that nothing refers to and whose grace period is over."""
        report: RemovalReport = self._connection.call("lake_gc", now=now)
        return report

    def tables(self) -> list[TableInfo]:
        """Describe the table of every topic."""
        return list(self._connection.call("lake_tables"))

    def describe(self, topic: str) -> TableInfo:
        """Describe the table of a topic."""
        info: TableInfo = self._connection.call("lake_describe", topic=topic)
        return info

    def history(self, topic: str) -> list[SnapshotInfo]:
        """Return the snapshots of a topic's table, the oldest first."""
        return list(self._connection.call("lake_history", topic=topic))

    def table(self, topic: str) -> Any:
        """Return the pyiceberg table of a topic, read from where it is kept."""
        from lakebed.client.table import RemoteTable

        return RemoteTable(self._connection, topic).iceberg()

    def stats(self) -> LakeStats:
        """Return counters of the lake."""
        stats: LakeStats = self._connection.call("lake_stats")
        return stats
