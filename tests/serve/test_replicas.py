"""Servers of read replicas: clients read there, and are told where the owner is."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import lakebed
from lakebed import ClientConfig, ServeConfig
from lakebed.chain.records import decode_lease
from lakebed.cli import cli
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import NotOwnerError
from lakebed.serve.server import Server
from tests.engine.shipped import Machines, values
from tests.serve.pair import StoreServer
from tests.waiting import until

_LOCAL = ServeConfig(port=0, http_port=0)


class Pair(NamedTuple):
    """The owner of a log and a replica of it, both served by this process."""

    machines: Machines
    owner: Server
    replica: Server

    def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Ask the replica over HTTP; return status and body."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.replica.http_port}{path}",
            data=body,
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=600) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    machines = Machines(tmp_path)
    with ExitStack() as stack:
        log = machines.open("a")
        log.create_topic("orders")
        owner = stack.enter_context(Server(log, _LOCAL))
        config = machines.config(replica_poll_ms=10, lease_ms=600)
        replica = lakebed.open(f"file://{machines.store}", config, replica=True)
        assert isinstance(replica, EmbeddedLog)
        yield Pair(machines, owner, stack.enter_context(Server(replica, _LOCAL)))


def test_clients_read_from_a_replica(pair: Pair) -> None:
    pair.owner.log.append("orders", b"1", "k")
    with lakebed.open(pair.replica.url) as log:
        until(lambda: values(log) == [b"1"])
        assert log.table("orders").get("k") == b"1"
        assert log.stats().role == "replica"
        assert log.stats().replica.owner == pair.owner.url  # type: ignore[union-attr]
        got: list[object] = []
        waits = threading.Thread(
            target=lambda: got.append(log.read("orders", offset=1, wait_ms=60_000).num_rows)
        )
        waits.start()
        pair.owner.log.append("orders", b"2")
        waits.join(600)
        assert got == [1]
        with log.consumer(partitions=[("orders", 0)]) as consumer:
            assert consumer.poll(wait_ms=60_000).num_rows == 2


def test_a_client_of_a_replica_alone_is_told_where_the_owner_is(pair: Pair) -> None:
    with lakebed.open(pair.replica.url, ClientConfig(retry_ms=600_000)) as log:
        for write in (
            lambda: log.append("orders", b"1"),
            lambda: log.append_batch("orders", [b"1"]),
            lambda: log.create_topic("more"),
            lambda: log.consumer("g", ["orders"]),
            lambda: log.producer("p").send("orders", b"1").result(),
        ):
            with pytest.raises(NotOwnerError) as refused:
                write()
            assert refused.value.facts["address"] == pair.owner.url
        assert values(log) == [], "it reads on at the replica"


def test_a_client_with_several_addresses_finds_the_owner(pair: Pair) -> None:
    places = ",".join(server.url.partition("://")[2] for server in (pair.replica, pair.owner))
    with lakebed.open(f"lakebed://{places}") as log:
        assert log.append("orders", b"1").offset == 0
        assert values(log) == [b"1"]
        with log.consumer("g", ["orders"]) as consumer:
            assert consumer.poll(wait_ms=None).num_rows == 1


def test_http_health_and_metrics(pair: Pair) -> None:
    pair.owner.log.append("orders", b"1")
    path = "/v1/topics/orders/records"
    until(lambda: json.loads(pair.ask(f"{path}?partition=0")[1])["records"])
    status, body = pair.ask(path, b'{"records": [{"value": "x"}]}')
    assert (status, json.loads(body)["code"]) == (421, "not_owner")
    assert pair.ask("/health/ready")[0] == 200
    metrics = pair.ask("/metrics")[1]
    assert b'lakebed_role{role="replica"} 1' in metrics
    assert b"lakebed_replica_lag_ms " in metrics
    pair.machines.take_away_store()
    until(lambda: pair.ask("/health/ready")[0] == 503)
    pair.machines.bring_back_store()
    until(lambda: pair.ask("/health/ready")[0] == 200)


def test_the_lease_names_the_address_that_is_advertised(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    config = ServeConfig(port=0, http_port=-1, advertise="shop.example.com")
    with Server(machines.open("a"), config) as server:
        lease = decode_lease(next(machines.store.glob("*/lease")).read_bytes())
        assert lease.address == f"lakebed://shop.example.com:{server.port}"


def test_stats_and_top_show_a_replica(pair: Pair) -> None:
    for command in ("stats", "top"):
        once = ["--once", "--interval", "0.05"] if command == "top" else []
        run = CliRunner().invoke(cli, [command, "--data", pair.replica.url, *once])
        assert run.exit_code == 0, run.output
        assert "behind" in run.stdout


def test_a_replica_in_a_process_follows_a_failover(tmp_path: Path) -> None:
    """The owner is lost; a standby takes over; what the replica shows is always a prefix."""
    servers = [StoreServer(tmp_path, name) for name in ("a", "b")]
    replica = StoreServer(tmp_path, "r", "--replica")
    try:
        for server in servers:
            server.start()
        until(lambda: any(server.is_owner for server in servers), "a server owns the log")
        owner = next(server for server in servers if server.is_owner)
        url = "lakebed://" + ",".join(server.place for server in servers)
        with lakebed.open(url, ClientConfig(retry_ms=600_000)) as log:
            log.create_topic("orders")
            log.append("orders", b"0")
            replica.start()
            with lakebed.open(f"lakebed://{replica.place}") as reader:
                for number in range(1, 40):
                    if number == 20:
                        owner.lose()
                    assert log.append("orders", b"%d" % number).offset == number
                    seen = values(reader)
                    assert seen == [b"%d" % each for each in range(len(seen))]
                until(lambda: len(values(reader)) == 40, "the replica has everything")
                stats = reader.stats().replica
                assert stats is not None
                assert stats.owner == "lakebed://" + next(
                    server.place for server in servers if server is not owner
                )
    finally:
        for server in [*servers, replica]:
            server.end()
