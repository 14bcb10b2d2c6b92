"""Many HTTP connections, and those that cannot be: others are served, and the log stays short."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebed import limits
from lakebed.serve import refusals
from lakebed.serve.refusals import OncePerSecond
from tests.serve.certificates import Authority
from tests.serve.http_raw import (
    LIVE,
    call,
    connect,
    events,
    head,
    http_process,
    is_alive,
    is_closed,
    status,
)
from tests.serve.support import ServerProcess
from tests.waiting import until


def upgraded(server: ServerProcess, stack: contextlib.ExitStack) -> None:
    """Open a WebSocket and keep it."""
    client = stack.enter_context(connect(server))
    client.sendall(
        head(
            "GET",
            "/v1/topics/a/writer",
            Upgrade="websocket",
            Connection="Upgrade",
            Sec_WebSocket_Version=13,
            Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
        )
    )
    assert client.recv(12) == b"HTTP/1.1 101"


@pytest.mark.parametrize(
    "setting", ["connections_max", "http_address_connections_max"], ids=["of all", "of an address"]
)
def test_idle_connections_make_room_for_the_next_one(tmp_path: Path, setting: str) -> None:
    """The longest idle one without an authenticated caller is closed first."""
    with http_process(tmp_path / "log", f"{setting}=6") as server, contextlib.ExitStack() as stack:
        known, *unknown = [stack.enter_context(connect(server)) for _ in range(6)]
        known.sendall(head("GET", "/v1/topics"))
        assert known.recv(12) == b"HTTP/1.1 200"
        for client in unknown:
            client.sendall(LIVE)
            assert client.recv(12) == b"HTTP/1.1 200"
        for _ in range(3):
            newer = stack.enter_context(connect(server))
            newer.sendall(LIVE)
            assert newer.recv(12) == b"HTTP/1.1 200"
        assert all(is_closed(client) for client in unknown[:3])
        known.sendall(head("GET", "/v1/topics"))
        assert b"HTTP/1.1 200" in known.recv(65_536) + known.recv(65_536)
        assert events(server)["connection_evicted"] >= 3


def test_health_probes_and_administrators_are_served_when_every_connection_is_busy(
    tmp_path: Path,
) -> None:
    """For one request each; others are told to come again, and silent ones make room."""
    with http_process(tmp_path / "log", "connections_max=4") as server:
        with server.open() as log:
            log.create_topic("a")
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                upgraded(server, stack)
            for _ in range(limits.HTTP_RESERVE + 5):  # more than are kept for such
                stack.enter_context(connect(server))
            assert is_alive(server)
            with connect(server) as probe:
                probe.sendall(LIVE)
                assert b"connection: close" in probe.makefile("rb").read()
            assert call(server, "GET", "/v1/topics")[0] == 429
            with server.open() as log:
                root = str(log.access.create_token("root", roles=["admin"]))
            assert call(server, "GET", "/v1/topics", token=root)[0] == 200
            assert call(server, "GET", "/metrics", token=root)[0] == 200
        until(lambda: call(server, "GET", "/v1/topics", token=root)[0] == 200)


# The server's log lines


def lines(server: ServerProcess) -> list[str]:
    """Return what the server has logged."""
    return server.said.splitlines()


def test_lines_about_connections_are_written_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next line says how many were left out."""
    now = 7.0
    monkeypatch.setattr(refusals, "monotonic", lambda: now)
    once = OncePerSecond()

    def record() -> logging.LogRecord:
        return logging.makeLogRecord({"msg": "a fault\n"})

    assert [once.filter(record()) for _ in range(4)] == [True, False, False, False]
    now = 8.5
    last = record()
    assert once.filter(last)
    assert last.getMessage() == "a fault: lines left out before: 3"


def _fault(kind: type[Exception]) -> logging.LogRecord:
    try:
        raise kind("why")
    except kind:
        facts = {"msg": "Exception in ASGI application", "exc_info": sys.exc_info()}
        return logging.makeLogRecord(facts)


