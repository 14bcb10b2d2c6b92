"""The HTTP server: what it listens on, whom it lets in, how it answers, how it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebed import Log, ServeConfig, errors, limits
from lakebed.engine.audit import AUDIT_TOPIC
from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.host import Fault, FaultyDisk, OsDisk
from lakebed.serve import http_protocol
from lakebed.serve.guard import Guard
from lakebed.serve.http import start_http
from lakebed.serve.http_errors import STATUSES, status_of
from lakebed.serve.meters import Meters
from lakebed.serve.quotas import Quotas
from lakebed.serve.server import Server
from tests.engine.support import in_threads, inner, rows
from tests.serve.certificates import Authority
from tests.serve.over_http import Served, served
from tests.serve.test_meters import parsed
from tests.waiting import until


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "log") as server:
        yield server


def http_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("lakebed-http")]


def streams(here: Served) -> float:
    return parsed(here.meters.render(inner(here.log)))["lakebed_open_streams", frozenset()]


# What it cannot listen on


def refused(log: Log, **settings: Any) -> InvalidArgumentError:
    config = ServeConfig(**{"http_port": 0, "port": 0, **settings})
    guard = Guard(inner(log), config)
    with pytest.raises(InvalidArgumentError) as caught:
        start_http(inner(log), guard, Quotas(config), Meters(), config, ready=lambda: (True, ""))
    guard.close()
    assert http_threads() == []
    return caught.value


def test_a_port_in_use_is_refused_and_leaves_nothing_running(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refused(log, http_port=port)
        assert error.facts["http_port"] == port
        assert error.facts["why"] == "Address already in use"


def test_addresses_that_are_not_ours_and_no_port_are_refused(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        assert refused(log, host="192.0.2.1", tls_cert="", insecure=True)
        assert refused(log, host="no such host", insecure=True)
        assert refused(log, http_port=-1)


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    pair, other = Authority(tmp_path).sign("localhost"), Authority(tmp_path, "b").sign("other")
    with Log.open(tmp_path / "log") as log:
        missing = refused(log, tls_cert=str(tmp_path / "none"), tls_key=pair.key)
        assert missing.facts["tls_cert"] == str(tmp_path / "none")
        assert refused(log, tls_cert=pair.key, tls_key=pair.key)
        assert refused(log, tls_cert=pair.certificate, tls_key=other.key)
        assert refused(
            log, tls_cert=pair.certificate, tls_key=pair.key, tls_client_ca=str(tmp_path / "none")
        )


# What it answers to what is no call


def test_paths_and_methods_that_there_are_none_of(here: Served) -> None:
    for path in (
        "/",
        "/v1",
        "/v1/",
        "/v1/topics/",
        "/v1/topics/a/b/c",
        "/v1/topics/a%2Fb",
        "/docs",
    ):
        answer = here.get(path)
        assert (answer.status, answer.code) == (404, "invalid_argument"), path
    for path, allowed in (
        ("/v1/topics", "GET, POST"),
        ("/v1/topics/a", "DELETE, GET, PATCH"),
        ("/v1/topics/a/records", "GET, POST"),
        ("/v1/groups/g/offsets", "PUT"),
        ("/health/live", "GET"),
    ):
        for method in ("TRACE", "OPTIONS", "HEAD", "BREW"):
            answer = here.send(method, path)
            assert (answer.status, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET /" + b"a" * 20_000,
    ],
)
def test_what_is_no_http_gets_a_400_and_harms_nobody(here: Served, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", here.port), timeout=600) as client:
        client.sendall(request_bytes)
        answer = client.makefile("rb").readline()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert here.get("/health/live").status == 200


def test_every_answer_forbids_guessing_and_keeping_and_says_nothing_of_the_server(
    here: Served,
) -> None:
    for answer in (
        here.get("/health/live"),
        here.get("/nowhere"),
        here.get("/v1/topics"),
        here.get("/v1/topics/none"),
        here.get("/openapi.json"),
        here.send("GET", "/v1/topics", headers={"Origin": "https://example.com"}),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_every_error_has_a_status_that_fits_its_kind() -> None:
    def below(kind: type[LakebedError]) -> Iterator[type[LakebedError]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    for kind in below(errors.LakebedError):
        status = status_of(kind("why"))
        if issubclass(kind, errors.StopError | errors.UnknownOutcomeError):
            assert status == 500, kind
        if kind.retriable:
            assert status in (404, 409, 421, 429, 503), kind
    assert set(STATUSES.values()) <= {400, 401, 403, 404, 409, 410, 413, 416, 421, 429, 500, 503}


def test_a_failure_of_the_server_itself_is_told_without_its_inside(
    here: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> list[str]:
        raise ZeroDivisionError("the inside")

    monkeypatch.setattr(here.log, "topics", fail)
    with caplog.at_level(logging.ERROR, "lakebed.serve"):
        answer = here.get("/v1/topics")
    assert (answer.status, answer.code) == (500, "lakebed")
    assert b"inside" not in answer.body
    assert "the inside" in caplog.text


# Bodies


def records(size: int) -> bytes:
    return json.dumps({"records": [{"value": "x" * size}]}).encode()


JSON = {"Content-Type": "application/json"}


def test_bodies_over_the_limit_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    most = 64 * limits.KIB
    with served(tmp_path / "log", request_bytes_max=most) as here:
        here.log.create_topic("a")
        path = "/v1/topics/a/records"
        fits = records(most - len(records(0)))
        assert len(fits) == most
        assert here.send("POST", path, fits, JSON).status == 200
        pieces = [fits[:1000], fits[1000:]]
        assert here.send("POST", path, iter(pieces), JSON, chunked=True).status == 200
        too_large = fits + b" "
        for answer in (
            here.send("POST", path, too_large, JSON),
            here.send("POST", path, iter([fits, b" "]), JSON, chunked=True),
        ):
            assert (answer.status, answer.code) == (413, "invalid_argument")
            assert answer.json["facts"] == {"bytes_max": most}
            assert answer.headers["connection"] == "close"
        assert here.log.offsets("a") == {0: (0, 2)}


def test_a_body_that_is_announced_too_large_is_not_waited_for(tmp_path: Path) -> None:
    with served(tmp_path / "log") as here:
        here.log.create_topic("a")
        head = (
            "POST /v1/topics/a/records HTTP/1.1\r\nHost: [::1]\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {limits.JSON_BYTES_MAX + 1}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", here.port), timeout=600) as client:
            client.sendall(head.encode())
            assert client.makefile("rb").readline().startswith(b"HTTP/1.1 413 ")


def test_a_body_that_breaks_off_writes_nothing(here: Served) -> None:
    here.log.create_topic("a")
    body = records(10)
    head = (
        "POST /v1/topics/a/records HTTP/1.1\r\nHost: [::1]\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body) + 1}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", here.port), timeout=600) as client:
        client.sendall(head.encode() + body)
    label = frozenset({("call", "http.put"), ("outcome", "cancelled")})
    until(lambda: ("lakebed_requests_total", label) in parsed(here.meters.render(inner(here.log))))
    assert here.log.offsets("a") == {0: (0, 0)}


def test_bodies_that_do_not_say_json_are_refused(here: Served) -> None:
    for given in ("", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
        headers = {"Content-Type": given} if given else {}
        answer = here.send("POST", "/v1/topics", b'{"topic": "a"}', headers)
        assert (answer.status, answer.code) == (415, "invalid_argument")
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert here.send("POST", "/v1/topics", b'{"topic": "a"}', headers).status == 201


# Who may


def test_without_a_valid_token_nothing_is_told_but_health(here: Served) -> None:
    token = here.log.access.create_token("ann", roles=["admin"])
    paths = ("/v1/topics", "/v1/topics/none", "/v1/topics/-", "/metrics", "/v1/groups?x=1")
    for path in paths:
        for given in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {token}"}):
            answer = here.send("GET", path, headers=given)
            assert (answer.status, answer.code) == (401, "unauthenticated"), (path, given)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert token.encode() not in answer.body
    for path in ("/health/live", "/health/ready", "/openapi.json"):
        assert here.get(path).status == 200
    answer = here.send("GET", "/metrics", headers={"Authorization": f"bearer {token}"})
    assert answer.status == 200


def test_roles_decide_over_each_call_and_lists_show_what_may_be_seen(here: Served) -> None:
    here.log.create_topic("a")
    here.log.create_topic("b")
    here.log.commit_offsets("g", {"a": {0: 0}})
    here.log.access.create_token("root", roles=["admin"])
    here.log.access.allow("team", "read", "a")
    here.token = here.log.access.create_token("ann", roles=["team"])
    assert here.get("/v1/topics").json == {"topics": ["a"]}
    assert here.get("/v1/groups").json == {"groups": []}
    assert here.get("/v1/topics/a/records").status == 200
    commit = {"offsets": [{"topic": "a", "partition": 0, "offset": 0}]}
    for method, path, body in (
        ("GET", "/metrics", None),
        ("GET", "/v1/topics/b", None),
        ("GET", "/v1/topics/b/records", None),
        ("GET", "/v1/topics/none", None),
        ("POST", "/v1/topics", {"topic": "c"}),
        ("PATCH", "/v1/topics/a", {}),
        ("DELETE", "/v1/topics/a", None),
        ("POST", "/v1/topics/a/records", {"records": [{"value": "x"}]}),
        ("GET", "/v1/groups/g", None),
        ("PUT", "/v1/groups/g/offsets", commit),
        ("DELETE", "/v1/groups/g", None),
    ):
        answer = here.call(method, path, body)
        assert (answer.status, answer.code) == (403, "access_denied"), path
    here.log.access.allow("team", "group", "g")
    assert here.call("PUT", "/v1/groups/g/offsets", commit).status == 204
    commit["offsets"][0]["topic"] = "b"
    assert here.call("PUT", "/v1/groups/g/offsets", commit).status == 403
    assert here.log.topics() == ["a", "b"]


def acts(here: Served) -> list[tuple[str, ...]]:
    try:
        found = rows(here.log, AUDIT_TOPIC)
    except LakebedError:
        return []  # it is made with the first record
    return [
        (each["principal"], each["call"], *each["names"], each["outcome"], each["reason"])
        for each in found
    ]


def test_administrative_acts_are_on_record_also_those_that_failed(here: Served) -> None:
    here.token = here.log.access.create_token("root", roles=["admin"])
    assert here.call("POST", "/v1/topics", {"topic": "a"}).status == 201
    assert here.call("POST", "/v1/topics", {"topic": "a"}).status == 409
    assert here.call("PATCH", "/v1/topics/none", {}).status == 404
    assert here.get("/metrics").status == 200
    assert here.call("DELETE", "/v1/groups/none").status == 404  # as over Flight: no such act
    assert here.call("DELETE", "/v1/topics/a").status == 204

    expected = [
        ("root", "create_topic", "a", "done", ""),
        ("root", "create_topic", "a", "failed", "topic_exists"),
        ("root", "alter_topic", "none", "failed", "topic_not_found"),
        ("root", "delete_topic", "a", "done", ""),
    ]
    until(lambda: len(acts(here)) >= len(expected))
    assert acts(here) == expected


def test_a_refused_act_is_on_record_once(here: Served) -> None:
    here.log.access.create_token("root", roles=["admin"])
    here.token = here.log.access.create_token("eyes", roles=["reader"])
    assert here.call("POST", "/v1/topics", {"topic": "a"}).status == 403
    here.token = here.log.access.create_token("boss", roles=["admin"])
    assert here.call("POST", "/v1/topics", {"topic": "a"}).status == 201
    until(lambda: len(acts(here)) >= 2)
    assert [(who, outcome) for who, *_, outcome, _ in acts(here)] == [
        ("eyes", "denied"),
        ("boss", "done"),
    ]


# Pages of other places


def test_an_open_log_is_served_under_its_own_names_only(here: Served) -> None:
    for host in ("localhost", "LocalHost:4748", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:80"):
        assert here.send("GET", "/v1/topics", headers={"Host": host}).status == 200, host
    for host in ("evil.example", "localhost.evil.example:4748", "", "10.0.0.1", "[::2]", "::1:9:x"):
        for method, path in (
            ("GET", "/v1/topics"),
            ("GET", "/metrics"),
            ("DELETE", "/v1/topics/a"),
        ):
            answer = here.send(method, path, headers={"Host": host})
            assert (answer.status, answer.code) == (400, "invalid_argument"), host
            assert "names of its host" in answer.json["message"]
        assert here.send("GET", "/health/live", headers={"Host": host}).status == 200
    here.token = here.log.access.create_token("root", roles=["admin"])
    assert here.send("GET", "/v1/topics", headers={"Host": "lake.example"}).status == 200


def test_a_page_of_another_place_changes_nothing(here: Served) -> None:
    here.log.create_topic("a")

    def status(method: str, origin: str, **more: str) -> int:
        return here.send(method, "/v1/topics/a", headers={"Origin": origin, **more}).status

    evil = "http://evil.example"
    for with_token in (False, True):
        if with_token:
            here.token = here.log.access.create_token("root", roles=["admin"])
        for origin in (evil, "null", "", "http://localhost:1", f"{here.url}.evil.example"):
            assert status("DELETE", origin) == 400, origin
        assert status("DELETE", evil, Host="evil.example") == (204 if with_token else 400)
        assert status("GET", evil) == (404 if with_token else 200)
    here.log.create_topic("a")
    assert status("DELETE", here.url) == 204


def test_a_server_for_everybody_has_any_name(tmp_path: Path) -> None:
    with served(tmp_path / "log", host="0.0.0.0", insecure=True) as here:
        here.log.create_topic("a")
        headers = {"Host": "lake.example"}
        assert here.send("GET", "/v1/topics", headers=headers).status == 200
        rebound = headers | {"Origin": "http://lake.example"}
        assert here.send("DELETE", "/v1/topics/a", headers=rebound).status == 400
        assert here.send("DELETE", "/v1/topics/a", headers=headers).status == 204


def test_who_does_too_much_is_told_when_to_come_back(tmp_path: Path) -> None:
    with served(tmp_path / "log", principal_requests_per_second=1) as here:
        answers = [here.get("/v1/topics") for _ in range(20)]
        last = next(answer for answer in answers if answer.status != 200)
        assert (last.status, last.code) == (429, "quota_exceeded")
        assert int(last.headers["retry-after"]) >= 1
        assert here.get("/health/ready").status == 200


# TLS


def test_over_tls_strangers_are_refused_and_certificates_name_their_principal(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair, ann = authority.sign("localhost"), authority.sign("ann", host=None)
    stranger = Authority(tmp_path, "strange").sign("eve")
    client = ssl.create_default_context(cafile=authority.certificate)
    with served(
        tmp_path / "log",
        tls=client,
        tls_cert=pair.certificate,
        tls_key=pair.key,
        tls_client_ca=authority.certificate,
    ) as here:
        here.log.access.create_token("root", roles=["admin"])
        here.log.access.grant("ann", "reader")
        here.log.create_topic("a")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            here.get("/health/live")
        client.load_cert_chain(*stranger)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            here.get("/health/live")
        client.load_cert_chain(*ann)
        assert here.get("/v1/topics").json == {"topics": ["a"]}
        assert here.call("DELETE", "/v1/topics/a").json["facts"]["principal"] == "ann"
        with socket.create_connection(("127.0.0.1", here.port), timeout=600) as plain:
            plain.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" not in plain.makefile("rb").read()


def test_tls_without_client_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("localhost")
    client = ssl.create_default_context(cafile=authority.certificate)
    with served(tmp_path / "log", tls=client, tls_cert=pair.certificate, tls_key=pair.key) as here:
        assert here.get("/v1/topics").json == {"topics": []}


# Health


def test_readiness_is_what_the_server_says(tmp_path: Path) -> None:
    state: list[Any] = [(False, "recovering: 3 of 10")]

    def ready() -> tuple[bool, str]:
        if isinstance(state[0], Exception):
            raise state[0]
        found: tuple[bool, str] = state[0]
        return found

    with served(tmp_path / "log", ready=ready) as here:
        answer = here.get("/health/ready")
        assert (answer.status, answer.json["reason"]) == (503, "recovering: 3 of 10")
        state[0] = errors.ClosedError("the log is closed")
        answer = here.get("/health/ready")
        assert (answer.status, answer.json["reason"]) == (503, "the log is closed")
        state[0] = (True, "")
        assert here.get("/health/ready").json == {"ready": True, "reason": ""}


def test_a_poisoned_log_lives_and_is_not_ready(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    log = Log.open(tmp_path / "log", disk=disk)
    with Server(log, ServeConfig(port=0, http_port=0)) as server:
        here = Served(log, server, Meters())
        assert here.get("/health/ready").json == {"ready": True, "reason": ""}
        log.create_topic("a")
        disk.fault = Fault("sync_data", disk.calls["sync_data"] + 1, errno.EIO, lasting=True)
        answer = here.call("POST", "/v1/topics/a/records", {"records": [{"value": "x"}]})
        assert answer.status == 500
        assert answer.code in ("unknown_outcome", "poisoned", "device_error")
        ready = here.get("/health/ready")
        assert (ready.status, ready.json["ready"]) == (503, False)
        assert ready.json["reason"] == "the log has stopped; see the server's log"
        assert here.get("/health/live").status == 200
        found = parsed(here.get("/metrics").body.decode())
        assert found["lakebed_wal_poisoned", frozenset()] == 1
        disk.fault = None
    assert http_threads() == []


# Many, slow and gone


def test_waiting_requests_hold_up_nobody_and_get_what_comes(here: Served) -> None:
    here.log.create_topic("a")
    waiting = 40
    answers: list[Any] = []

    def wait() -> None:
        answers.append(here.get("/v1/topics/a/records?offset=latest&wait_ms=60000").json)

    threads = [threading.Thread(target=wait) for _ in range(waiting)]
    for thread in threads:
        thread.start()
    until(lambda: streams(here) == waiting)
    assert here.get("/v1/topics").json == {"topics": ["a"]}
    here.log.append("a", b"at last")
    for thread in threads:
        thread.join(600)
    assert [each["records"][0]["value"] for each in answers] == ["at last"] * waiting
    assert {each["next_offset"] for each in answers} == {1}
    assert streams(here) == 0


def test_too_many_waiting_requests_are_refused(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_WAITS_MAX", 1)
    here.log.create_topic("a")
    path = "/v1/topics/a/records?wait_ms=60000"
    thread = threading.Thread(target=here.get, args=(path,))
    thread.start()
    until(lambda: streams(here) == 1)
    answer = here.get(path)
    assert (answer.status, answer.code) == (429, "quota_exceeded")
    assert here.get("/v1/topics/a/records").status == 200
    here.log.append("a", b"x")
    thread.join(600)
    assert not thread.is_alive()


def test_too_many_requests_at_a_time_are_refused(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUESTS_MAX", 0)
    answer = here.get("/v1/topics")
    assert (answer.status, answer.code) == (429, "quota_exceeded")
    assert answer.headers["retry-after"] == "1"


def test_a_waiting_client_that_goes_is_forgotten(here: Served) -> None:
    here.log.create_topic("a")
    with socket.create_connection(("127.0.0.1", here.port)) as client:
        client.sendall(
            b"GET /v1/topics/a/records?wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        until(lambda: streams(here) == 1)
    until(lambda: streams(here) == 0)


def test_a_connection_that_says_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "_HEAD_SECONDS", 0.05)
    with served(tmp_path / "log") as here:
        address = ("127.0.0.1", here.port)
        for begun in (b"", b"GET /health/live HTTP/1.1\r\nHo"):
            with socket.create_connection(address, timeout=600) as client:
                client.sendall(begun)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""


def test_a_connection_serves_many_requests(here: Served) -> None:
    with contextlib.closing(here.connection()) as connection:
        for _ in range(5):
            connection.request("GET", "/v1/topics")
            assert connection.getresponse().read() == b'{"topics":[]}'


# The end


def test_stopping_answers_who_waits_and_is_done_once(tmp_path: Path) -> None:
    with served(tmp_path / "log") as here:
        here.log.create_topic("a")
        answers: list[Any] = []
        thread = threading.Thread(
            target=lambda: answers.append(here.get("/v1/topics/a/records?wait_ms=60000"))
        )
        thread.start()
        until(lambda: streams(here) == 1)
        here.stop(20)
        thread.join(600)
        assert [(each.status, each.json["records"]) for each in answers] == [(200, [])]
        assert http_threads() == []
        here.stop(20)
        with pytest.raises(ConnectionRefusedError):
            here.get("/health/live")


def test_stopping_cuts_off_what_does_not_end(tmp_path: Path) -> None:
    with served(tmp_path / "log") as here:
        here.log.create_topic("a")
        with socket.create_connection(("127.0.0.1", here.port)) as client:
            client.sendall(
                b"POST /v1/topics/a/records HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            label = frozenset[tuple[str, str]]()
            received = "lakebed_received_bytes_total"
            until(lambda: parsed(here.meters.render(inner(here.log)))[received, label] == 1)
            here.stop(0.1)
        assert http_threads() == []


def test_calls_are_counted(here: Served) -> None:
    assert in_threads(4, lambda _: here.get("/v1/topics").status) == [200] * 4
    here.get("/v1/topics/none")
    here.get("/v1/topics/-")
    found = parsed(here.get("/metrics").body.decode())

    def count(call: str, outcome: str) -> float:
        labels = frozenset({("call", f"http.{call}"), ("outcome", outcome)})
        return found["lakebed_requests_total", labels]

    assert count("topics", "ok") == 4
    assert count("describe_topic", "topic_not_found") == 1
    assert count("describe_topic", "invalid_argument") == 1
    assert found["lakebed_sent_bytes_total", frozenset()] > 100
    assert re.fullmatch(r"text/plain; version=0\.0\.4; charset=utf-8", _type(here))


def _type(here: Served) -> str:
    return here.get("/metrics").headers["content-type"]
