"""Derived tables of a served log: executors write files, the server commits them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakebed.api.derived import DerivedCalls
from lakebed.api.derived_change import Change
from lakebed.client._stubs import RemoteDerivedStub
from lakebed.client.connection import Connection
from lakebed.reports.derived import Committed


class RemoteDerived(RemoteDerivedStub, DerivedCalls):
    """The derived tables of a served log. Any thread; for its methods see `Derived`."""

    def __init__(self, connection: Connection) -> None:
        self._call = connection.call
        self.store_options: Mapping[str, str] = {}
        """How executors reach the object store, under pyiceberg's names; empty for what their
        environment says."""

    def _commit(self, name: str, change: Change) -> Committed:
        places = change.positions
        done: Committed = self._call(
            "derived_commit",
            name=name,
            writer=change.writer,
            number=change.number,
            added=[(e.location, e.bucket, e.content, e.rows, e.bytes) for e in change.added],
            removed=list(change.removed),
            positions=None if places is None else {t: dict(p) for t, p in places.items()},
            expected=change.expected,
        )
        return done

    def iceberg(self, name: str) -> Any:
        """Return the pyiceberg table, read from where it is kept."""
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(self.describe(name).metadata)
