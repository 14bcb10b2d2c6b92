"""HTTP clients that do not read their answers, or send their bodies slowly."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.http_raw import (
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

MIB = 1 << 20
_SMALL = ("inflight_bytes_max=10485760", "principal_inflight_bytes_max=10485760")
_READ = "/v1/topics/a/records"


def fill(server: ServerProcess) -> None:
    """Write 4 MiB of control characters: 24 MiB of JSON."""
    with server.open() as log:
        log.create_topic("a")
        for _ in range(4):
            log.append("a", b"\x01" * (MIB - 100))


@contextlib.contextmanager
def unread(server: ServerProcess, count: int) -> Iterator[dict[socket.socket, int]]:
    """Ask for the same large answer so many times, and take only its first bytes; give statuses."""
    with contextlib.ExitStack() as stack:
        made = {}
        for _ in range(count):
            client = stack.enter_context(connect(server, small_window=True))
            client.sendall(head("GET", _READ))
            made[client] = int(client.recv(12).split()[1])
        yield made


def test_answers_count_until_they_are_sent(tmp_path: Path) -> None:
    """Those that clients do not take fill `inflight_bytes_max`, and the next one is refused."""
    with http_process(tmp_path / "log", *_SMALL) as server:
        fill(server)
        assert call(server, "GET", _READ)[0] == 200
        before = server.resident_bytes
        with unread(server, 12) as clients:
            assert list(clients.values()) == [200, 200] + [429] * 10
            assert call(server, "GET", "/v1/topics")[0] == 200
            assert call(server, "POST", _READ, {"records": [{"value": "x"}]})[0] == 200
            # Of each only the records are held, and a piece of their text.
            assert server.resident_bytes - before < 64 * MIB
        until(lambda: call(server, "GET", _READ)[0] == 200, "what was held is not released")


def test_an_answer_in_pieces_is_the_same_text(tmp_path: Path) -> None:
    """One of many pieces, which does not state its length, and one that is a single piece."""
    texts = [f"{number}/" + "é" * (number % 7) * 1000 for number in range(600)]
    with http_process(tmp_path / "log") as server:
        with server.open() as log:
            log.create_topic("a")
            log.append_batch("a", [{"value": text.encode(), "key": b"k"} for text in texts])
        records = json.loads(call(server, "GET", _READ)[1])["records"]
        assert [record["value"] for record in records] == texts
        short = json.loads(call(server, "GET", f"{_READ}?max_records=5")[1])
        assert (short["records"], short["next_offset"]) == (records[:5], 5)
        with connect(server) as client:
            client.sendall(head("GET", _READ, Connection="close"))
            answer = client.makefile("rb").read()
    assert b"transfer-encoding: chunked" in answer.partition(b"\r\n\r\n")[0].lower()


def test_a_client_that_takes_nothing_is_closed_and_counted(tmp_path: Path) -> None:
    """One that reads slowly is not."""
    with http_process(tmp_path / "log", *_SMALL, "http_stall_timeout_ms=400") as server:
        fill(server)
        with unread(server, 2) as clients:
            until(lambda: events(server).get("client_stalled") == 2, pause_seconds=0.1)
            assert all(is_closed(client) for client in clients)
        until(lambda: "a client does not read its answer" in server.said)
        code, body = call(server, "GET", _READ)
        assert (code, len(json.loads(body)["records"])) == (200, 4)


def test_a_websocket_that_takes_nothing_is_closed(tmp_path: Path) -> None:
    """Its answers are short, but it would stay for as long as it likes."""
    ping = bytes([0x89, 0x80 | 125]) + bytes(4) + b"p" * 125
    upgrade = head(
        "GET",
        "/v1/topics/a/writer",
        Upgrade="websocket",
        Connection="Upgrade",
        Sec_WebSocket_Version=13,
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
    )
    with http_process(tmp_path / "log", "http_stall_timeout_ms=400") as server:
        with server.open() as log:
            log.create_topic("a")
        with connect(server, small_window=True) as client:
            client.sendall(upgrade)
            assert client.recv(12) == b"HTTP/1.1 101"
            client.setblocking(False)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent < 64 * MIB:
                    with contextlib.suppress(BlockingIOError):
                        sent += client.send(ping * 500)
            assert events(server)["client_stalled"] == 1


# Bodies


def slow_body(server: ServerProcess, token: str) -> socket.socket:
    """Begin a request to write records whose body does not come."""
    client = connect(server)
    client.sendall(
        head("POST", _READ, token, Content_Type="application/json", Content_Length=1000) + b"{"
    )
    return client


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[ServerProcess, dict[str, str]]]:
    """Run a server with small limits whose log has an administrator and two writers."""
    settings = (
        "http_principal_requests_max=5",
        "http_address_requests_max=8",
        "http_body_timeout_ms=2000",
    )
    with http_process(tmp_path / "log", *settings) as server:
        with server.open() as log:
            log.create_topic("a")
            root = str(log.access.create_token("root", roles=["admin"]))
        with server.open(token=root) as log:
            tokens = {
                name: str(log.access.create_token(name, roles=["writer"]))
                for name in ("ann", "bob")
            }
            tokens["nobody"] = str(log.access.create_token("nobody"))
        yield server, {"root": root, **tokens}


def test_slow_bodies_of_one_principal_leave_places_for_others(
    guarded: tuple[ServerProcess, dict[str, str]],
) -> None:
    """They use up the places of their principal and of their address, and no others."""
    server, tokens = guarded
    write = {"records": [{"value": "x"}]}
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(slow_body(server, tokens["ann"]))
        until(lambda: call(server, "POST", _READ, write, token=tokens["ann"])[0] == 429)
        assert call(server, "POST", _READ, write, token=tokens["bob"])[0] == 200
    until(lambda: call(server, "POST", _READ, write, token=tokens["ann"])[0] == 200)


def test_slow_bodies_from_one_address_leave_places_for_health_and_are_counted_together(
    guarded: tuple[ServerProcess, dict[str, str]],
) -> None:
    """Whoever sends them: the limit of an address is for all principals there."""
    server, tokens = guarded
    with contextlib.ExitStack() as stack:
        for name in ("ann", "bob"):
            for _ in range(4):
                stack.enter_context(slow_body(server, tokens[name]))
        until(lambda: call(server, "GET", "/v1/topics", token=tokens["nobody"])[0] == 429)
        assert is_alive(server)
    until(lambda: call(server, "GET", "/v1/topics", token=tokens["nobody"])[0] == 200)


def test_a_body_that_comes_byte_by_byte_has_one_deadline(
    guarded: tuple[ServerProcess, dict[str, str]],
) -> None:
    """A byte now and then does not begin the time again."""
    server, tokens = guarded
    with slow_body(server, tokens["ann"]) as client:
        client.settimeout(0.3)
        answer = b""
        for _ in range(600):  # three minutes
            try:
                answer = client.recv(12)
                break
            except TimeoutError:
                client.sendall(b" ")
        assert answer == b"HTTP/1.1 408"


def test_who_may_manage_nothing_does_not_get_a_body_read(
    guarded: tuple[ServerProcess, dict[str, str]],
) -> None:
    """The permission that the call alone decides is looked at first."""
    server, tokens = guarded
    request = {"Content_Type": "application/json", "Content_Length": 1000}
    with connect(server) as client:
        client.sendall(head("POST", "/v1/topics", tokens["nobody"], **request))
        assert status(client) == 403
    with connect(server) as client:
        client.sendall(head("POST", _READ, tokens["nobody"], **request))
        assert status(client) == 403
    assert is_alive(server)


def test_a_large_body_is_for_records_alone(
    guarded: tuple[ServerProcess, dict[str, str]],
) -> None:
    """Other calls have smaller limits, which are looked at before the body is parsed."""
    server, tokens = guarded
    large = b'{"topic": "b", "config": [' + b"{}," * 400_000 + b"{}]}"
    code, body = call(server, "POST", "/v1/topics", large, token=tokens["root"])
    assert (code, json.loads(body)["facts"]) == (413, {"bytes_max": MIB})
    commit = [{"topic": "a", "partition": 0, "offset": 0}] * 60_000
    path = "/v1/groups/g/offsets"
    code, body = call(server, "PUT", path, {"offsets": commit}, token=tokens["root"])
    assert (code, json.loads(body)["facts"]) == (413, {"bytes_max": 2 * MIB})


def test_json_of_too_many_values_is_refused_before_it_is_built(
    guarded: tuple[ServerProcess, dict[str, str]],
) -> None:
    """Commas in texts are no values; memory stays what the body needs."""
    server, tokens = guarded
    texts = {"records": [{"value": '",[{\\' * 1_000_000}]}
    assert call(server, "POST", _READ, texts, token=tokens["ann"])[0] == 200
    before = server.resident_bytes
    for piece in (b"{}", b"[]", b'{"a":1}'):
        many = b",".join([piece] * ((15 * MIB) // (len(piece) + 1)))
        body = b'{"records": [' + many + b"]}"
        code, answer = call(server, "POST", _READ, body, token=tokens["ann"])
        assert (code, json.loads(answer)["facts"]) == (413, {"values_max": 500_000})
    assert server.resident_bytes - before < 250 * MIB
