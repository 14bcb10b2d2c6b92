"""Tasks reach the object store by what the log says, or else by their environment."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lakebed.host.table_files import TableFiles
from lakebed.spark.stores import table_files

GIVEN = {"s3.endpoint": "http://127.0.0.1:1"}


def test_a_served_log_does_not_say_and_the_environment_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKEBED_LAKE_STORE", "s3://bucket/lake")
    monkeypatch.setenv("LAKEBED_LAKE_STORE_OPTIONS", "{ 's3.endpoint' = 'http://127.0.0.1:2' }")
    told = table_files(SimpleNamespace(store_options=GIVEN))
    untold = table_files(SimpleNamespace(store_options={}))
    assert vars(told) == vars(TableFiles(GIVEN))
    assert vars(untold) == vars(TableFiles({"s3.endpoint": "http://127.0.0.1:2"}))


def test_without_either_the_library_finds_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKEBED_LAKE_STORE_OPTIONS", raising=False)
    assert vars(table_files(SimpleNamespace(store_options={}))) == vars(TableFiles({}))
