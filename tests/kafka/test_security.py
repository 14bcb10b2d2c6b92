"""Kafka clients are known by their tokens, may do what rules allow, and are told otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import lakebed
from lakebed.client.config import ClientConfig
from tests.kafka.clients import CLIENTS, Confluent, Sent
from tests.serve.certificates import Authority
from tests.serve.support import ServerProcess
from tests.waiting import PATIENCE_SECONDS, until

KafkaError = confluent_kafka.KafkaError


def audited(log: lakebed.Log) -> set[str]:
    return {row["value"]["call"] for row in log.read("__audit", 0, "earliest").to_pylist()}


class Secured(NamedTuple):
    """A server with TLS that knows three callers."""

    server: ServerProcess
    broker: str
    ca: str
    writer: str
    reader: str
    admin: str

    def options(self, token: str, mechanism: str = "PLAIN") -> dict[str, Any]:
        options = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.ca,
            "sasl.mechanism": mechanism,
        }
        if mechanism == "PLAIN":
            return {**options, "sasl.username": "any", "sasl.password": token}
        return {**options, "oauth_cb": lambda _: (token, 2e9)}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    pair = authority.sign("server")
    with lakebed.Log.open(folder / "log") as log:
        log.create_topic("orders")
        log.create_topic("secrets")
        admin = str(log.access.create_token("root", roles=["admin"]))
        log.access.allow("order-writer", "write", "orders")
        log.access.allow("order-reader", "read", "orders")
        log.access.allow("order-reader", "group", "readers")
        writer = str(log.access.create_token("ann", roles=["order-writer"]))
        reader = str(log.access.create_token("bob", roles=["order-reader"]))
    settings = (f"tls_cert={pair.certificate}", f"tls_key={pair.key}")
    with ServerProcess(folder / "log", *settings, kafka_port=0) as server:
        broker = f"localhost:{server.kafka_port}"
        yield Secured(server, broker, authority.certificate, writer, reader, admin)


def test_a_writer_writes_and_a_reader_reads(secured: Secured) -> None:
    client = Confluent()
    for mechanism in ("PLAIN", "OAUTHBEARER"):
        options = secured.options(secured.writer, mechanism)
        client.produce(secured.broker, "orders", [Sent(mechanism.encode())], **options)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": secured.broker,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            **secured.options(secured.reader),
        }
    )
    try:
        consumer.subscribe(["orders"])
        found = [consumer.poll(PATIENCE_SECONDS).value() for _ in range(2)]
        assert found == [b"PLAIN", b"OAUTHBEARER"]
    finally:
        consumer.close()


def test_the_broker_is_advertised_under_the_name_that_the_client_used(secured: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": secured.broker, **secured.options(secured.admin)})
    (found,) = admin.list_topics(timeout=PATIENCE_SECONDS).brokers.values()
    assert f"{found.host}:{found.port}" == secured.broker


def test_what_no_rule_allows_is_refused(secured: Secured) -> None:
    failed: list[Any] = []
    options = {"bootstrap.servers": secured.broker, **secured.options(secured.writer)}
    producer = confluent_kafka.Producer(options)
    for topic in ("secrets", "new-topic"):
        try:
            producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error.code()))
            producer.flush(PATIENCE_SECONDS)
        except confluent_kafka.KafkaException as error:
            failed.append(error.args[0].code())
    assert failed == [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2
    admin = AdminClient(options)
    (future,) = admin.create_topics([NewTopic("made", 1, 1)]).values()
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        future.result(PATIENCE_SECONDS)
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert set(admin.list_topics(timeout=PATIENCE_SECONDS).topics) == {"orders"}
    consumer = confluent_kafka.Consumer(
        {**options, **secured.options(secured.reader), "group.id": "others"}
    )
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(PATIENCE_SECONDS)
        assert message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    finally:
        consumer.close()
    url = f"lakebed+tls://localhost:{secured.server.port}"
    with lakebed.open(url, ClientConfig(token=secured.admin, ca=secured.ca)) as log:
        until(lambda: {"create_topic", "groups_join"} <= audited(log))


@pytest.mark.parametrize("token", ["", "lkb_0123456789abcdef_" + "x" * 43, "nonsense"])
def test_a_wrong_token_is_refused(secured: Secured, token: str) -> None:
    errors: list[int] = []
    client = AdminClient(
        {
            "bootstrap.servers": secured.broker,
            **secured.options(token or "-"),
            "error_cb": lambda error: errors.append(error.code()),
        }
    )
    until(lambda: client.poll(0.1) is not None and KafkaError._AUTHENTICATION in errors)


def test_a_client_without_a_token_gets_nothing(secured: Secured) -> None:
    options = {"security.protocol": "SSL", "ssl.ca.location": secured.ca}
    admin = AdminClient({"bootstrap.servers": secured.broker, **options})
    with pytest.raises(confluent_kafka.KafkaException):
        admin.list_topics(timeout=3)


def test_a_token_that_is_revoked_ends_its_connections(tmp_path: Path) -> None:
    with lakebed.Log.open(tmp_path / "log") as log:
        log.create_topic("orders")
        root = str(log.access.create_token("root", roles=["admin"]))
        token = str(log.access.create_token("ann", roles=["writer"]))
    with ServerProcess(tmp_path / "log", kafka_port=0) as server:
        errors: list[int] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{server.kafka_port}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "ann",
                "sasl.password": token,
                "error_cb": lambda error: errors.append(error.code()),
            }
        )
        producer.produce("orders", b"before")
        assert producer.flush(PATIENCE_SECONDS) == 0
        with server.open(token=root) as served:
            (held,) = [each for each in served.access.tokens() if each.principal == "ann"]
            served.access.revoke_token(held.id)

        def is_ended() -> bool:
            with contextlib.suppress(BufferError):  # what cannot be sent is kept
                producer.produce("orders", b"after")
            producer.poll(0.1)
            return KafkaError._AUTHENTICATION in errors

        until(is_ended)  # within a second, after which the token is looked at again
        producer.purge()


def test_a_client_that_is_faster_than_it_may_be_is_held_back(tmp_path: Path) -> None:
    with ServerProcess(
        tmp_path / "log", "principal_requests_per_second=40", kafka_port=0
    ) as server:
        broker = f"127.0.0.1:{server.kafka_port}"
        records = [Sent(b"%d" % number) for number in range(60)]
        Confluent().produce(broker, "slow", records, **{"batch.num.messages": 1})
        assert [each.value for each in CLIENTS[0].consume(broker, "slow", 60)] == [
            each.value for each in records
        ]
