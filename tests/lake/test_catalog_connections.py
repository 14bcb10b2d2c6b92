"""Connections to a catalog in SQLite are closed: also after a failure, also those of a table."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import dbapi2
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import LakeConfig, LogConfig
from lakebed.errors import CatalogUnavailableError
from lakebed.iceberg import sqlite_catalog


class Tracked(sqlite3.Connection):
    """A connection that is counted from when it is open until it is closed."""

    opened = 0
    open = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        Tracked.opened += 1
        Tracked.open += 1

    def close(self) -> None:
        super().close()
        Tracked.open -= 1


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Tracked]]:
    """Every connection that SQLAlchemy makes is one of these."""
    connect = dbapi2.connect
    monkeypatch.setattr(
        dbapi2, "connect", lambda *given, **named: connect(*given, factory=Tracked, **named)
    )
    Tracked.opened = Tracked.open = 0
    yield Tracked
    assert Tracked.opened, "nothing was connected to"


def config(**catalog: str) -> LogConfig:
    return LogConfig(lake=LakeConfig(catalog=catalog))


def test_a_closed_log_leaves_no_connection(tmp_path: Path, connections: type[Tracked]) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("orders")
        log.append("orders", b"2 coffees")
        log.checkpoint()
        log.lake.sync()
        log.derived.create("visits", pa.schema({"id": pa.int64()}), kind="append")
        assert log.derived.tables()
    assert connections.open == 0


@pytest.mark.parametrize("own", [True, False], ids=["own", "configured"])
def test_a_table_that_the_caller_changes_leaves_no_connection(
    tmp_path: Path, connections: type[Tracked], own: bool
) -> None:
    shared = {} if own else {"type": "sql", "uri": f"sqlite:///{tmp_path}/shared.db"}
    log = lakebed.Log.open(tmp_path / "log", config(**shared))
    with log:
        log.create_topic("orders")
        log.append("orders", b"2 coffees")
        log.checkpoint()
        table = log.lake.table("orders")
        snapshot = table.metadata.current_snapshot_id
        assert snapshot is not None
        table.manage_snapshots().create_tag(snapshot, "audit").commit()
    assert table.refresh().refs()["audit"].snapshot_id == snapshot
    assert connections.open == 0


def test_a_catalog_that_cannot_be_loaded_leaves_no_connection(
    tmp_path: Path, connections: type[Tracked]
) -> None:
    path = tmp_path / "catalog.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Exception, match="locked"):
            sqlite_catalog.load("mine", {"uri": f"sqlite:///{path}?timeout=0.01"})
    assert connections.open == 0


def test_a_log_whose_catalog_is_locked_leaves_no_connection(
    tmp_path: Path, connections: type[Tracked]
) -> None:
    path = tmp_path / "shared.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        uri = f"sqlite:///{path}?timeout=0.01"
        with lakebed.Log.open(tmp_path / "log", config(type="sql", uri=uri)) as log:
            log.create_topic("orders")
            log.append("orders", b"2 coffees")
            log.checkpoint()
            with pytest.raises(CatalogUnavailableError, match="locked"):
                log.lake.sync()
    assert connections.open == 0


def test_what_pyiceberg_is_configured_with_is_used_for_sqlite_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__WAREHOUSE", "file:///elsewhere")
    catalog = sqlite_catalog.load("mine", {"type": "sql", "uri": f"sqlite:///{tmp_path}/one.db"})
    assert isinstance(catalog, sqlite_catalog.SqliteCatalog)
    assert catalog.properties["warehouse"] == "file:///elsewhere"
