"""The catalog of the tables: SQLite inside the log's folder, or any that pyiceberg knows.

The log's own catalog can be rebuilt at any time, because the log has everything that it states. So
a damaged one is renamed to `catalog.db.damaged`, and an empty one replaces it.

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
from lakebed.errors import CatalogUnavailableError, InvalidArgumentError, translated
from lakebed.host import Disk, Mode
from lakebed.host.store import ObjectStore
from lakebed.iceberg.failures import RuinedError, translate_failures

_log = logging.getLogger("lakebed.lake")

OWN_NAME: Final = "catalog.db"
_JOURNALS: Final = ("", "-journal", "-wal", "-shm")
"""The suffixes of the files that belong to a SQLite database."""
NAME: Final = "lakebed"
"""The name of the catalog; in a SQL catalog it is part of a table's key."""

_LOCK_SECONDS: Final = 5
"""How long to wait while another process has locked the SQLite catalog."""


class Catalog:
    """A connection to the catalog, made when it is first needed. One thread at a time."""

    def __init__(
        self, *, config: LakeConfig, disk: Disk, folder: Path, store: ObjectStore | None = None
    ) -> None:
        self.is_own: Final = not config.catalog
        """It is inside the log's folder, and has the log's tables only."""
        self._config = config
        self._disk = disk
        self._folder = folder.resolve()  # every connection needs it
        self._store = store
        """The store of the tables' files; if it cannot be reached, no file is known to be gone."""
        self._levels = tuple(config.namespace.split("."))
        self._connected: Any = None

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
        from lakebed.host.bucket_options import with_defaults
        from lakebed.host.synced_io import IMPLEMENTATION

        options = resolve_env(self._config.store_options)
        given = {"py-io-impl": IMPLEMENTATION, **with_defaults(options)}
        if self.is_own:
            path = urllib.parse.quote(str(self._folder / OWN_NAME))
            return {**given, "type": "sql", "uri": f"sqlite:///{path}?timeout={_LOCK_SECONDS}"}
        return {**given, **resolve_env(self._config.catalog)}

    def _connection(self) -> Any:
        if self._connected is None:
            from lakebed.iceberg.sqlite_catalog import load

            properties = self.properties()
            if self.is_own:
                self._prepare(properties["uri"])
            try:
                catalog = load(properties.pop("name", NAME), properties)
            except (ImportError, ValueError) as error:
                raise InvalidArgumentError(
                    "unknown catalog", setting="catalog", reason=error
                ) from error
            self._connected = catalog
            catalog.create_namespace_if_not_exists(self._levels)
        return self._connected

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
        with translated("making the catalog", path):
            self._disk.make_folder(self._folder)
            with contextlib.suppress(FileExistsError):
                self._disk.open(path, Mode.CREATE).close()

    def _put_aside(self) -> None:
        path = self._folder / OWN_NAME
        with translated("putting the damaged catalog aside", path):
            there = self._disk.names(self._folder)
            for ending in _JOURNALS:  # a journal left behind would be applied to the new one
                if OWN_NAME + ending in there:
                    aside = self._folder / f"{OWN_NAME}.damaged{ending}"
                    self._disk.rename(self._folder / f"{OWN_NAME}{ending}", aside)
            self._disk.sync_folder(self._folder)

    def load(self, name: str) -> Any:
        """Return a table, or None."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._connection().load_table((*self._levels, name))
        except NoSuchTableError:
            return None

    def create(
        self, name: str, schema: Any, spec: Any, location: str, properties: Mapping[str, str]
    ) -> Any:
        """Create a table."""
        return self._connection().create_table(
            (*self._levels, name),
            schema,
            location=location,
            partition_spec=spec,
            properties=dict(properties),
        )

    def register(self, name: str, metadata: str) -> Any:
        """Register a table whose metadata exists."""
        return self._connection().register_table((*self._levels, name), metadata)

    def drop(self, name: str) -> None:
        """Remove a table from the catalog if it exists; its files stay."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            self._connection().drop_table((*self._levels, name))
        except NoSuchTableError:
            return

    def names(self) -> list[str]:
        """Return the names of the tables in the log's namespace."""
        return sorted(found[-1] for found in self._connection().list_tables(self._levels))

    def release(self) -> None:
        """Close the connection to the log's own catalog between two uses.

        Its file may be moved or removed in between, and the connection would continue with a file
        that no other process sees.
        """
        if self.is_own:
            self.close()

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
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise DatabaseError("PRAGMA quick_check", None, ValueError(found))
