"""What `lakebed.open` returns: for a folder, for a URL, for a name that is neither."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import lakebed
import lakebed.aio
from lakebed import ServeConfig
from lakebed.client.log import RemoteLog
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import InvalidArgumentError, LockedError, NotALogError
from lakebed.serve.server import Server


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("localhost:4747", "lakebed://localhost:4747"),
        ("lakebed:/localhost:4747", "lakebed://localhost:4747"),
        ("lakebed+tls:host.example:1", "lakebed+tls://host.example:1"),
    ],
)
def test_an_address_is_not_made_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotALogError, match=f"did you mean {url.replace('+', '.')}"):
        lakebed.open(name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_may_be_called_like_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("localhost:4747")
    with lakebed.open("localhost:4747") as log:
        assert log.topics() == []


def test_a_log_that_this_process_has_open_is_said_to_be(tmp_path: Path) -> None:
    with lakebed.open(tmp_path), pytest.raises(LockedError, match="by this process itself"):
        lakebed.open(tmp_path)


def test_both_kinds_of_log_have_one_interface_and_nothing_of_the_other_kind(tmp_path: Path) -> None:
    embedded = EmbeddedLog.open(tmp_path)
    config = ServeConfig(port=0, http_port=-1)
    with Server(embedded, config) as server, lakebed.open(server.url) as served:
        assert isinstance(embedded, lakebed.Log)
        assert isinstance(served, lakebed.Log)
        assert not isinstance(served, EmbeddedLog)
        for name in ("audit", "config", "folder"):
            assert hasattr(embedded, name)
            assert not hasattr(served, name), name
        for name in ("log_id", "principal", "url"):
            assert hasattr(served, name)
            assert not hasattr(embedded, name), name


def test_asyncio_has_the_attributes_of_the_log_it_opened(tmp_path: Path) -> None:
    async def attributes(target: Path | str) -> list[str]:
        names = ("config", "folder", "log_id", "principal", "url")
        async with lakebed.aio.open(target) as log:
            return [name for name in names if hasattr(log, name)]

    with Server(EmbeddedLog.open(tmp_path / "served"), ServeConfig(port=0, http_port=-1)) as server:
        assert asyncio.run(attributes(server.url)) == ["log_id", "principal", "url"]
    assert asyncio.run(attributes(tmp_path / "embedded")) == ["config", "folder"]


def test_a_served_log_does_not_open_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"lakebed\.open\(url\)"):
        RemoteLog.open(tmp_path / "log")
    assert list(tmp_path.iterdir()) == []
