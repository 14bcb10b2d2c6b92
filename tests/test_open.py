"""What `lakebed.open` makes of a name that is neither a folder nor a URL."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lakebed
from lakebed.errors import LockedError, NotALogError


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
