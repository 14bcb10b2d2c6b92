"""Derived tables, `log.derived`: Iceberg tables that jobs and pipelines write, exactly once.

Spark executors write files below `place`; the owner of the log commits them, with the progress of
their writers, in one commit of the catalog. The tables are in the log's catalog, in a namespace of
their own (`lakebed_tables`, if the topics' is `lakebed`). `derived_properties.py` specifies what a
table states about itself, `derived_folder.py` where its files are.

A commit names its writer, a number that grows, and the version that it is based on. A number that
the writer has reached before is a duplicate, and nothing is done. A commit that is based on another
version is refused: files that it replaces may have been replaced already. If the newest snapshot is
not `lakebed.snapshot`, another writer has changed the table: it is foreign, and refused.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from lakebed.api.derived import DerivedCalls
from lakebed.api.derived_change import Change, check_files
from lakebed.errors import (
    ClosedError,
    ForeignTableError,
    InvalidArgumentError,
    TableChangedError,
    TableNotFoundError,
)
from lakebed.iceberg.catalog import Catalog
from lakebed.iceberg.commit import CommitSteps, TableCommits, is_at_head
from lakebed.iceberg.derived_files import describe_files, to_derived_file
from lakebed.iceberg.derived_folder import DerivedFolder
from lakebed.iceberg.derived_properties import (
    COMMIT,
    KIND,
    SNAPSHOT,
    VERSION,
    description_of,
    first_properties,
    following_properties,
)
from lakebed.iceberg.derived_schema import check_same_definition, missing_columns, table_schema
from lakebed.iceberg.parts import LakeParts
from lakebed.iceberg.table_metadata import LOG, live_files, terms
from lakebed.reports.derived import BUCKET, Committed, DerivedFiles, DerivedTable
from lakebed.types import TableName

_log = logging.getLogger("lakebed.lake")

_STOP_SECONDS: Final = 10.0
"""How long closing waits for a catalog and a store."""

_STEPS: Final = CommitSteps.define("lake.derived")


class Derived(DerivedCalls):
    """The derived tables of one log. Any thread."""

    def __init__(self, parts: LakeParts) -> None:
        self._log = parts.log
        self._log_id = parts.log_id
        self._check_writable = parts.wal.check_writable
        self._locations = parts.locations
        self._iceberg = parts.config.iceberg
        self.namespace: Final = f"{parts.config.namespace}_tables"
        """The catalog's namespace in which the tables are."""
        self.folder: Final = DerivedFolder(parts)
        config = replace(parts.config, namespace=self.namespace)
        self._catalog = Catalog(
            config=config,
            disk=parts.disk,
            folder=parts.tables_folder,
            store=self.folder.store if config.store else None,
            owner=parts.owner,
        )
        self._commits = TableCommits(self._catalog, config.snapshots_kept, _STEPS)
        self._live: dict[str, tuple[int | None, dict[str, Any]]] = {}
        """Newest snapshot and live files of each table, by the table's identity."""
        self._lock = threading.Lock()
        self._closed = False

    @property
    def store_options(self) -> dict[str, str]:
        """Return what executors need to reach the files, secrets included."""
        return dict(self.folder.store_options)

    # Creating and dropping

    def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        kind: str = "current",
        key: Sequence[str] = (),
        buckets: int = 16,
    ) -> DerivedTable:
        """Create a table, or return the existing one if it has the same definition.

        Args:
            name: name of the table.
            schema: Arrow schema of its rows.
            kind: `current` (one row per key), `history` (every version of a key) or `append`.
            key: names of the key columns.
            buckets: number of parts into which the key divides the files.

        Raises:
            TableExistsError: the table exists with another definition.
        """
        name = str(TableName(name))
        self._check_writable()
        self._locations.check()
        buckets = 0 if kind == "append" else buckets
        with self.exclusive():
            columns = table_schema(schema, kind, key, buckets)
            with self._catalog.handle_failures("making a table", name):
                if self._catalog.load(name) is None:
                    self._check_not_lost(name)
                    table = self._create(name, columns, kind, tuple(key), buckets)
                else:
                    table = self._open(name)
                description = description_of(name, table)
        check_same_definition(description, columns, kind, tuple(key), buckets)
        return description

    def _check_not_lost(self, name: str) -> None:
        if self.folder.newest_metadata(name) is not None:
            raise ForeignTableError(
                "another writer has dropped the table, or the catalog has lost it: `restore` brings"
                " it back as it was, `drop` forgets it",
                table=name,
            )

    def _create(
        self, name: str, columns: pa.Schema, kind: str, key: tuple[str, ...], buckets: int
    ) -> Any:
        table = self._commits.create(
            name,
            columns,
            None if kind == "append" else BUCKET,
            f"{self.folder.location}/{name}/{uuid.uuid4().hex}",
            first_properties(self._log_id, kind, key, buckets) | terms(self._catalog.term),
        )
        self._commits.write_hint(table)
        return table

    def restore(self, name: str) -> DerivedTable:
        """Restore a table that another program has dropped, or that a lost catalog knew."""
        name = str(TableName(name))
        self._check_writable()
        with self.exclusive(), self._catalog.handle_failures("restoring a table", name):
            if self._catalog.load(name) is None:
                metadata = self.folder.newest_metadata(name)
                if metadata is None:
                    raise TableNotFoundError("the table does not exist", table=name)
                self._catalog.register(name, metadata)
            return description_of(name, self._open(name))

    def evolve(self, name: str, schema: pa.Schema) -> DerivedTable:
        """Add the columns of `schema` that a table lacks; existing rows have nulls there."""
        name = str(TableName(name))
        self._check_writable()
        with self.exclusive(), self._catalog.handle_failures("changing a table's columns", name):
            table = self._open(name)
            fields = missing_columns(schema, description_of(name, table).schema)
            if fields:
                self._add_columns(table, fields)
            return description_of(name, table)

    def _add_columns(self, table: Any, fields: list[pa.Field]) -> None:
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

        change = table.transaction()
        with change.update_schema() as update:
            for field in _pyarrow_to_schema_without_ids(pa.schema(fields)).fields:
                update.add_column(field.name, field.field_type)
        self._commits.make_ready(change)
        change.commit_transaction()
        self._commits.write_hint(table)

    def drop(self, name: str) -> bool:
        """Drop a table; return False if there was none. Its files go after the grace period."""
        name = str(TableName(name))
        self._check_writable()
        with self.exclusive():
            existed = self._drop(name)
            return self.folder.remove_hints(name) or existed

    def _drop(self, name: str) -> bool:
        with self._catalog.handle_failures("dropping a table", name):
            table = self._catalog.load(name)
            if table is None:
                return False
            self._check_owner(name, table)
            self._catalog.drop(name)
            self._live.pop(str(table.metadata.table_uuid), None)
            self._commits.remove_hint(table)
        return True

    # Reading

    def describe(self, name: str) -> DerivedTable:
        """Describe a table: columns, version, positions of its writers.

        Raises:
            TableNotFoundError: the table does not exist.
        """
        name = str(TableName(name))
        with self.exclusive(), self._catalog.handle_failures("loading a table", name):
            return description_of(name, self._open(name))

    def tables(self) -> list[str]:
        """List the names of the derived tables."""
        with self.exclusive():
            return self.list_names()

    def files(self, name: str, buckets: Sequence[int] | None = None) -> DerivedFiles:
        """Return a table with its files, or those of some buckets, all of one version."""
        name = str(TableName(name))
        with self.exclusive(), self._catalog.handle_failures("listing a table's files", name):
            table = self._open(name)
            files = [to_derived_file(file) for file in self._files(table).values()]
            description = description_of(name, table)
        if buckets is not None:
            wanted = set(buckets)
            files = [file for file in files if file.bucket in wanted]
        files.sort(key=lambda file: (file.bucket, file.content, file.location))
        return DerivedFiles(description, tuple(files))

    def iceberg(self, name: str) -> Any:
        """Return the pyiceberg table."""
        name = str(TableName(name))
        with self.exclusive():
            return self.load(name)

    def _open(self, name: str) -> Any:
        """Load a table that is as the log left it."""
        table = self._catalog.load(name)
        if table is None:
            raise TableNotFoundError("the table does not exist", table=name)
        self._check_owner(name, table)
        snapshot = table.metadata.current_snapshot_id
        if str(snapshot or "") != table.properties.get(SNAPSHOT, ""):
            raise ForeignTableError(
                "another writer has changed the table: undo it by a rollback to the snapshot that"
                " the log left, or drop the table and let its job create it again",
                table=name,
                snapshot=snapshot,
                left=table.properties.get(SNAPSHOT, "none"),
            )
        return table

    def _check_owner(self, name: str, table: Any) -> None:
        owner = table.properties.get(LOG, "none")
        below = table.location().startswith(f"{self.folder.location}/{name}/")
        if owner != self._log_id or not below or KIND not in table.properties:
            raise ForeignTableError(
                "the table belongs to another log, to another folder, or to none",
                table=name,
                log=owner,
                location=table.location(),
            )

    def _files(self, table: Any) -> dict[str, Any]:
        """Return every file of a table's newest snapshot by its location."""
        identity, head = str(table.metadata.table_uuid), table.metadata.current_snapshot_id
        cached = self._live.get(identity)
        if cached is not None and cached[0] == head:
            return cached[1]
        files = live_files(table, with_deletes=True)
        self._live[identity] = (head, files)
        return files

    # Committing

    def _commit(self, name: str, change: Change) -> Committed:
        self._check_writable()
        commit_id = uuid.uuid4().hex
        with self.exclusive():
            return self._commits.retry(
                "committing to a table", name, lambda: self._attempt(name, change, commit_id)
            )

    def _attempt(self, name: str, change: Change, commit_id: str) -> Committed:
        table = self._open(name)
        now = description_of(name, table)
        if table.properties.get(COMMIT) == commit_id:
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
        added = describe_files(list(change.added), table, now.schema)
        removed = [live[location] for location in sorted(change.removed)]
        self._change_files(table, change, added, removed, commit_id)
        return Committed(duplicate=False, version=now.version + 1)

    def _change_files(
        self, table: Any, change: Change, added: list[Any], removed: list[Any], commit_id: str
    ) -> None:
        from lakebed.iceberg.manifests import change_files

        now = table.properties
        following = following_properties(now, change, commit_id, now.get(SNAPSHOT, ""))
        update = table.transaction()
        if added or removed or self._catalog.needs_snapshots:
            marks = {LOG: self._log_id, VERSION: following[VERSION]}
            producer = change_files(update, added, removed, marks)
            following[SNAPSHOT] = str(producer.snapshot_id)
            producer.commit()
        else:
            update._stage((), (is_at_head(table),))
        update.set_properties(following)
        self._commits.commit(update)
        self._commits.write_hint(table)

    # For garbage collection, which holds the lock

    def list_names(self) -> list[str]:
        """Return the names of the log's derived tables."""
        with self._catalog.handle_failures("listing tables", ""):
            return [name for name in self._catalog.names() if self._is_ours(name)]

    def _is_ours(self, name: str) -> bool:
        table = self._catalog.load(name)
        return table is not None and table.properties.get(LOG) == self._log_id

    def load(self, name: str) -> Any:
        """Return the pyiceberg table."""
        with self._catalog.handle_failures("loading a table", name):
            return self._open(name)

    def expire(self, name: str, before_us: int) -> int:
        """Expire a table's snapshots before a time, except the newest; return how many."""
        with self._catalog.handle_failures("expiring snapshots", name):
            return self._commits.expire(self._open(name), before_us)

    # The lock, and closing

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of the tables, while the log is open."""
        self._log.check_may_wait()
        with self._lock:
            self.check_open()
            try:
                yield
            finally:
                self._catalog.release()

    def check_open(self) -> None:
        """Refuse work once the log is closed, and in a log without tables."""
        if self._closed:
            raise ClosedError("the log is closed")
        if not self._iceberg:
            raise InvalidArgumentError("derived tables need the lake's setting `iceberg`")

    def close(self) -> None:
        """Refuse further work, and close the catalog."""
        self._closed = True
        self.folder.store.close()
        self._catalog.stop()
        if not self._lock.acquire(timeout=_STOP_SECONDS):
            _log.error(
                "the catalog of derived tables does not answer: the log is closed without it"
            )
            return
        try:
            self._catalog.close()
        finally:
            self._lock.release()
