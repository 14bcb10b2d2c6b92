"""Derived tables: Iceberg tables that jobs and pipelines make, each commit exactly once.

Executors write the files; here they become part of a table, with what is known of its writers, in
one swap of the catalog. `derived_facts.py` says what the table then says of itself.

A commit names its writer, a number that grows, and the version that it is based on. One whose
number the writer has reached before is a duplicate, and nothing is done. One that is based on
another version is refused: what it replaces may not be there any more. A newest snapshot that is
not `lakebed.snapshot` is somebody else's: then the table is foreign, and refused.

Metadata is in `{location}/metadata`, with a version hint; data in `{location}/data/{attempt}`. The
hint goes when the log drops the table: a folder with a hint whose table the catalog does not know
is one that somebody else dropped, or that a lost catalog knew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from lakebed.api.derived_change import Change, check_files
from lakebed.errors import ForeignTableError, TableChangedError, TableNotFoundError
from lakebed.lake.catalog import Catalog
from lakebed.lake.derived_facts import (
    COMMIT,
    KIND,
    SNAPSHOT,
    VERSION,
    description_of,
    first_properties,
    following_properties,
)
from lakebed.lake.derived_files import described, shown
from lakebed.lake.derived_schema import added_columns, check_made_alike, table_schema
from lakebed.lake.swaps import Steps, Swaps, is_at_head
from lakebed.lake.table_facts import LOG, live_files
from lakebed.reports.derived import BUCKET, Committed, DerivedFiles, DerivedTable

_STEPS: Final = Steps.define("lake.derived")


class DerivedTables:
    """The derived tables of one log, in its catalog. One thread at a time."""

    def __init__(
        self,
        catalog: Catalog,
        location: str,
        log: str,
        snapshots_kept: int,
        newest_metadata: Callable[[str], str | None],
    ) -> None:
        self._catalog = catalog
        self._newest_metadata = newest_metadata
        """Gives the newest metadata of a table that the log has not dropped, by its name."""
        self._location = location
        self._log = log
        self._swaps = Swaps(catalog, snapshots_kept, _STEPS)
        self._live: dict[str, tuple[int | None, dict[str, Any]]] = {}
        """Newest snapshot and live files of each table, by the table's identity."""

    # Making and dropping

    def create(
        self, name: str, given: pa.Schema, kind: str, key: Sequence[str], buckets: int
    ) -> DerivedTable:
        """Make a table, or give the one there is if it is the same."""
        schema = table_schema(given, kind, key, buckets)
        with self._swaps.asking("making a table", name):
            if self._catalog.load(name) is None:
                self._check_not_lost(name)
                table = self._make(name, schema, kind, tuple(key), buckets)
            else:
                table = self._open(name)
            found = description_of(name, table)
        check_made_alike(found, schema, kind, tuple(key), buckets)
        return found

    def _check_not_lost(self, name: str) -> None:
        if self._newest_metadata(name) is not None:
            raise ForeignTableError(
                "somebody else has dropped the table, or the catalog has lost it: `restore` brings"
                " it back as it was, `drop` forgets it",
                table=name,
            )

    def restore(self, name: str) -> DerivedTable:
        """Let the catalog know a table again that the log has not dropped."""
        with self._swaps.asking("restoring a table", name):
            if self._catalog.load(name) is None:
                metadata = self._newest_metadata(name)
                if metadata is None:
                    raise TableNotFoundError("there is no such table", table=name)
                self._catalog.register(name, metadata)
            return description_of(name, self._open(name))

    def _make(
        self, name: str, schema: pa.Schema, kind: str, key: tuple[str, ...], buckets: int
    ) -> Any:
        table = self._swaps.create(
            name,
            schema,
            None if kind == "append" else BUCKET,
            f"{self._location}/{name}/{uuid.uuid4().hex}",
            first_properties(self._log, kind, key, buckets),
        )
        self._swaps.hint(table)
        return table

    def evolve(self, name: str, given: pa.Schema) -> DerivedTable:
        """Add the columns of a schema that a table lacks; its rows have nulls there."""
        with self._swaps.asking("changing a table's columns", name):
            table = self._open(name)
            have = description_of(name, table).schema
            if added_columns(given, have):
                self._grow(table, given, have)
            return description_of(name, table)

    def _grow(self, table: Any, given: pa.Schema, have: pa.Schema) -> None:
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

        fields = added_columns(given, have)
        change = table.transaction()
        with change.update_schema() as update:
            for field in _pyarrow_to_schema_without_ids(pa.schema(fields)).fields:
                update.add_column(field.name, field.field_type)
        change.commit_transaction()
        self._swaps.hint(table)

    def drop(self, name: str) -> bool:
        """Let the catalog forget a table, and readers without one; return whether it was there.

        Its files go with the next removals, after the grace period.
        """
        with self._swaps.asking("dropping a table", name):
            table = self._catalog.load(name)
            if table is None:
                return False
            self._check_owner(name, table)
            self._catalog.drop(name)
            self._live.pop(str(table.metadata.table_uuid), None)
            self._swaps.unhint(table)
        return True

    # Looking

    def describe(self, name: str) -> DerivedTable:
        """Describe a table."""
        with self._swaps.asking("loading a table", name):
            return description_of(name, self._open(name))

    def names(self) -> list[str]:
        """Return the names of the log's derived tables."""
        with self._swaps.asking("listing tables", ""):
            return [name for name in self._catalog.names() if self._is_ours(name)]

    def _is_ours(self, name: str) -> bool:
        table = self._catalog.load(name)
        return table is not None and table.properties.get(LOG) == self._log

    def table(self, name: str) -> Any:
        """Return the pyiceberg table."""
        with self._swaps.asking("loading a table", name):
            return self._open(name)

    def files(self, name: str, buckets: Sequence[int] | None) -> DerivedFiles:
        """Return a table and its files, or those of some buckets, at one version."""
        with self._swaps.asking("listing a table's files", name):
            table = self._open(name)
            found = [shown(each) for each in self._files(table).values()]
        if buckets is not None:
            wanted = set(buckets)
            found = [each for each in found if each.bucket in wanted]
        found.sort(key=lambda each: (each.bucket, each.content, each.location))
        return DerivedFiles(description_of(name, table), tuple(found))

    def _open(self, name: str) -> Any:
        """Return a table that is as the log left it."""
        table = self._catalog.load(name)
        if table is None:
            raise TableNotFoundError("there is no such table", table=name)
        self._check_owner(name, table)
        snapshot = table.metadata.current_snapshot_id
        if str(snapshot or "") != table.properties.get(SNAPSHOT, ""):
            raise ForeignTableError(
                "somebody else has changed the table: undo it by a rollback to the snapshot that"
                " the log left, or drop the table and let its job make it anew",
                table=name,
                snapshot=snapshot,
                left=table.properties.get(SNAPSHOT, "none"),
            )
        return table

    def _check_owner(self, name: str, table: Any) -> None:
        owner = table.properties.get(LOG, "none")
        below = table.location().startswith(f"{self._location}/{name}/")
        if owner != self._log or not below or KIND not in table.properties:
            raise ForeignTableError(
                "the table belongs to another log, to another folder, or to nobody",
                table=name,
                log=owner,
                location=table.location(),
            )

    def _files(self, table: Any) -> dict[str, Any]:
        """Return every file of a table's newest snapshot by its location."""
        identity, head = str(table.metadata.table_uuid), table.metadata.current_snapshot_id
        known = self._live.get(identity)
        if known is not None and known[0] == head:
            return known[1]
        files = live_files(table, with_deletes=True)
        self._live[identity] = (head, files)
        return files

    # Committing

    def commit(self, name: str, change: Change) -> Committed:
        """Change a table, once: see the head of this file."""
        own = uuid.uuid4().hex
        return self._swaps.repeated(
            "committing to a table", name, lambda: self._commit(name, change, own)
        )

    def _commit(self, name: str, change: Change, own: str) -> Committed:
        table = self._open(name)
        now = description_of(name, table)
        if table.properties.get(COMMIT) == own:
            return Committed(duplicate=False, version=now.version)  # an answer was lost
        if change.number <= now.writers.get(change.writer, -1):
            return Committed(duplicate=True, version=now.version)
        if now.version != change.expected:
            raise TableChangedError(
                "the table has changed since the commit was prepared",
                table=name,
                expected=change.expected,
                version=now.version,
            )
        check_files(change.added, now)
        live = self._files(table)
        gone = sorted(change.removed.difference(live))
        if gone:
            raise TableChangedError(
                "a file that the commit replaces is not part of the table", table=name, file=gone[0]
            )
        added = described(list(change.added), table, now.schema)
        self._swap(table, change, added, [live[place] for place in sorted(change.removed)], own)
        return Committed(duplicate=False, version=now.version + 1)

    def _swap(
        self, table: Any, change: Change, added: list[Any], removed: list[Any], own: str
    ) -> None:
        from lakebed.lake.derived_manifests import change_files

        now = table.properties
        following = following_properties(now, change, own, now.get(SNAPSHOT, ""))
        update = table.transaction()
        if added or removed:
            marks = {LOG: self._log, VERSION: following[VERSION]}
            producer = change_files(update, added, removed, marks)
            following[SNAPSHOT] = str(producer.snapshot_id)
            producer.commit()
        else:
            update._stage((), (is_at_head(table),))
        update.set_properties(following)
        self._swaps.swap(update)
        self._swaps.hint(table)

    def expire(self, name: str, before_us: int) -> int:
        """Remove a table's snapshots of before a time, but for the newest; return how many."""
        with self._swaps.asking("expiring snapshots", name):
            return self._swaps.expire(self._open(name), before_us)

    def rest(self) -> None:
        """Report that the catalog is not needed for a while."""
        self._swaps.rest()

    def close(self) -> None:
        """Let go of the catalog."""
        self._catalog.close()
