"""The lake of a served log: its tables and its object store, looked after by the server."""

from __future__ import annotations

from typing import Any

from lakebed.client._stubs import RemoteLakeStub
from lakebed.client.connection import Connection
from lakebed.reports.lake import SyncReport
from lakebed.types import Progress


class RemoteLake(RemoteLakeStub):
    """Iceberg tables and object store of a served log. Any thread; see `Lake`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._call = connection.call

    def sync(
        self,
        topic: str | None = None,
        *,
        take_over: bool = False,
        progress: Progress | None = None,
    ) -> SyncReport:
        """Bring tables, and the store, up to date now; `progress` is told of the end only."""
        report: SyncReport = self._call("lake_sync", topic=topic, take_over=take_over)
        if progress is not None:
            progress("bringing tables up to date", 1, 1)
        return report

    def table(self, topic: str) -> Any:
        """Return the pyiceberg table of a topic, read from where it is kept."""
        from lakebed.client.table import RemoteTable

        return RemoteTable(self._connection, topic).iceberg()
