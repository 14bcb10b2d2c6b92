"""pyiceberg's catalog in SQLite, without connections that stay open.

pyiceberg keeps a connection in a pool until the catalog is closed, and a table that it returned
opens another one when it is refreshed or changed. A connection that is left to the garbage
collector is a `ResourceWarning` from Python 3.13 on, and may hold a lock until then. Opening the
file takes well under a millisecond, so each call opens a connection and closes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.utils.config import Config, merge_config
from sqlalchemy import create_engine, select
from sqlalchemy.pool import NullPool


class SqliteCatalog(SqlCatalog):
    """A catalog in a SQLite file that holds no connection between two calls."""

    def __init__(self, name: str, **properties: str) -> None:
        try:
            super().__init__(name, **properties)
        finally:
            self.close()  # also after a failure: a locked catalog was connected to
        self.engine = create_engine(self.engine.url, echo=self.engine.echo, poolclass=NullPool)


def load(name: str, properties: Mapping[str, str]) -> Catalog:
    """Load a catalog as pyiceberg does, with its configuration files; SQLite without a pool."""
    if not _is_sqlite(properties):
        return load_catalog(name, **properties)
    configured: Any = Config().get_catalog_config(name) or {}
    merged = merge_config(configured, cast("dict[str, Any]", dict(properties)))
    return SqliteCatalog(name, **cast("dict[str, str]", merged))


def metadata_locations(catalog: Any, namespace: tuple[str, ...]) -> dict[str, str]:
    """Return the metadata location of each table in a namespace, by the table's name."""
    query = (
        select(IcebergTables.table_name, IcebergTables.metadata_location)
        .where(IcebergTables.catalog_name == catalog.name)
        .where(IcebergTables.table_namespace == ".".join(namespace))
    )
    with catalog.engine.connect() as connection:
        return {name: location or "" for name, location in connection.execute(query)}


def _is_sqlite(properties: Mapping[str, str]) -> bool:
    kind = properties.get("type", "sql").lower()
    custom = "py-catalog-impl" in properties
    return kind == "sql" and not custom and properties.get("uri", "").startswith("sqlite")
