"""The audit outside of the log: a file of JSON lines. And tokens that stand where names belong."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import lakebed
from lakebed import Log, ServeConfig
from lakebed.client.config import ClientConfig
from lakebed.engine.audit import AUDIT_TOPIC
from lakebed.errors import AccessDeniedError, InvalidArgumentError, InvalidNameError
from lakebed.serve.guard import Action, Guard, Need, Principal
from lakebed.serve.logs import mask, mask_tokens
from lakebed.serve.server import Server
from lakebed.types import GroupName, PrincipalName, ProducerName, RoleName, TopicName
from tests.engine.support import rows
from tests.serve.inside import flush_audit

READ = Need(Action.READ, "topic")
ROOT = Principal("root", "t", "peer")
TOKEN = "lkb_0123456789abcdef_" + "Ab-_" * 10 + "xyz"
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_record_of_the_audit_is_in_the_file_too(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Log.open(tmp_path / "log") as log:
        guard = Guard(log, ServeConfig(audit_file=str(path)))
        guard.did(ROOT, "create_topic", ["orders"])
        guard.did(ROOT, "delete_topic", ["a\nb"], outcome="failed", reason="é")
        assert guard.flush()
        topic, file = rows(log, AUDIT_TOPIC), lines(path)
        guard.close()
    assert [record["call"] for record in topic] == [record["call"] for record in file]
    assert file[0] == {
        "time": file[0]["time"],
        "principal": "root",
        "token": "t",
        "peer": "peer",
        "call": "create_topic",
        "names": ["orders"],
        "outcome": "done",
        "reason": "",
    }
    assert file[1]["names"] == ["a\nb"]
    assert str(file[0]["time"]).endswith("+00:00")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_may_be_the_only_audit(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"call": "before"}\n')
    with Log.open(tmp_path / "log") as log:
        guard = Guard(log, ServeConfig(audit=False, audit_file=str(path)))
        guard.did(ROOT, "create_topic", ["orders"])
        assert guard.flush()
        guard.close()
        assert log.topics() == []
    assert [record["call"] for record in lines(path)] == ["before", "create_topic"]


@pytest.mark.parametrize("asked", [False, True])
def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path, asked: bool) -> None:
    path = tmp_path / "audit.jsonl"
    with Log.open(tmp_path / "log") as log:
        guard = Guard(log, ServeConfig(audit_file=str(path)))
        for number in range(3):
            guard.did(ROOT, f"call-{number}")
            assert guard.flush()
            path.rename(tmp_path / f"audit.{number}")
            if asked and guard.audit_file is not None:
                guard.audit_file.reopen()
        guard.close()
    for number in range(3):
        (record,) = lines(tmp_path / f"audit.{number}")
        assert record["call"] == f"call-{number}"


def test_what_the_file_cannot_take_is_counted_and_the_topic_has_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "folder" / "audit.jsonl"
    path.parent.mkdir()
    with Log.open(tmp_path / "log") as log:
        config = ServeConfig(port=0, http_port=-1, audit_file=str(path))
        guard = Guard(log, config)
        path.unlink()
        path.parent.rmdir()
        with caplog.at_level(logging.WARNING, "lakebed.serve"):
            guard.did(ROOT, "first")
            assert guard.flush()
        assert guard.audit_file is not None
        assert (guard.audit_file.lost, guard.audit_lost) == (1, 0)
        assert "the file of the audit cannot be written" in caplog.text
        path.parent.mkdir()
        guard.did(ROOT, "second")
        assert guard.flush()
        assert [record["call"] for record in rows(log, AUDIT_TOPIC)] == ["first", "second"]
        guard.close()
    assert [record["call"] for record in lines(path)] == ["second"]


def _link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("prepare", [Path.mkdir, _link])
def test_a_file_that_cannot_be_written_is_refused_at_the_start(
    tmp_path: Path, prepare: Callable[[Path], None]
) -> None:
    path = tmp_path / "audit.jsonl"
    prepare(path)
    with Log.open(tmp_path / "log") as log, pytest.raises(InvalidArgumentError) as caught:
        Guard(log, ServeConfig(audit_file=str(path)))
    assert caught.value.facts["audit_file"] == str(path)
    assert not (tmp_path / "elsewhere").exists()


def test_losses_are_metrics(tmp_path: Path) -> None:
    config = ServeConfig(port=0, http_port=0, audit_file=str(tmp_path / "audit.jsonl"))
    with Server(Log.open(tmp_path / "log"), config) as server:
        from tests.serve.over_http import Served

        served = Served(server.log, server, None)  # type: ignore[arg-type]
        text = served.send("GET", "/metrics").body.decode()
    assert "\nlakebed_audit_lost_total 0.0\n" in text
    assert "\nlakebed_audit_file_lost_total 0.0\n" in text


# Tokens in the wrong place


def test_a_token_where_a_topic_belongs_is_masked_in_audit_and_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    config = ServeConfig(port=0, http_port=-1, audit_file=str(path))
    with Server(Log.open(tmp_path / "log"), config) as server:
        root = str(server.log.access.create_token("root", roles=["admin"]))
        ann = str(server.log.access.create_token("ann"))
        with lakebed.open(server.url, ClientConfig(token=ann)) as log:
            for topic in (root, JWT):
                with pytest.raises(AccessDeniedError):
                    log.read(topic)
        flush_audit(server)
        kept = json.dumps(rows(server.log, AUDIT_TOPIC), default=str) + path.read_text()
    assert root not in kept and root[21:] not in kept and JWT not in kept
    assert "lkb_***" in kept and "eyJ***" in kept


@pytest.mark.parametrize("kind", [TopicName, GroupName, PrincipalName, ProducerName, RoleName])
def test_a_token_is_no_name(kind: Callable[[str], str]) -> None:
    for text in (TOKEN, f"x.{TOKEN}", f"{TOKEN}-x"):
        with pytest.raises(InvalidNameError, match="is a token") as caught:
            kind(text)
        assert TOKEN not in str(caught.value)
    assert kind("lkb_orders") == "lkb_orders"


def test_what_is_masked() -> None:
    assert mask_tokens(f"topic={TOKEN} x") == "topic=lkb_*** x"
    assert mask_tokens("topic=lkb_orders") == "topic=lkb_orders"
    assert mask(f"a {JWT} b") == mask_tokens(f"a {JWT} b") == "a eyJ*** b"
    assert mask_tokens(f"'{JWT[:45]}") == "'eyJ***"
    assert os.sep not in mask_tokens(TOKEN)
