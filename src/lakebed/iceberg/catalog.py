"""The catalog of the tables: the log's own, or any that pyiceberg knows.

| the log's own catalog | of a log |
|---|---|
| SQLite inside its folder | whose entries are on this disk alone |
| pointers in its store (`pointers.py`) | that ships its entries, for any machine that opens it |

The one in SQLite can be rebuilt at any time, because the log has everything that it states. So a
damaged one is renamed to `catalog.db.damaged`, and an empty one replaces it. A log that begins to
ship its entries moves the tables that are in its store already from SQLite to pointers.

A table of a log that ships its entries states the term of the owner that changed it last, in its
property `lakebed.term`. An owner with a lower term refuses the table.

pyiceberg is imported when a table is first needed: it takes a second.
"""

from __future__ import annotations

import contextlib
import logging
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lakebed.config import LakeConfig, resolve_env
from lakebed.errors import CatalogUnavailableError, InvalidArgumentError, translate_os_errors
from lakebed.host import Disk, Mode, failpoints
from lakebed.host.store import ObjectStore
from lakebed.iceberg.failures import RuinedError, translate_failures
from lakebed.iceberg.pointers import TableOwner, TablePointers, check_term
from lakebed.iceberg.table_metadata import LOG, TERM, number_of

_log = logging.getLogger("lakebed.lake")

OWN_NAME: Final = "catalog.db"
_JOURNALS: Final = ("", "-journal", "-wal", "-shm")
"""The suffixes of the files that belong to a SQLite database."""
NAME: Final = "lakebed"
"""The name of the catalog; in a SQL catalog it is part of a table's key."""

_MOVED = failpoints.define("catalog.moved")

_LOCK_SECONDS: Final = 5
"""How long to wait while another process has locked the SQLite catalog."""


