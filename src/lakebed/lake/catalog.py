"""The catalog of the tables: SQLite inside the log's folder, or any that pyiceberg knows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lakebed.config import LakeConfig, resolved
from lakebed.errors import InvalidArgumentError, translated
from lakebed.host import Disk, Mode

OWN_NAME: Final = "catalog.db"
NAME: Final = "lakebed"
"""What the catalog calls itself; in a SQL catalog it is part of a table's key."""

_LOCK_SECONDS: Final = 5
"""How long to wait while somebody else holds the SQLite catalog."""


class Catalog:
    """A connection to the catalog, made when it is first needed. One thread at a time."""

    def __init__(self, config: LakeConfig, disk: Disk, folder: Path) -> None:
        self.is_own: Final = not config.catalog
        """It is inside the log's folder, and nobody else has tables in it."""
        self._config = config
        self._disk = disk
        self._folder = folder
        self._levels = tuple(config.namespace.split("."))
        self._connected: Any = None

    def properties(self) -> dict[str, str]:
        """Give what pyiceberg needs to connect, secrets included."""
        from lakebed.host.synced_io import IMPLEMENTATION

        given = {"py-io-impl": IMPLEMENTATION, **resolved(self._config.store_options)}
        if self.is_own:
            path = self._folder / OWN_NAME
            return {**given, "type": "sql", "uri": f"sqlite:///{path}?timeout={_LOCK_SECONDS}"}
        return {**given, **resolved(self._config.catalog)}

    def _connection(self) -> Any:
        if self._connected is None:
            from pyiceberg.catalog import load_catalog

            if self.is_own:
                self._prepare()
            properties = self.properties()
            try:
                catalog = load_catalog(properties.pop("name", NAME), **properties)
            except (ImportError, ValueError) as error:
                raise InvalidArgumentError(
                    "there is no such catalog", setting="catalog", reason=error
                ) from error
            catalog.create_namespace_if_not_exists(self._levels)
            self._connected = catalog
        return self._connected

    def _prepare(self) -> None:
        """Make the SQLite file, for its owner alone: SQLite would let others read it."""
        path = self._folder / OWN_NAME
        with translated("making the catalog", path):
            self._disk.make_folder(self._folder)
            with contextlib.suppress(FileExistsError):
                self._disk.open(path, Mode.CREATE).close()

    def load(self, name: str) -> Any:
        """Give a table, or None."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._connection().load_table((*self._levels, name))
        except NoSuchTableError:
            return None

    def create(
        self, name: str, schema: Any, spec: Any, location: str, properties: Mapping[str, str]
    ) -> Any:
        """Make a table."""
        return self._connection().create_table(
            (*self._levels, name),
            schema,
            location=location,
            partition_spec=spec,
            properties=dict(properties),
        )

    def drop(self, name: str) -> None:
        """Let the catalog forget a table, if it knows it; its files stay."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            self._connection().drop_table((*self._levels, name))
        except NoSuchTableError:
            return

    def names(self) -> list[str]:
        """Give the names of the tables in our namespace."""
        return sorted(found[-1] for found in self._connection().list_tables(self._levels))

    def close(self) -> None:
        """Let go of the connection; the next call makes a new one."""
        connected, self._connected = self._connected, None
        if connected is not None and hasattr(connected, "close"):
            connected.close()
