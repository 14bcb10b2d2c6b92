"""The PostgreSQL server of the tests does what a test asks of it, and pyiceberg works over it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import OperationalError

from tests.foreign import tables
from tests.foreign.postgres import PostgresServer


def test_a_table_survives_a_server_that_is_stopped_or_killed(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """The catalog is another one each time: no connection is left from before."""
    table = tables.create(_catalog(tmp_path, postgres_server), tables.RAW)
    for end in (postgres_server.stop, postgres_server.kill):
        end()
        postgres_server.start()
        found = _catalog(tmp_path, postgres_server).load_table(tables.NAME)
        assert found.metadata_location == table.metadata_location


def test_a_server_that_is_down_refuses_at_once(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """Both an open catalog and a new one fail; the open one is well again with the server."""
    catalog = _catalog(tmp_path, postgres_server)
    postgres_server.kill()
    assert not postgres_server.running
    with pytest.raises(OperationalError):
        catalog.list_namespaces()
    with pytest.raises(OperationalError):
        _catalog(tmp_path, postgres_server)
    postgres_server.start()
    assert catalog.list_namespaces() == [tables.NAME[:1]]


def test_a_killed_server_leaves_no_process(postgres_server: PostgresServer) -> None:
    """Neither the first process nor those it started."""
    group = [postgres_server.pid, *postgres_server.children()]
    assert len(group) > 1
    postgres_server.kill()
    assert not any(_alive(process) for process in group)


def _catalog(folder: Path, server: PostgresServer) -> SqlCatalog:
    catalog = SqlCatalog("lakebed", uri=server.uri, warehouse=f"file://{folder}")
    catalog.create_namespace_if_not_exists(tables.NAME[:1])
    return catalog


def _alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return os.path.exists(status) and status.read_text().rpartition(")")[2].split()[0] != "Z"
