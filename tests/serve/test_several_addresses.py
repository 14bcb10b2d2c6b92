"""A client whose URL names several servers finds the owner of the log, and follows it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

import lakebed
import lakebed.aio
from lakebed import ClientConfig, Log, ServeConfig
from lakebed.client.address import parse_addresses, url_of
from lakebed.client.route import OwnerRoute
from lakebed.errors import (
    InvalidArgumentError,
    LakebedError,
    NotOwnerError,
    ServerUnavailableError,
)
from lakebed.serve.server import Server
from lakebed.serve.standby_listener import StandbyListener
from tests.s3 import free_port
from tests.serve.support import ServerProcess
from tests.waiting import until

_LOCAL = ServeConfig(port=0, http_port=-1)


class Standby(NamedTuple):
    """A server that does not own the log."""

    listener: StandbyListener
    owner: list[str]
    """The address that it names, if any."""

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.listener.port}"


@pytest.fixture
def standby() -> Iterator[Standby]:
    owner: list[str] = []

    def refuse() -> NotOwnerError:
        return NotOwnerError("this server is a standby", address=owner[0] if owner else "")

    listener = StandbyListener(
        ServeConfig(port=0, http_port=0), refuse, lambda: {"role": "standby", "term": 7}
    )
    yield Standby(listener, owner)
    listener.stop()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Server]:
    with Server(Log.open(tmp_path / "owner"), _LOCAL) as server:
        yield server


def _place(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


# URLs


def test_a_url_names_servers_in_order_and_each_once() -> None:
    urls = [address.url for address in parse_addresses("lakebed+tls://a:1,b,a:1,[::1]:3/")]
    assert urls == ["lakebed+tls://a:1", "lakebed+tls://b", "lakebed+tls://[::1]:3"]
    (only,) = parse_addresses("lakebed://a")
    assert only.location == "grpc+tcp://a:4747"
    (socket,) = parse_addresses("lakebed+unix:///run/a,b")
    assert socket.location == "grpc+unix:///run/a,b"


@pytest.mark.parametrize(
    "url",
    [
        "lakebed://a,,b",
        "lakebed://a,b,",
        "lakebed://a:1,lakebed://b:1",
        "lakebed://a:1,b:x",
        "lakebed://a:1,user@b:1",
        "lakebed://a:1,b:1/topic",
        "http://a:1,b:1",
        "lakebed://" + ",".join(f"host{number}" for number in range(17)),
    ],
)
def test_a_url_with_a_mistake_is_refused_before_a_connection_is_made(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        lakebed.open(url)


def test_a_folder_that_looks_like_several_addresses_is_taken_for_a_mistake() -> None:
    assert url_of("a:4747,b:4747") == "lakebed://a:4747,b:4747"
    assert url_of("lakebed+tls:/a:1,[::1]:2") == "lakebed+tls://a:1,[::1]:2"
    assert url_of("a,b") == ""


# The route


def _error(address: object) -> NotOwnerError:
    return NotOwnerError("not the owner", address=address)


def test_a_client_follows_the_owner_that_a_server_names() -> None:
    route = OwnerRoute("lakebed+tls://a:1,b:1,c:1")
    first = route.current
    route.follow(first, _error("lakebed+tls://c:1"))
    assert route.current.url == "lakebed+tls://c:1"
    route.follow(first, _error("lakebed+tls://b:1"))  # an old answer of a server left before
    assert route.current.url == "lakebed+tls://c:1"
    route.follow(route.current, _error("lakebed+tls://d:9"))  # not in the URL
    assert route.current.url == "lakebed+tls://d:9"
    route.leave(route.current)
    assert route.current == first


@pytest.mark.parametrize(
    "address",
    [
        "",
        None,
        7,
        "nonsense",
        "lakebed://c:1",
        "lakebed+unix:///c",
        "lakebed+tls://a:1",
        "http://c",
    ],
)
def test_a_client_goes_to_the_next_server_without_an_owner_that_it_may_use(address: object) -> None:
    route = OwnerRoute("lakebed+tls://a:1,b:1")
    route.follow(route.current, _error(address))
    assert route.current.url == "lakebed+tls://b:1"
    route.leave(route.current)
    assert route.current.url == "lakebed+tls://a:1"


# Clients


def test_a_client_passes_over_a_standby_and_over_a_server_that_is_gone(
    owner: Server, standby: Standby
) -> None:
    gone = f"127.0.0.1:{free_port()}"
    with lakebed.open(f"lakebed://{gone},{standby.place},{_place(owner)}") as log:
        log.create_topic("a", 1)
        assert log.append("a", b"1").offset == 0
        assert log.read("a").num_rows == 1


def test_a_client_of_a_standby_alone_follows_it_to_the_owner(
    owner: Server, standby: Standby
) -> None:
    standby.owner.append(owner.url)
    with lakebed.open(f"lakebed://{standby.place}") as log:
        assert log.topics() == []


def test_a_log_without_an_owner_is_waited_for_and_then_refused(standby: Standby) -> None:
    with pytest.raises(NotOwnerError) as caught:
        lakebed.open(f"lakebed://{standby.place}", ClientConfig(retry_ms=300))
    assert caught.value.retriable


def test_servers_of_two_logs_in_one_url_are_refused(tmp_path: Path, owner: Server) -> None:
    with Server(Log.open(tmp_path / "other"), _LOCAL) as other:
        url = f"lakebed://{_place(other)},{_place(owner)}"
        with lakebed.open(url, ClientConfig(retry_ms=10_000)) as log:
            log.topics()
            other.stop()
            with pytest.raises(InvalidArgumentError, match="must serve one log"):
                log.topics()


def test_asyncio_and_several_addresses(owner: Server, standby: Standby) -> None:
    async def work() -> int:
        async with lakebed.aio.open(f"lakebed://{standby.place},{_place(owner)}") as log:
            await log.create_topic("a", 1)
            await log.append("a", b"1")
            return int((await log.read("a")).num_rows)

    assert asyncio.run(work()) == 1


# HTTP


def test_http_of_a_standby_shows_its_role_and_names_the_owner(standby: Standby) -> None:
    standby.owner.append("lakebed://owner:4747")
    base = f"http://127.0.0.1:{standby.listener.http_port}"
    with closing(urllib.request.urlopen(f"{base}/health/live")) as answer:
        assert json.load(answer) == {"status": "live", "role": "standby"}
    with closing(urllib.request.urlopen(f"{base}/metrics")) as answer:
        text = answer.read().decode()
    assert 'lakebed_role{role="standby"} 1' in text
    assert "lakebed_term 7" in text
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{base}/health/ready")
    with closing(caught.value) as refused:
        assert refused.code == 503
        assert json.load(refused)["role"] == "standby"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{base}/v1/topics", data=b"{}")
    with closing(caught.value) as refused:
        assert refused.code == 421
        body = json.load(refused)
    assert (body["code"], body["retriable"]) == ("not_owner", True)
    assert body["facts"]["address"] == "lakebed://owner:4747"


# What is in flight when the owner changes


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_producers_and_consumers_continue_exactly_once_at_another_server(
    tmp_path: Path, how: str
) -> None:
    """The second server opens the same folder, as one that takes over has the same state."""
    records = 400
    with ExitStack() as stack:
        first = stack.enter_context(ServerProcess(tmp_path / "log"))
        second = ServerProcess(tmp_path / "log")
        second.port = free_port()
        stack.push(second)  # killed at the end, after the client is closed
        url = f"{first.url},127.0.0.1:{second.port}"
        log = stack.enter_context(lakebed.open(url, ClientConfig(retry_ms=120_000)))
        log.create_topic("a", 1)
        consumer = stack.enter_context(log.consumer("g", ["a"]))
        producer = stack.enter_context(log.producer("p"))
        sent = [producer.send("a", b"%d" % number) for number in range(records // 2)]
        if how == "killed":
            first.kill()
        else:
            first.stop()
        second.start()
        sent += [producer.send("a", b"%d" % number) for number in range(records // 2, records)]
        producer.flush()
        assert [item.result().offset for item in sent] == list(range(records))
        values: list[bytes] = []

        def received() -> bool:
            values.extend(consumer.poll(1000).column("value").to_pylist())
            return len(values) >= records

        until(received, "every record is read")
        assert values == [b"%d" % number for number in range(records)]


def test_the_errors_of_a_client_without_any_server_name_the_url() -> None:
    url = f"lakebed://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with pytest.raises(ServerUnavailableError) as caught:
        lakebed.open(url, ClientConfig(retry_ms=200))
    assert isinstance(caught.value, LakebedError)
    assert caught.value.facts["url"] == url
