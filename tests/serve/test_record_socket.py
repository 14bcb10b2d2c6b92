"""Writing by WebSocket: every record is answered in its turn, and nobody gets in unasked."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from lakebed.serve import record_socket, refusals
from lakebed.serve.http import HttpServer
from tests.engine.support import PRICE, in_threads, rows
from tests.serve.certificates import Authority
from tests.serve.over_http import Answer, Served, served
from tests.waiting import until


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "log") as server:
        server.log.create_topic("t")
        yield server


def writer(
    here: Served, topic: str = "t", **given: Any
) -> AbstractContextManager[ClientConnection]:
    headers = {"Authorization": f"Bearer {here.token}"} if here.token else {}
    given.setdefault("additional_headers", headers)
    url = f"ws://127.0.0.1:{here.port}/v1/topics/{topic}/writer"
    made: AbstractContextManager[ClientConnection] = connect(url, **given)
    return made


def told(connection: ClientConnection, message: Any) -> Any:
    connection.send(message if isinstance(message, str | list) else json.dumps(message))
    return json.loads(connection.recv())


def turned_away(here: Served, topic: str = "t", **given: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught, writer(here, topic, **given):
        pass
    body = caught.value.response.body
    return caught.value.response.status_code, bytes(body or b"").decode()


def test_a_record_is_answered_when_it_is_in_the_log(here: Served) -> None:
    with writer(here) as connection:
        assert told(connection, {"value": "a", "key": "k"}) == {"partition": 0, "offset": 0}
        assert rows(here.log, "t") == [b"a"]
        assert told(connection, {"value": {"base64": "AAE="}}) == {"partition": 0, "offset": 1}
    assert rows(here.log, "t") == [b"a", b"\0\1"]


def test_answers_come_in_the_order_of_the_messages(here: Served) -> None:
    with writer(here) as connection:
        for number in range(200):
            bad = number % 10 == 3
            connection.send("{" if bad else json.dumps({"value": str(number)}))
        answers = [json.loads(connection.recv()) for _ in range(200)]
    offsets = [answer["offset"] for answer in answers if "offset" in answer]
    assert [number for number, answer in enumerate(answers) if "error" in answer] == list(
        range(3, 200, 10)
    )
    assert offsets == list(range(180))
    assert rows(here.log, "t") == [str(number).encode() for number in range(200) if number % 10 - 3]


def test_many_connections_write_at_once(here: Served) -> None:
    def work(number: int) -> list[int]:
        with writer(here) as connection:
            return [told(connection, {"value": f"{number}"})["offset"] for _ in range(20)]

    found = in_threads(40, work)
    assert sorted(offset for offsets in found for offset in offsets) == list(range(800))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "invalid_argument"),
        ("{", "invalid_argument"),
        ("[1]", "invalid_argument"),
        ('{"valu": 1}', "invalid_argument"),
        ('{"value": null}', "schema_mismatch"),
        ('{"value": "a", "value": "b"}', "invalid_argument"),
        ('{"value": "a", "partition": 9}', "partition_not_found"),
        ('{"value": "a", "timestamp": "yesterday"}', "schema_mismatch"),
        ('{"value": NaN}', "invalid_argument"),
        ("[" * 100_000, "invalid_argument"),
    ],
)
def test_a_bad_message_is_refused_and_the_next_one_is_taken(
    here: Served, message: str, code: str
) -> None:
    with writer(here) as connection:
        answer = told(connection, message)["error"]
        assert answer["code"] == code and answer["advice"]
        assert told(connection, {"value": "good"}) == {"partition": 0, "offset": 0}


def test_a_typed_topic_takes_its_fields(here: Served) -> None:
    here.log.create_topic("prices", schema=PRICE)
    with writer(here, "prices") as connection:
        assert told(connection, {"value": {"item": "tea", "price": 3}})["offset"] == 0
        assert told(connection, {"value": {"item": "tea", "price": "3"}})["error"]
    assert rows(here.log, "prices") == [{"item": "tea", "price": 3}]


def test_a_message_may_come_in_pieces_and_has_a_limit(here: Served) -> None:
    with writer(here) as connection:
        assert told(connection, ['{"val', 'ue": ', '"a"}'])["offset"] == 0
        with pytest.raises(ConnectionClosed) as caught:
            told(connection, {"value": "x" * 2_000_000})
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1009
    with writer(here) as connection, pytest.raises(ConnectionClosed):
        told(connection, ['{"value": "'] + ["x" * 900_000] * 3 + ['"}'])
    assert rows(here.log, "t") == [b"a"]


def test_who_may_not_write_is_turned_away(here: Served) -> None:
    assert turned_away(here, "none")[0] == 404
    assert turned_away(here, "a/b")[0] == 400
    assert turned_away(here, "__audit")[0] in (403, 404)
    admin = here.log.access.create_token("root", roles=["admin"])
    assert turned_away(here)[0] == 401
    here.token = str(here.log.access.create_token("eyes", roles=["reader"]))
    assert turned_away(here)[0] == 403
    here.token = "lkb_nonsense"
    assert turned_away(here)[0] == 401
    here.token = str(admin)
    with writer(here) as connection:
        assert told(connection, {"value": "a"})["offset"] == 0


def raw_upgrade(here: Served, **headers: str) -> Answer:
    """Ask for an upgrade as a client does that knows little of WebSockets."""
    asked = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    return here.send("GET", "/v1/topics/t/writer", None, asked | headers)


def test_a_refusal_has_the_body_of_every_error_and_is_logged_once(
    here: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_limit", refusals._Limit(10))  # whatever others have logged
    caplog.set_level(logging.INFO, "lakebed.serve")
    with writer(here):
        pass
    assert raw_upgrade(here).code == "invalid_argument"
    here.log.access.create_token("root", roles=["admin"])
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    answer = raw_upgrade(here, **key)
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["cache-control"] == "no-store"
    here.token = str(here.log.access.create_token("eyes", roles=["reader"]))
    assert raw_upgrade(here, **key).code == "access_denied"
    told = [record for record in caplog.records if record.name.startswith("lakebed.serve")]
    assert [record.levelname for record in told] == ["INFO"] * 3
    malformed, unknown, denied = (record.getMessage() for record in told)
    assert "missing Sec-WebSocket-Key" in malformed and "no token" in unknown
    assert "principal=eyes" in denied and "topic=t" in denied
    assert vars(told[1])["topic"] == "t" and vars(told[1])["peer"].startswith("127.0.0.1:")


def test_what_is_no_upgrade_leaves_nothing_behind_over_tls(tmp_path: Path) -> None:
    """Also no connection that a stop would wait for."""
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    tls = ssl.create_default_context(cafile=authority.certificate)
    with served(tmp_path / "log", tls=tls, tls_cert=pair.certificate, tls_key=pair.key) as server:
        server.log.create_topic("t")
        for _ in range(3):
            assert raw_upgrade(server).code == "invalid_argument"
        until(lambda: not connections(server))


def test_a_page_of_another_place_may_not_write(here: Served) -> None:
    status, body = turned_away(here, origin="http://elsewhere.example")
    assert status == 400 and "another origin" in body
    with writer(here, origin=f"http://127.0.0.1:{here.port}") as connection:
        assert told(connection, {"value": "a"})["offset"] == 0


def test_a_token_that_is_revoked_ends_an_open_connection_too(here: Served) -> None:
    here.log.access.create_token("root", roles=["admin"])
    here.token = str(here.log.access.create_token("till", roles=["writer"]))
    (till,) = (each.id for each in here.log.access.tokens() if each.principal == "till")
    with writer(here) as connection:
        assert told(connection, {"value": "a"})["offset"] == 0
        here.log.access.revoke_token(till)
        answers: list[Any] = []

        def is_refused() -> bool:
            answers.append(told(connection, {"value": "b"}))
            return "error" in answers[-1]

        until(is_refused)
        assert answers[-1]["error"]["code"] == "unauthenticated"


def test_a_limit_on_requests_is_told_record_by_record(tmp_path: Path) -> None:
    with served(tmp_path / "log", principal_requests_per_second=5) as here:
        here.log.create_topic("t")
        with writer(here) as connection:
            answers = [told(connection, {"value": "a"}) for _ in range(30)]
    refused = [answer["error"]["code"] for answer in answers if "error" in answer]
    assert refused and set(refused) == {"quota_exceeded"}
    assert "offset" in answers[0]


def test_garbage_instead_of_frames_ends_the_connection_alone(here: Served) -> None:
    with socket.create_connection(("127.0.0.1", here.port), timeout=600) as raw:
        raw.sendall(
            b"GET /v1/topics/t/writer HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert b"101" in raw.recv(4096)
        raw.sendall(b"\xff" * 100)
        while raw.recv(4096):
            pass
    with writer(here) as connection:
        assert told(connection, {"value": "a"})["offset"] == 0


def test_stopping_answers_what_is_under_way_and_says_so(tmp_path: Path) -> None:
    with served(tmp_path / "log") as here:
        here.log.create_topic("t")
        with writer(here) as connection:
            assert told(connection, {"value": "a"})["offset"] == 0
            here.server.stop()
            with pytest.raises(ConnectionClosed) as caught:
                connection.recv()
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1012


# Clients that mean no good


UPGRADE = (
    b"GET /v1/topics/t/writer HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def raw_writer(here: Served, more: bytes = b"") -> socket.socket:
    """Open a WebSocket whose every byte the test sends itself."""
    raw = socket.create_connection(("127.0.0.1", here.port), timeout=600)
    raw.sendall(UPGRADE + more + b"\r\n")
    return raw


def frame(text: bytes, first: int = 0x81) -> bytes:
    """Return a short frame; a mask of zeros leaves the text as it is."""
    return bytes([first, 0x80 | len(text)]) + bytes(4) + text


def upgraded(raw: socket.socket) -> None:
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += raw.recv(4096)
    assert answer.startswith(b"HTTP/1.1 101 ")


def connections(here: Served) -> set[Any]:
    assert isinstance(here.server, HttpServer)
    found: set[Any] = here.server._parts.server.server_state.connections
    return found


def test_thousands_of_bad_messages_take_nobodys_acknowledgement(here: Served) -> None:
    bad = 3_000
    with raw_writer(here) as raw, writer(here) as other:
        upgraded(raw)
        raw.sendall(frame(b'{"value":"good"}') * 16 + frame(b"x") * bad)
        answers = [told(other, {"value": "other"}) for _ in range(50)]
        assert all("offset" in answer for answer in answers)
        found = 0
        tail = b""
        while found < bad:
            data = raw.recv(65536)
            assert data, found
            found += (tail + data).count(b'{"error":') - tail.count(b'{"error":')
            tail = data[-8:]
    assert here.log.offsets("t") == {0: (0, 66)}


def test_a_defect_ends_its_connection_alone(
    here: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = record_socket._text

    def failing(answer: Any) -> bytes:
        if getattr(answer, "offset", None) == 1:
            raise RuntimeError("a defect")
        return text(answer)

    monkeypatch.setattr(record_socket, "_text", failing)
    with writer(here) as one, writer(here) as other:
        assert told(one, {"value": "a"})["offset"] == 0
        with pytest.raises(ConnectionClosed):
            told(one, {"value": "b"})
        assert told(other, {"value": "c"})["offset"] == 2
    assert "a WebSocket failed: topic=t" in caplog.text


def test_a_client_that_does_not_read_is_not_read_either(here: Served) -> None:
    with raw_writer(here) as raw:
        upgraded(raw)
        raw.settimeout(0.5)
        pings = frame(b"p" * 125, 0x89) * 2_000
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 1 << 30:
                sent += raw.send(pings)
        (connection,) = connections(here)
        assert connection._paused
        assert connection._transport.get_write_buffer_size() < 4 << 20
        raw.settimeout(30)
        while len(raw.recv(1 << 20)):  # it reads after all, and is served again
            if not connection._paused:
                break
    until(lambda: not connections(here))
    with writer(here) as other:
        assert told(other, {"value": "a"})["offset"] == 0


def test_a_message_has_a_limit_of_pieces_too(here: Served) -> None:
    with raw_writer(here) as raw:
        upgraded(raw)
        raw.sendall(frame(b"", 0x01) + frame(b"", 0x00) * 3_000)
        told = raw.recv(4096)
        assert told[:1] == b"\x88" and int.from_bytes(told[2:4]) == 1009
    with writer(here) as other:
        assert told_in(other, 900) == {"partition": 0, "offset": 0}


def told_in(connection: ClientConnection, pieces: int) -> Any:
    return told(connection, ['{"value": "', *["x"] * pieces, '"}'])


def test_a_connection_that_does_not_finish_closing_is_ended(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_socket, "_CLOSE_SECONDS", 0.05)
    with raw_writer(here) as raw:
        upgraded(raw)
        raw.sendall(frame(b"", 0x01) + frame(b"", 0x00) * 3_000)
        until(lambda: not connections(here))


@pytest.mark.parametrize(
    "more",
    [
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
        b"X: y\r\n" * 500,
        b"X: " + b"y" * 20_000 + b"\r\n",
    ],
)
def test_an_upgrade_that_cannot_be_one_ends(here: Served, more: bytes) -> None:
    with raw_writer(here, more) as raw:
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while data := raw.recv(4096):
                answer += data
        assert b" 101 " not in answer
    until(lambda: not connections(here))


def test_the_open_log_is_not_written_to_under_a_name_of_somebody_else(here: Served) -> None:
    """A page whose name was made to mean this machine has an origin like its host."""
    evil = {"Host": "evil.example:4748", "Origin": "http://evil.example:4748"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    answer = raw_upgrade(here, **key, **evil)
    assert answer.status == 400 and "names of its host" in answer.json["message"]


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-23:59", 253402300800000000])
def test_a_time_outside_the_years_1_to_9999_is_refused_alone(here: Served, time: Any) -> None:
    with writer(here) as connection:
        answer = told(connection, {"value": "a", "timestamp": time})
        assert answer["error"]["code"] == "invalid_argument"
        assert told(connection, {"value": "b"}) == {"partition": 0, "offset": 0}
    assert rows(here.log, "t") == [b"b"]
