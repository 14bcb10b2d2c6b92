"""What one client changes, the others go on with: schemas, partitions, topics made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Log, ServeConfig
from lakebed.errors import TopicNotFoundError
from lakebed.serve.server import Server
from tests.engine.support import PRICE, everything, inner, quiet, rows

WIDER = PRICE.append(pa.field("currency", pa.string()))
TEA = {"item": "tea", "price": 1}
RUM = {"item": "rum", "price": 2, "currency": "GBP"}


@pytest.fixture
def clients() -> Iterator[tuple[Log, Log]]:
    """Two clients of one server."""
    config = ServeConfig(port=0, http_port=-1, audit=False)
    with (
        Server(inner(quiet()), config) as server,
        lakebed.open(server.url) as one,
        lakebed.open(server.url) as other,
    ):
        yield one, other


def by_producer(log: Log, value: Any, **more: Any) -> object:
    with log.producer(linger_ms=0) as producer:
        return producer.send("t", value, **more).result(600)


def by_transaction(log: Log, value: Any, **more: Any) -> None:
    with log.transaction() as transaction:
        transaction.append("t", value, **more)


def by_transaction_batch(log: Log, value: Any, **more: Any) -> None:
    with log.transaction() as transaction:
        transaction.append_batch("t", [{"value": value}], **more)


WAYS: dict[str, Callable[..., object]] = {
    "append": lambda log, value, **more: log.append("t", value, **more),
    "append_async": lambda log, value, **more: log.append_async("t", value, **more).result(600),
    "append_batch": lambda log, value, **more: log.append_batch("t", [{"value": value}], **more),
    "append_batch_async": lambda log, value, **more: log.append_batch_async(
        "t", [{"value": value}], **more
    ).result(600),
    "producer": by_producer,
    "transaction": by_transaction,
    "transaction batch": by_transaction_batch,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_field_that_another_client_added_can_be_written(
    clients: tuple[Log, Log], way: str
) -> None:
    one, other = clients
    one.create_topic("t", 1, PRICE)
    WAYS[way](one, TEA)
    other.alter_topic("t", schema=WIDER)
    WAYS[way](one, TEA)
    WAYS[way](one, RUM)
    WAYS[way](other, RUM)
    assert rows(one, "t") == [{**TEA, "currency": None}] * 2 + [RUM] * 2
    assert rows(other, "t") == rows(one, "t")


@pytest.mark.parametrize("way", WAYS)
def test_a_partition_that_another_client_added_can_be_written(
    clients: tuple[Log, Log], way: str
) -> None:
    one, other = clients
    one.create_topic("t", 1)
    WAYS[way](one, b"a", partition=0)
    other.add_partitions("t", 3)
    WAYS[way](one, b"b", partition=2)
    assert everything(other, "t") == [b"a", b"b"]


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_that_another_client_made_anew_can_be_written(
    clients: tuple[Log, Log], way: str
) -> None:
    """What was on its way to the old one is refused at most once."""
    one, other = clients
    one.create_topic("t", 2)
    WAYS[way](one, b"old")
    other.delete_topic("t")
    other.create_topic("t", 1, PRICE)
    try:
        WAYS[way](one, TEA)
    except lakebed.LakebedError:
        WAYS[way](one, TEA)
    assert everything(other, "t") == [TEA]


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_of_the_same_kind_made_anew_refuses_at_most_once(
    clients: tuple[Log, Log], way: str
) -> None:
    one, other = clients
    one.create_topic("t")
    WAYS[way](one, b"old")
    other.delete_topic("t")
    other.create_topic("t")
    try:
        WAYS[way](one, b"new")
    except TopicNotFoundError:
        WAYS[way](one, b"new")
    assert everything(other, "t") == [b"new"]


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_that_another_client_deleted_is_missed_and_not_made(
    clients: tuple[Log, Log], way: str
) -> None:
    one, other = clients
    one.create_topic("t")
    WAYS[way](one, b"old")
    other.delete_topic("t")
    for _ in range(2):
        with pytest.raises(TopicNotFoundError):
            WAYS[way](one, b"new")
    assert one.topics() == other.topics() == []


def test_a_consumer_reads_what_another_client_writes_and_the_field_it_added(
    clients: tuple[Log, Log],
) -> None:
    one, other = clients
    one.create_topic("t", 1, PRICE)
    with one.consumer("g", ["t"]) as consumer:
        other.append("t", TEA)
        assert consumer.poll(30_000).column("value").to_pylist() == [TEA]
        other.alter_topic("t", schema=WIDER)
        other.append("t", RUM)
        assert consumer.poll(30_000).column("value").to_pylist() == [RUM]
