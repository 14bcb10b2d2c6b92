"""Admin clients: topics, partitions, settings, records and groups of a served log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.kafka.clients import Confluent, KafkaPython, Sent
from tests.serve.support import ServerProcess
from tests.waiting import PATIENCE_SECONDS

KafkaError = confluent_kafka.KafkaError


@pytest.fixture(scope="module")
def admin(broker: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker})


@pytest.fixture(scope="module")
def other(broker: str) -> Iterator[Any]:
    client = KafkaPython().admin(broker)
    yield client
    client.close()


def outcome(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(PATIENCE_SECONDS)


def code(futures: dict[Any, Any]) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        outcome(futures)
    found: int = caught.value.args[0].code()
    return found


def test_a_topic_is_created_changed_and_deleted(admin: AdminClient, server: ServerProcess) -> None:
    settings = {"cleanup.policy": "compact", "retention.ms": "1000", "flush.ms": "5"}
    new = NewTopic("made", 3, replication_factor=3, config=settings)
    outcome(admin.create_topics([new]))
    assert code(admin.create_topics([new])) == KafkaError.TOPIC_ALREADY_EXISTS
    outcome(admin.create_partitions([NewPartitions("made", 5)]))
    assert (
        code(admin.create_partitions([NewPartitions("made", 2)])) == KafkaError.INVALID_PARTITIONS
    )
    with server.open() as log:
        described = log.describe_topic("made")
    assert (described.config["cleanup"], described.config["retention_ms"]) == ("compact", 1000)
    assert len(described.partitions) == 5
    outcome(admin.delete_topics(["made"]))
    assert code(admin.delete_topics(["made"])) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    "config",
    [
        {"no.such.setting": "1"},
        {"message.timestamp.type": "LogAppendTime"},
        {"retention.ms": "soon"},
        {"segment.bytes": "1"},
        {"cleanup.policy": "burn"},
    ],
)
def test_a_setting_that_would_not_be_honoured_is_refused(
    admin: AdminClient, config: dict[str, str]
) -> None:
    new = NewTopic("refused", 1, replication_factor=1, config=config)
    assert code(admin.create_topics([new])) == KafkaError.INVALID_CONFIG


def test_settings_are_shown_and_changed(admin: AdminClient) -> None:
    outcome(admin.create_topics([NewTopic("shown", 1, replication_factor=1)]))
    resource = ConfigResource(ResourceType.TOPIC, "shown")
    shown = outcome(admin.describe_configs([resource]))
    assert (shown["retention.ms"].value, shown["min.insync.replicas"].value) == ("-1", "1")
    change = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "shown", incremental_configs=[change])
    outcome(admin.incremental_alter_configs([resource]))
    shown = outcome(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "shown")]))
    assert shown["retention.ms"].value == "5000"
    broker = outcome(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    assert broker["auto.create.topics.enable"].value == "true"


def test_records_are_deleted_up_to_an_offset(admin: AdminClient, broker: str) -> None:
    Confluent().produce(broker, "trimmed", [Sent(b"%d" % number) for number in range(10)])
    place = confluent_kafka.TopicPartition("trimmed", 0, 4)
    assert outcome(admin.delete_records([place])).low_watermark == 4
    beyond = confluent_kafka.TopicPartition("trimmed", 0, 11)
    assert code(admin.delete_records([beyond])) == KafkaError.OFFSET_OUT_OF_RANGE
    earliest = {confluent_kafka.TopicPartition("trimmed", 0): OffsetSpec.earliest()}
    assert outcome(admin.list_offsets(earliest)).offset == 4


def test_groups_are_listed_described_and_deleted(admin: AdminClient, broker: str) -> None:
    client = Confluent()
    client.produce(broker, "of-group", [Sent(b"x")])
    client.consume(broker, "of-group", 1, "a group/1")
    listed = admin.list_consumer_groups().result(PATIENCE_SECONDS).valid
    assert "a group/1" in {each.group_id for each in listed}
    described = outcome(admin.describe_consumer_groups(["a group/1"]))
    assert described.state == confluent_kafka.ConsumerGroupState.EMPTY
    asked = confluent_kafka.ConsumerGroupTopicPartitions("a group/1")
    offsets = outcome(admin.list_consumer_group_offsets([asked])).topic_partitions
    assert [(each.topic, each.partition, each.offset) for each in offsets] == [("of-group", 0, 1)]
    outcome(admin.delete_consumer_groups(["a group/1"]))
    assert code(admin.delete_consumer_groups(["a group/1"])) == KafkaError.GROUP_ID_NOT_FOUND


def test_the_cluster_is_described(admin: AdminClient, other: Any, broker: str) -> None:
    nodes = admin.describe_cluster().result(PATIENCE_SECONDS).nodes
    assert [f"{each.host}:{each.port}" for each in nodes] == [broker]
    assert other.describe_cluster()["controller_id"] == 1
    assert other.describe_log_dirs()


def test_a_topic_is_created_by_a_client_that_asks_for_it_unless_that_is_switched_off(
    tmp_path: Any,
) -> None:
    with ServerProcess(tmp_path / "log", "kafka_auto_create_topics=false", kafka_port=0) as server:
        broker = f"127.0.0.1:{server.kafka_port}"
        admin = AdminClient({"bootstrap.servers": broker})
        producer = confluent_kafka.Producer({"bootstrap.servers": broker})
        producer.list_topics("asked-for", PATIENCE_SECONDS)
        assert "asked-for" not in admin.list_topics(timeout=PATIENCE_SECONDS).topics
