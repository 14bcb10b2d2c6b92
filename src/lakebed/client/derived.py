"""Derived tables of a served log: executors write files, the server commits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakebed.api.derived import DerivedCalls
from lakebed.api.derived_change import Change
from lakebed.client.connection import Connection
from lakebed.reports.derived import Committed, DerivedFiles, DerivedTable
from lakebed.types import TableName


class RemoteDerived(DerivedCalls):
    """The derived tables of a served log. Any thread; for its methods see `Derived`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.store_options: Mapping[str, str] = {}
        """How executors reach the object store, under pyiceberg's names; empty for what their
        environment says."""

    def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        kind: str = "current",
        key: Sequence[str] = (),
        buckets: int = 16,
    ) -> DerivedTable:
        """Make a table, or give the one there is if it is made the same way."""
        table: DerivedTable = self._connection.call(
            "derived_create",
            name=TableName(name),
            schema=schema,
            kind=kind,
            key=key if isinstance(key, str) else list(key),
            buckets=buckets,
        )
        return table

    def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; rows of before have nulls there."""
        table: DerivedTable = self._connection.call(
            "derived_evolve", name=TableName(name), schema=schema
        )
        return table

    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, how far its writers have come."""
        table: DerivedTable = self._connection.call("derived_describe", name=TableName(name))
        return table

    def tables(self) -> list[str]:
        """List the names of the derived tables that the caller may read."""
        return list(self._connection.call("derived_tables"))

    def restore(self, name: str) -> DerivedTable:
        """Bring a table back that somebody else has dropped, or that a lost catalog knew."""
        table: DerivedTable = self._connection.call("derived_restore", name=TableName(name))
        return table

    def drop(self, name: str) -> bool:
        """Drop a table; return whether there was one. Its files go after the grace period."""
        dropped: bool = self._connection.call("derived_drop", name=TableName(name))
        return dropped

    def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or with those of some buckets, all of one version."""
        chosen = None if buckets is None else list(buckets)
        found: DerivedFiles = self._connection.call(
            "derived_files", name=TableName(name), buckets=chosen
        )
        return found

    def _commit(self, name: str, change: Change) -> Committed:
        places = change.positions
        done: Committed = self._connection.call(
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
