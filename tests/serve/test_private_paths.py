"""Errors that are sent to callers name files below the log's folder, and not where that is."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from lakebed.errors import LakebedError
from lakebed.wire import private_paths
from lakebed.wire.private_paths import hide_folders, without_paths
from tests.serve.http_raw import call
from tests.serve.support import ServerProcess
from tests.waiting import until


def test_an_error_of_the_disk_does_not_tell_where_the_log_is(tmp_path: Path) -> None:
    """Neither over HTTP nor over Flight; the server's log lines do."""
    server = ServerProcess(tmp_path / "log", http_port=0)
    with contextlib.ExitStack() as stack:
        stack.push(server)
        server.start(failpoints="wal.group.written=error@3")
        assert call(server, "POST", "/v1/topics", {"topic": "a"})[0] == 201
        write = {"records": [{"value": "x"}]}
        until(lambda: call(server, "POST", "/v1/topics/a/records", write)[0] == 500)
        for _ in range(2):  # poisoned from then on, whichever group it was
            status, body = call(server, "POST", "/v1/topics/a/records", write)
            assert status == 500
            assert b"path=wal/" in body
            assert str(tmp_path).encode() not in body
        with server.open(retry_ms=100) as log, pytest.raises(LakebedError) as caught:
            log.append("a", b"x")
        assert "path=wal/" in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
        until(lambda: str(tmp_path / "log" / "wal") in server.said)


def test_paths_below_a_hidden_folder_are_cut_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names that only begin as the folder does are another folder's."""
    monkeypatch.setattr(private_paths, "_folders", set())
    monkeypatch.setattr(private_paths, "_pattern", None)
    assert without_paths("/srv/log/wal/1") == "/srv/log/wal/1"
    hide_folders("/srv/log", "/srv/log/backups")
    assert without_paths("path=/srv/log/wal/1 in '/srv/log'") == "path=wal/1 in ''"
    assert without_paths("/srv/log/backups/b") == "b"
    assert without_paths("/srv/log2/a /srv/log.old/b /v1/topics") == (
        "/srv/log2/a /srv/log.old/b /v1/topics"
    )
    hide_folders("/")
    assert without_paths("/etc/x") == "/etc/x"
