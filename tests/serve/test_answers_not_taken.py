"""Answers that a client asks for and does not take: counted until they are sent, and cut off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lakebed import Log, ServeConfig
from lakebed.errors import QuotaExceededError
from lakebed.serve.server import Server
from lakebed.wire.protocol import pack
from tests.serve.inside import callers_waiting, connections_closed, flight_of, quotas_of
from tests.serve.raw import error_of
from tests.waiting import until

MIB = 1 << 20
_MOST = {"max_records": 1000, "max_bytes": 64 * MIB}
READ = pack({"call": "read", "topic": "large", "partition": 0, "offset": 0, **_MOST})
FETCH = pack({"call": "fetch", "places": [("large", 0, 0)], **_MOST})


@contextlib.contextmanager
def _serve(folder: Path, **settings: Any) -> Iterator[tuple[Server, Any]]:
    """Serve a topic of 24 MiB; return a client with a small window too."""
    log = Log.open(folder)
    log.create_topic("large")
    batch = pa.record_batch({"value": pa.array([bytes(64 << 10)] * 32, pa.binary())})
    for _ in range(12):
        log.append_batch("large", batch)
    config = ServeConfig(port=0, http_port=-1, stop_timeout_ms=1000, **settings)
    with Server(log, config).start() as server:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        client = fl.connect(f"grpc://127.0.0.1:{server.port}", generic_options=options)
        with contextlib.closing(client):
            yield server, client


@contextlib.contextmanager
def _ask(client: Any, *tickets: bytes) -> Iterator[list[Any]]:
    """Return answers that are not read; those still open are cancelled, or the server waits."""
    readers = [client.do_get(fl.Ticket(ticket)) for ticket in tickets]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.cancel()


@pytest.mark.parametrize("ticket", [READ, FETCH], ids=["read", "fetch"])
def test_an_answer_counts_until_it_is_sent(tmp_path: Path, ticket: bytes) -> None:
    settings = {"principal_inflight_bytes_max": 60 * MIB}
    serving = _serve(tmp_path / "log", **settings)
    with serving as (server, client), _ask(client, ticket, ticket) as readers:
        assert quotas_of(server).inflight_bytes > 40 * MIB
        with ThreadPoolExecutor(1) as pool:
            third = pool.submit(lambda: client.do_get(fl.Ticket(ticket)).read_all())
            until(lambda: callers_waiting(quotas_of(server)) > 0)
            assert quotas_of(server).inflight_bytes < 60 * MIB, "what waits does not count"
            assert [reader.read_all().num_rows for reader in readers] == [384, 384]
            assert third.result(600).num_rows == 384
        until(lambda: quotas_of(server).inflight_bytes == 0)
        assert not flight_of(server)._sending


def test_an_answer_that_finds_no_room_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.serve.flight._ADMIT_SECONDS", 0.1)
    settings = {"principal_inflight_bytes_max": 30 * MIB}
    serving = _serve(tmp_path / "log", **settings)
    with serving as (server, client), _ask(client, READ) as (first,):
        with pytest.raises(fl.FlightError) as caught:
            client.do_get(fl.Ticket(READ)).read_all()
        assert isinstance(error_of(caught.value), QuotaExceededError)
        assert first.read_all().num_rows == 384
        assert client.do_get(fl.Ticket(READ)).read_all().num_rows == 384
    assert not quotas_of(server).inflight_bytes


def test_a_client_that_takes_nothing_is_disconnected(tmp_path: Path) -> None:
    """Its bytes and its stream are given back; another client is served."""
    serving = _serve(tmp_path / "log", flight_stall_timeout_ms=500)
    with serving as (server, client), _ask(client, READ) as (stalled,):
        assert quotas_of(server).inflight_bytes > 20 * MIB
        until(lambda: quotas_of(server).inflight_bytes == 0)
        until(lambda: quotas_of(server).streams == 0)
        with pytest.raises(fl.FlightError):
            stalled.read_all()
        other = fl.connect(f"grpc://127.0.0.1:{server.port}")
        assert other.do_get(fl.Ticket(READ)).read_all().num_rows == 384
        other.close()
        assert "an answer was not taken in time" in connections_closed(server)


def test_a_stream_of_batches_may_be_read_slowly(tmp_path: Path) -> None:
    """Such a one holds a batch at a time, and is not cut off however long its reader thinks."""
    ticket = pack({"call": "range", "topic": "large", "partition": 0, "offset": 0})
    serving = _serve(tmp_path / "log", flight_stall_timeout_ms=100)
    with serving as (server, client), _ask(client, ticket) as (slow,):
        options = [("grpc.use_local_subchannel_pool", 1)]
        other = fl.connect(f"grpc://127.0.0.1:{server.port}", generic_options=options)
        with contextlib.closing(other), _ask(other, READ) as (stalled,):
            until(lambda: bool(connections_closed(server)))
            assert slow.read_all().num_rows == 384
            with pytest.raises(fl.FlightError):
                stalled.read_all()


def test_a_large_reply_of_a_call_counts_until_it_is_sent(tmp_path: Path) -> None:
    with _serve(tmp_path / "log") as (server, client):
        for number in range(600):
            server.log.create_topic(f"{'n' * 120}-{number}")

        def call(name: str) -> Any:
            return lambda: list(client.do_action(fl.Action(name, b"")))

        assert _held(server, call("groups")) == []
        (size,) = _held(server, call("topics"))
        assert size > 600 * 120
        until(lambda: quotas_of(server).inflight_bytes == 0)


def _held(server: Server, call: Any) -> list[int]:
    """Return the sizes of what was held for a call."""
    sizes: list[int] = []
    quotas = quotas_of(server)
    held = quotas.hold

    def noting(principal: Any, nbytes: int, wait_seconds: float = 0.0) -> Any:
        sizes.append(nbytes)
        return held(principal, nbytes, wait_seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quotas, "hold", noting)
        call()
    return sizes