def test_bad_requests_do_not_hide_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault has its own line in a second: by its text, its error, and where it was raised."""
    monkeypatch.setattr(refusals, "monotonic", lambda: 7.0)
    once = OncePerSecond()

    def bad() -> logging.LogRecord:
        return logging.makeLogRecord({"msg": "Invalid HTTP request received."})

    assert [once.filter(bad()) for _ in range(3)] == [True, False, False]
    assert [once.filter(_fault(ValueError)) for _ in range(3)] == [True, False, False]
    assert once.filter(_fault(KeyError))
    try:
        raise KeyError("elsewhere")
    except KeyError:
        facts = {"msg": "Exception in ASGI application", "exc_info": sys.exc_info()}
        assert once.filter(logging.makeLogRecord(facts))
    for number in range(300):  # it remembers a bounded number of them
        assert once.filter(logging.makeLogRecord({"msg": f"reason {number}"}))
    assert once.filter(bad())


def test_messages_about_connections_are_limited_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused connections do not hide that none can be accepted."""
    monkeypatch.setattr(refusals, "monotonic", lambda: 7.0)
    for message in ("first message", "second message", "first message", "second message"):
        refusals.tell_connections(message, peer="1.2.3.4")
    assert [record.getMessage() for record in caplog.records] == [
        "first message",
        "second message",
    ]


def test_bad_chunks_are_answered_and_do_not_fill_the_log(tmp_path: Path) -> None:
    """One line a second says that there were some; the rest are counted, one for each."""
    chunked = {"Content_Type": "application/json", "Transfer_Encoding": "chunked"}
    reads_body, answers_at_once = (
        head("POST", path, **chunked) for path in ("/v1/topics", "/nowhere")
    )
    bad = b"-5\r\nabc\r\n"
    sent = 0

    def send(*parts: bytes) -> None:
        nonlocal sent
        sent += 1
        with connect(server) as client:
            for part in parts:
                client.sendall(part)
            assert status(client) == 400
            assert is_closed(client)

    def counts_the_last() -> bool:
        """Send one more; return True if its line is written, which counts those left out."""
        before = len(_lines_of_bad_requests(server))
        send(answers_at_once + bad)
        return len(_lines_of_bad_requests(server)) > before

    with http_process(tmp_path / "log") as server:
        for number in range(200):
            if number % 2:
                send((reads_body if number % 4 == 1 else answers_at_once) + bad)
            else:
                send(reads_body, bad)
        until(counts_the_last, pause_seconds=0.05)
        assert events(server)["bad_request"] == sent
        said = server.said
        assert "Traceback" not in said
        assert len(said.splitlines()) < 60, said
        left_out = [line.partition("lines left out before: ")[2] or "0" for line in lines(server)]
        written = _lines_of_bad_requests(server)
        assert len(written) + sum(map(int, left_out)) == sent, said


def _lines_of_bad_requests(server: ServerProcess) -> list[str]:
    return [line for line in lines(server) if "Invalid HTTP request" in line]


def test_used_up_descriptors_do_not_fill_the_log_and_probes_are_served(tmp_path: Path) -> None:
    """Idle connections are closed for new ones, and a failing `accept` is tried again later."""
    with http_process(tmp_path / "log") as server, contextlib.ExitStack() as stack:
        assert is_alive(server)
        used = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        most = used + 20
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, most))
        for _ in range(100):
            stack.enter_context(connect(server))
        assert is_alive(server)
        assert events(server)["accept_failed"]
        said = lines(server)
        assert any("HTTP connections cannot be accepted" in line for line in said), said
        assert not any("Traceback" in line for line in said), said
        assert len(said) < 200, said


# TLS


