"""Streams of one principal or address: a limit that leaves the others theirs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Log, ServeConfig, limits
from lakebed.client.config import ClientConfig
from lakebed.errors import QuotaExceededError
from lakebed.serve.server import Server
from lakebed.serve.slots import Slots
from tests.serve.http_raw import head, status
from tests.serve.inside import connection_of, quotas_of
from tests.waiting import PATIENCE_SECONDS, until


def _open(server: Server, token: str, retry_ms: int = 500) -> Log:
    return lakebed.open(server.url, ClientConfig(token=token, retry_ms=retry_ms))


@contextlib.contextmanager
def _serve(folder: Path, **settings: Any) -> Iterator[tuple[Server, dict[str, str]]]:
    log = Log.open(folder)
    log.create_topic("a")
    log.create_topic("b")
    log.append("a", b"v")
    roles = {"root": ["admin"], "reader": ["reader"], "writer": ["writer", "reader"]}
    tokens = {name: str(log.access.create_token(name, roles=each)) for name, each in roles.items()}
    config = ServeConfig(**{"port": 0, "http_port": -1, "stop_timeout_ms": 1000, **settings})
    with Server(log, config).start() as server:
        yield server, tokens


def _follow(stack: contextlib.ExitStack, log: Log) -> None:
    """Hold a stream open for as long as the stack is."""
    ticket = {"call": "follow", "topic": "a", "partition": 0, "offset": 0}
    reader = connection_of(log).stream(ticket)
    stack.callback(reader.cancel)
    reader.read_chunk()


def _fill(stack: contextlib.ExitStack, log: Log) -> int:
    """Open streams until no more are allowed; return how many."""
    count = 0
    with contextlib.suppress(QuotaExceededError):
        while count < 100:
            _follow(stack, log)
            count += 1
    return count


def test_a_principal_has_so_many_streams_and_the_others_theirs(tmp_path: Path) -> None:
    with _serve(tmp_path / "log", principal_streams_max=5) as (server, tokens):
        with contextlib.ExitStack() as stack:
            reader = stack.enter_context(_open(server, tokens["reader"]))
            assert _fill(stack, reader) == 5
            writer = stack.enter_context(_open(server, tokens["writer"], 60_000))
            assert writer.append("b", b"v").offset == 0
            assert writer.read("a").num_rows == 1
        quotas = quotas_of(server)
        until(lambda: not quotas.streams)
        assert not quotas.open_streams._names
        assert not quotas.open_streams._addresses


def test_administrators_have_a_reserve(tmp_path: Path) -> None:
    settings = {"connections_max": 8, "admin_streams_reserved": 3}
    with _serve(tmp_path / "log", **settings) as (server, tokens), contextlib.ExitStack() as stack:
        reader = stack.enter_context(_open(server, tokens["reader"]))
        assert _fill(stack, reader) == 5
        root = stack.enter_context(_open(server, tokens["root"], 60_000))
        assert root.append("b", b"v").offset == 0
        assert _fill(stack, stack.enter_context(_open(server, tokens["root"]))) == 2


@pytest.mark.parametrize("limit", ["streams", "waits"])
def test_administrators_have_a_reserve_of_http_requests_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    settings = {"http_port": 0, "connections_max": 8, "admin_streams_reserved": 4}
    if limit == "waits":
        settings["connections_max"] = 100
        monkeypatch.setattr(limits, "HTTP_WAITS_MAX", 4)
    with _serve(tmp_path / "log", **settings) as (server, tokens), contextlib.ExitStack() as stack:

        def wait(name: str, wait_ms: int) -> socket.socket:
            path = f"/v1/topics/a/records?offset=latest&wait_ms={wait_ms}"
            client = socket.create_connection(("127.0.0.1", server.http_port), PATIENCE_SECONDS)
            client.sendall(head("GET", path, tokens[name]))
            return stack.enter_context(client)

        quotas = quotas_of(server)
        for count in range(1, 5):
            wait("reader", 60_000)
            until(lambda: quotas.streams == count)  # noqa: B023  # it is called here
        assert status(wait("reader", 60_000)) == 429
        assert status(wait("root", 1)) == 200


def test_administrators_have_a_reserve_of_websockets(tmp_path: Path) -> None:
    settings = {"http_port": 0, "connections_max": 8, "admin_streams_reserved": 4}
    with _serve(tmp_path / "log", **settings) as (server, tokens), contextlib.ExitStack() as stack:
        reader = stack.enter_context(_open(server, tokens["reader"]))
        assert _fill(stack, reader) == 4

        def upgrade(name: str) -> int:
            client = socket.create_connection(("127.0.0.1", server.http_port), PATIENCE_SECONDS)
            stack.enter_context(client).sendall(
                head(
                    "GET",
                    "/v1/topics/b/writer",
                    tokens[name],
                    Upgrade="websocket",
                    Connection="Upgrade",
                    Sec_WebSocket_Version=13,
                    Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
                )
            )
            return status(client)

        assert upgrade("writer") == 429
        assert upgrade("root") == 101


def test_an_address_has_so_many_streams_and_administrators_any(tmp_path: Path) -> None:
    with (
        _serve(tmp_path / "log", address_streams_max=4) as (server, tokens),
        contextlib.ExitStack() as stack,
    ):
        reader = stack.enter_context(_open(server, tokens["reader"]))
        assert _fill(stack, reader) == 4
        writer = stack.enter_context(_open(server, tokens["writer"]))
        with pytest.raises(QuotaExceededError, match="the address has too many streams"):
            writer.read("a")
        root = stack.enter_context(_open(server, tokens["root"], 60_000))
        assert root.append("b", b"v").offset == 0


@pytest.mark.parametrize("act", ["append", "append_batch", "producer", "read", "follow", "scan"])
def test_a_refusal_for_want_of_streams_is_told_as_such(tmp_path: Path, act: str) -> None:
    """Not as a server that does not answer, which it is not."""
    settings = {"connections_max": 4, "admin_streams_reserved": 0}
    with _serve(tmp_path / "log", **settings) as (server, tokens), contextlib.ExitStack() as stack:
        reader = stack.enter_context(_open(server, tokens["reader"]))
        assert _fill(stack, reader) == 4
        log = stack.enter_context(_open(server, tokens["writer"]))
        with pytest.raises(QuotaExceededError, match="too many streams"):
            _act(log, act)


def _act(log: Log, act: str) -> None:
    batch = pa.record_batch({"value": pa.array([b"v"], pa.binary())})
    if act == "append":
        log.append("b", b"v")
    elif act == "append_batch":
        log.append_batch("b", batch)
    elif act == "producer":
        with log.producer("p") as producer:
            producer.send("b", b"v").result()
    elif act == "read":
        log.read("a")
    elif act == "follow":
        with log.consumer(partitions=[("a", 0)]) as consumer:
            consumer.poll(1000)
    else:
        log.table("a").scan().read_all()


# Counting


def test_a_slot_is_counted_for_its_principal_once_that_is_known() -> None:
    slots = Slots(ServeConfig(principal_streams_max=1), "streams")
    first, second = slots.take(), None
    slots.assign(first, "ann", administrator=False)
    second = slots.take()
    with pytest.raises(QuotaExceededError, match="the principal has too many streams"):
        slots.assign(second, "ann", administrator=False)
    slots.assign(second, "ann", administrator=True)
    slots.release(first)
    slots.release(first)
    slots.assign(first, "bob", administrator=False)
    assert slots.count == 1
    slots.release(second)
    assert not slots.count
    assert not slots._names


def test_callers_whose_principal_is_not_known_yet_are_limited_together() -> None:
    slots = Slots(ServeConfig(principal_streams_max=2), "streams")
    for _ in range(2):
        slots.take()
    with pytest.raises(QuotaExceededError):
        slots.take()
    assert slots.take("ann")


def test_an_open_log_limits_addresses() -> None:
    slots = Slots(ServeConfig(principal_streams_max=1, address_streams_max=2), "calls")
    for _ in range(2):
        slots.locate(slots.take("anonymous"), "ipv4:10.0.0.1")
    with pytest.raises(QuotaExceededError, match="the address has too many calls"):
        slots.locate(slots.take("anonymous"), "ipv4:10.0.0.1")
    slots.locate(slots.take("anonymous"), "ipv4:10.0.0.2")


def test_the_reserve_is_at_most_half() -> None:
    slots = Slots(ServeConfig(connections_max=2), "streams")
    slots.take("ann")
    with pytest.raises(QuotaExceededError):
        slots.take("bob")
    slots.take("root", administrator=True)
