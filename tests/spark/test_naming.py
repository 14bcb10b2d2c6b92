"""Which log an application means: what it said last, and what its folder is served as now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lakebed
from lakebed.spark import naming
from lakebed.spark.naming import (
    FILE_VARIABLE,
    address_of,
    application_log,
    prepare,
    set_application_log,
)
from lakebed.spark.serving import LOG_VARIABLE, url_of


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application that has not started Spark yet."""
    monkeypatch.setattr(naming, "_own", [])
    monkeypatch.setenv(FILE_VARIABLE, "/of/another/application")
    monkeypatch.setenv(LOG_VARIABLE, "lakebed://environment:1")


@pytest.mark.usefixtures("application")
def test_the_log_that_was_named_last_is_meant() -> None:
    set_application_log(
        "lakebed://nobody:1"
    )  # there is no Spark of this application that could be told
    assert application_log() == "lakebed://environment:1"
    prepare()
    file = Path(os.environ[FILE_VARIABLE])
    prepare()
    assert os.environ[FILE_VARIABLE] == str(file)
    assert application_log() == "lakebed://environment:1"
    for place in ("lakebed://first:1", "/data/log"):
        set_application_log(place)
        assert application_log() == place
    set_application_log("")
    assert application_log() == "lakebed://environment:1"
    naming._remove(file, os.getpid() + 1)
    assert file.exists()
    assert file.parent.stat().st_mode & 0o077 == 0, "nobody else may say which log is meant"
    naming._remove(file, os.getpid())
    assert not file.parent.exists()


def test_a_folder_keeps_its_name_and_an_open_log_has_a_url(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        assert address_of(log) == url_of(log)
        assert address_of(url_of(log)) == url_of(log)
        assert address_of(tmp_path / "log") == str(tmp_path / "log")