def test_a_handshake_that_does_not_come_is_ended_and_counted(tmp_path: Path) -> None:
    """It holds one of `connections_max` meanwhile, and is the first to make room."""
    authority = Authority(tmp_path)
    pair = authority.sign("localhost")
    client = ssl.create_default_context(cafile=authority.certificate)
    settings = (
        f"tls_cert={pair.certificate}",
        f"tls_key={pair.key}",
        "connections_max=3",
        "http_handshake_timeout_ms=3000",
    )

    def get(path: str) -> bytes:
        with (
            connect(server) as plain,
            client.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(head("GET", path, Connection="close"))
            return secure.makefile("rb").read()

    with http_process(tmp_path / "log", *settings) as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(6)]
        assert get("/health/live").startswith(b"HTTP/1.1 200")
        assert all(is_closed(each) for each in silent)
        evicted = get("/metrics").partition(b'event="connection_evicted"} ')[2]
        assert float(evicted.split()[0]) >= 3


# Heads that two readers could take differently


@pytest.mark.parametrize(
    "headers",
    [
        b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
        b"Origin: http://localhost\r\nOrigin: http://example.com\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    ],
    ids=["two tokens", "two origins", "length and chunks"],
)
def test_an_ambiguous_head_is_refused_and_its_connection_closed(
    tmp_path: Path, headers: bytes
) -> None:
    """What follows on the connection is not served."""
    with http_process(tmp_path / "log") as server:
        for path in (b"/health/live", b"/v1/topics", b"/nowhere"):
            with connect(server) as client:
                request = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n"
                client.sendall(request + b"0\r\n\r\n" + LIVE)
                answer = b""
                with contextlib.suppress(ConnectionError):
                    while data := client.recv(65_536):
                        answer += data
                assert answer.startswith(b"HTTP/1.1 400 "), answer
                assert answer.count(b"HTTP/1.1") == 1
        assert is_alive(server)


# What is refused over HTTP is refused by WebSocket


def frame(text: bytes) -> bytes:
    """Return a short frame; a mask of zeros leaves the text as it is."""
    return bytes([0x81, 0x80 | len(text)]) + bytes(4) + text


def socket_answer(client: socket.socket, text: bytes) -> bytes:
    """Send a record by WebSocket; return the answer."""
    client.sendall(frame(text))
    return client.recv(65_536)


@pytest.mark.parametrize(
    "record",
    [
        b'{"value": 7}',
        b'{"value": [1]}',
        b'{"value": {"a": 1}}',
        b'{"value": true}',
        b'{"value": "a", "key": true}',
        b'{"value": "a", "headers": {"a": [1, 2]}}',
        b'{"value": "a", "headers": {"a": {"b": 1}}}',
        b'{"value": "a", "offset": -5}',
        b'{"value": "a", "type": "other"}',
        b'{"value": "a", "topic": 5}',
        b'{"value": "a", "partition": true}',
        b'{"value": "a", "timestamp": 1e30}',
        b'{"value": "a", "colour": "red"}',
        b'{"key": "a"}',
        b"[]",
    ],
)
def test_a_record_that_http_refuses_a_websocket_refuses(
    refusing: tuple[ServerProcess, socket.socket], record: bytes
) -> None:
    """With the same code, and without ending the connection."""
    server, client = refusing
    status, body = call(server, "POST", "/v1/topics/a/records", b'{"records": [' + record + b"]}")
    assert status == 400
    code = body.partition(b'"code":"')[2].partition(b'"')[0]
    assert code in (b"invalid_argument", b"schema_mismatch")
    answer = socket_answer(client, record)
    assert b'{"error":{"code":"' + code + b'"' in answer, (body, answer)
    assert b'"offset"' in socket_answer(client, b'{"value": "good", "topic": "other"}')


@pytest.fixture(scope="module")
def refusing(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServerProcess, socket.socket]]:
    """Run a server, with a WebSocket that is open."""
    with http_process(tmp_path_factory.mktemp("refusing") / "log") as server:
        with server.open() as log:
            log.create_topic("a")
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(connect(server))
            client.sendall(
                head(
                    "GET",
                    "/v1/topics/a/writer",
                    Upgrade="websocket",
                    Connection="Upgrade",
                    Sec_WebSocket_Version=13,
                    Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
                )
            )
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += client.recv(4096)
            yield server, client