class Catalog:
    """A connection to the catalog, made when it is first needed. One thread at a time."""

    def __init__(
        self,
        *,
        config: LakeConfig,
        disk: Disk,
        folder: Path,
        store: ObjectStore | None = None,
        owner: TableOwner | None = None,
    ) -> None:
        self.is_own: Final = not config.catalog
        """It is inside the log's folder or store, and has the log's tables only."""
        self._config = config
        self._disk = disk
        self._folder = folder.resolve()  # every connection needs it
        self._store = store
        """The store of the tables' files; if it cannot be reached, no file is known to be gone."""
        self._levels = tuple(config.namespace.split("."))
        self._connected: Any = None
        self._owner = owner
        self._pointers: TablePointers | None = None
        if self.is_own and owner is not None and store is not None:
            self._pointers = TablePointers(owner, store, config.namespace)

    @property
    def term(self) -> int | None:
        """Return the term of the log's owner; None for a log on this disk alone."""
        return None if self._owner is None else self._owner.term

    @property
    def needs_snapshots(self) -> bool:
        """Return whether an owner shows an earlier one by a snapshot that it has changed a table.

        A shared catalog compares no more than that.
        """
        return self._owner is not None and self._pointers is None

    def confirm(self) -> None:
        """Return once all that a table may show is in the store, and this process owns the log.

        Precedes every change of a table. Returns at once for a log on this disk alone.
        """
        if self._owner is not None:
            self._owner.confirm()

    @contextlib.contextmanager
    def handle_failures(self, doing: str, name: str) -> Iterator[None]:
        """Raise failures as Lakebed's errors, and reconnect after one of the catalog."""
        try:
            with translate_failures(doing, name):
                yield
        except CatalogUnavailableError:
            self.close()
            raise
        except RuinedError:
            if self._store is not None:
                self._store.size("lakebed")  # raises if the store does not answer
            raise

    def properties(self) -> dict[str, str]:
        """Return what pyiceberg needs to connect, secrets included."""
        return (
            self._sqlite()
            if self.is_own
            else {**self._files(), **resolve_env(self._config.catalog)}
        )

    def _files(self) -> dict[str, str]:
        """Return what pyiceberg needs to read and write files."""
        from lakebed.host.bucket_options import with_defaults
        from lakebed.host.synced_io import IMPLEMENTATION

        options = resolve_env(self._config.store_options)
        return {"py-io-impl": IMPLEMENTATION, **with_defaults(options)}

    def _sqlite(self) -> dict[str, str]:
        path = urllib.parse.quote(str(self._folder / OWN_NAME))
        uri = f"sqlite:///{path}?timeout={_LOCK_SECONDS}"
        return {**self._files(), "type": "sql", "uri": uri}

    def _connection(self) -> Any:
        if self._connected is None:
            catalog = self._connect()
            self._connected = catalog
            catalog.create_namespace_if_not_exists(self._levels)
        return self._connected

    def _connect(self) -> Any:
        if self._pointers is not None:
            from lakebed.iceberg.pointer_catalog import PointerCatalog

            self._move_from_sqlite(self._pointers)
            return PointerCatalog(NAME, self._pointers, **self._files())
        from lakebed.iceberg.sqlite_catalog import load

        properties = self.properties()
        if self.is_own:
            self._prepare(properties["uri"])
        try:
            return load(properties.pop("name", NAME), properties)
        except (ImportError, ValueError) as error:
            raise InvalidArgumentError(
                "unknown catalog", setting="catalog", reason=error
            ) from error

    def _move_from_sqlite(self, pointers: TablePointers) -> None:
        """Register the tables of SQLite that are in the store; each is then dropped there."""
        if OWN_NAME not in self._disk.names(self._folder):
            return
        from lakebed.iceberg.sqlite_catalog import load, metadata_locations

        properties = self._sqlite()
        self._prepare(properties["uri"])
        catalog = load(NAME, properties)
        for name, metadata in metadata_locations(catalog, self._levels).items():
            if metadata.startswith(f"{pointers.location}/"):
                pointers.create(name, metadata)  # unless an attempt that was cut short did
                _MOVED.hit()
                catalog.drop_table((*self._levels, name))

    def _prepare(self, uri: str) -> None:
        """Create the log's own catalog if it does not exist or is damaged."""
        from sqlalchemy.exc import DatabaseError, OperationalError

        self._make()
        try:
            _check(uri)
        except OperationalError:
            raise  # locked, or the disk fails: the catalog may be intact
        except DatabaseError as error:
            _log.warning(
                "the catalog of the tables is damaged, and is created again: %s", error.orig
            )
            self._put_aside()
            self._make()

    def _make(self) -> None:
        """Create the SQLite file for its owner only: SQLite would let others read it."""
        path = self._folder / OWN_NAME
        with translate_os_errors("making the catalog", path):
            self._disk.make_folder(self._folder)
            with contextlib.suppress(FileExistsError):
                self._disk.open(path, Mode.CREATE).close()

    def _put_aside(self) -> None:
        path = self._folder / OWN_NAME
        with translate_os_errors("putting the damaged catalog aside", path):
            there = self._disk.names(self._folder)
            for ending in _JOURNALS:  # a journal left behind would be applied to the new one
                if OWN_NAME + ending in there:
                    aside = self._folder / f"{OWN_NAME}.damaged{ending}"
                    self._disk.rename(self._folder / f"{OWN_NAME}{ending}", aside)
            self._disk.sync_folder(self._folder)

    def load(self, name: str) -> Any:
        """Return a table, or None; refuse one that a later owner of the log has changed."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self._connection().load_table((*self._levels, name))
        except NoSuchTableError:
            return None
        owner, properties = self._owner, table.properties
        if owner is not None and properties.get(LOG) == owner.log_id:
            check_term(name, number_of(properties, TERM), owner.term)
        return table

    def create(
        self, name: str, schema: Any, spec: Any, location: str, properties: Mapping[str, str]
    ) -> Any:
        """Create a table."""
        self.confirm()
        return self._connection().create_table(
            (*self._levels, name),
            schema,
            location=location,
            partition_spec=spec,
            properties=dict(properties),
        )

    def register(self, name: str, metadata: str) -> Any:
        """Register a table whose metadata exists."""
        self.confirm()
        return self._connection().register_table((*self._levels, name), metadata)

    def drop(self, name: str) -> None:
        """Remove a table from the catalog if it exists; its files stay."""
        from pyiceberg.exceptions import NoSuchTableError

        self.confirm()
        try:
            self._connection().drop_table((*self._levels, name))
        except NoSuchTableError:
            return

    def names(self) -> list[str]:
        """Return the names of the tables in the log's namespace, and perhaps of dropped ones."""
        return sorted(identifier[-1] for identifier in self._connection().list_tables(self._levels))

    def release(self) -> None:
        """Close the connection to the log's own catalog between two uses.

        Its file may be moved or removed in between, and the connection would continue with a file
        that no other process sees.
        """
        if self.is_own:
            self.close()

    def stop(self) -> None:
        """End pauses before another attempt: the log is being closed."""
        if self._pointers is not None:
            self._pointers.stop()

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()


def _check(uri: str) -> None:
    """Raise SQLAlchemy's `DatabaseError` for a file that is not as SQLite left it."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import DatabaseError
    from sqlalchemy.pool import NullPool

    with create_engine(uri, poolclass=NullPool).connect() as connection:
        verdict = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if verdict != "ok":
        raise DatabaseError("PRAGMA quick_check", None, ValueError(verdict))
