"""The access log: a line for each request, if it is set, and so many in a second."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import pytest
from websockets.sync.client import connect

import lakebed
from lakebed import Log, ServeConfig
from lakebed.client.config import ClientConfig
from lakebed.errors import AccessDeniedError
from lakebed.serve.access_log import AccessLog, CallFacts
from lakebed.serve.guard import Principal
from lakebed.serve.server import Server
from tests.serve.over_http import Served
from tests.waiting import until


def lines(caplog: pytest.LogCaptureFixture) -> dict[str, dict[str, object]]:
    """The last line of each call."""
    records = [vars(record) for record in caplog.records if record.name == "lakebed.access"]
    names = ("principal", "names", "bytes", "outcome", "ms")
    return {
        str(record["call"]): {name: record[name] for name in names}
        for record in records
        if "call" in record
    }


def use(server: Server) -> None:
    """Make a request of each kind."""
    token = str(server.log.access.create_token("ann", roles=["writer", "reader"]))
    server.log.create_topic("orders")
    served = Served(server.log, server, None)  # type: ignore[arg-type]  # not looked at
    bearer = {"Authorization": f"Bearer {token}"}
    with lakebed.open(server.url, ClientConfig(token=token)) as log:
        log.append("orders", b"x" * 1000)
        assert log.read("orders").num_rows == 1
        with pytest.raises(AccessDeniedError):
            log.create_topic("more")
    assert served.send("GET", "/v1/topics/orders/records", None, bearer).status == 200
    url = f"ws://127.0.0.1:{server.http_port}/v1/topics/orders/writer"
    with connect(url, additional_headers=bearer) as socket:
        socket.send(json.dumps({"value": "y"}))
        socket.recv()


def test_every_request_of_a_known_caller_has_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServeConfig(port=0, http_port=0, access_log=True)
    with (
        caplog.at_level(logging.INFO, "lakebed.access"),
        Server(Log.open(tmp_path / "log"), config) as server,
    ):
        use(server)
        until(lambda: "http.writer" in lines(caplog))
    found = lines(caplog)
    assert {line["principal"] for line in found.values()} == {"ann"}
    assert found["read"]["names"] == found["http.writer"]["names"] == "orders"
    assert found["read"]["outcome"] == "ok"
    assert isinstance(found["read"]["bytes"], int) and found["read"]["bytes"] >= 1000
    assert (found["create_topic"]["names"], found["create_topic"]["outcome"]) == (
        *("more", "access_denied"),
    )
    by_http = [call for call in found if call.startswith("http.") and call != "http.writer"]
    assert [found[call]["names"] for call in by_http] == ["orders"]
    puts = [line for call, line in found.items() if call in ("put", "append")]
    assert [line["names"] for line in puts] == ["orders"]


def test_there_are_no_lines_unless_they_are_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServeConfig(port=0, http_port=0)
    with (
        caplog.at_level(logging.INFO, "lakebed.access"),
        Server(Log.open(tmp_path / "log"), config) as server,
    ):
        use(server)
    assert lines(caplog) == {}


def test_lines_are_bounded_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    principal = Principal("ann", "", "peer", facts=CallFacts())
    log = AccessLog(3)
    with caplog.at_level(logging.INFO, "lakebed.access"):
        for _ in range(10):
            log.request(principal, "read", "ok", 0.5)
        now += 1
        log.request(principal, "read", "ok", 0.5)
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["request"] * 3 + ["more requests were served: requests=7", "request"]


def test_names_are_few_and_hold_no_token() -> None:
    facts = CallFacts()
    token = "lkb_0123456789abcdef_" + "a" * 43
    facts.name([token, "x" * 1000, *(f"t{number}" for number in range(100))])
    facts.name(["last"])
    assert facts.names == ["lkb_***", "x" * 200, "t0", "t1", "t2"]
