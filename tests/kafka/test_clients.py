"""Unmodified Kafka clients against `lakebed serve`: what is written is what all of them read."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import confluent_kafka
import pytest

from tests.kafka.clients import CLIENTS, Confluent, Sent
from tests.serve.support import ServerProcess
from tests.waiting import PATIENCE_SECONDS

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.name)

RECORDS = [
    Sent(b"plain"),
    Sent(b"with a key", b"k"),
    Sent(None, b"tombstone"),
    Sent(None, None),
    Sent(b"", b""),
    Sent(b"headers", None, (("a", b"1"), ("a", b"2"), ("b", None), ("a", b""))),
    Sent(b"old", None, (), 1_000),
    *(Sent(b"many %d" % number, b"%d" % number) for number in range(100)),
]
SIMPLE = RECORDS[7:]


@every_client
def test_records_come_back_as_they_were_produced(client: Any, broker: str) -> None:
    topic, records = f"records-{client.name}", [each for each in RECORDS if client.takes(each)]
    assert client.produce(broker, topic, records) == list(range(len(records)))
    for reader in CLIENTS:
        assert reader.consume(broker, topic, len(records)) == records


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read(codec: str, broker: str) -> None:
    client, records = Confluent(), [Sent(b"value %d" % number * 10) for number in range(500)]
    client.produce(
        broker, f"codec-{codec}", records, **{"compression.type": codec, "linger.ms": 50}
    )
    assert client.consume(broker, f"codec-{codec}", len(records)) == records


@every_client
def test_a_group_goes_on_where_it_committed(client: Any, broker: str) -> None:
    topic, group = f"group-{client.name}", f"group of {client.name}"
    client.produce(broker, topic, SIMPLE[:50])
    assert client.consume(broker, topic, 50, group) == SIMPLE[:50]
    client.produce(broker, topic, SIMPLE[50:60])
    assert client.consume(broker, topic, 10, group) == SIMPLE[50:60]


def test_an_idempotent_producer_of_librdkafka_writes_each_record_once(broker: str) -> None:
    client = Confluent()
    records = [Sent(b"%d" % number) for number in range(1_000)]
    client.produce(broker, "idempotent", records, **{"enable.idempotence": True, "linger.ms": 1})
    assert client.consume(broker, "idempotent", 1_000) == records


def test_the_same_records_by_flight(server: ServerProcess, broker: str) -> None:
    Confluent().produce(broker, "by-flight", RECORDS[:6])
    with server.open() as log:
        rows = log.read("by-flight", 0, "earliest").to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [
        (each.key, each.value) for each in RECORDS[:6]
    ]
    names = [name for name, _ in rows[5]["headers"]]
    assert len(names) == len(set(names)) == 4


def test_a_record_written_by_flight_reaches_a_kafka_consumer_that_waits(
    server: ServerProcess, broker: str
) -> None:
    with server.open() as log:
        log.create_topic("to-kafka")
        consumer = confluent_kafka.Consumer({"bootstrap.servers": broker, "group.id": "g"})
        try:
            consumer.assign([confluent_kafka.TopicPartition("to-kafka", 0, 0)])
            assert consumer.poll(0.5) is None
            log.append("to-kafka", b"late")
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.value() == b"late"
        finally:
            consumer.close()


def test_offsets_by_time_are_exact(broker: str) -> None:
    records = [Sent(b"%d" % number, time_ms=1_000 + 10 * number) for number in range(20)]
    Confluent().produce(broker, "times", records)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker, "group.id": "t"})
    try:
        for time_ms, expected in ((0, 0), (1_000, 0), (1_001, 1), (1_190, 19), (1_191, -1)):
            asked = confluent_kafka.TopicPartition("times", 0, time_ms)
            (found,) = consumer.offsets_for_times([asked], timeout=PATIENCE_SECONDS)
            assert found.offset == expected
        place = confluent_kafka.TopicPartition("times", 0)
        assert consumer.get_watermark_offsets(place, timeout=PATIENCE_SECONDS) == (0, 20)
    finally:
        consumer.close()


def test_an_idempotent_producer_survives_a_kill_of_the_server(tmp_path: Any) -> None:
    with ServerProcess(tmp_path / "log", kafka_port=0) as server:
        broker = f"127.0.0.1:{server.kafka_port}"
        outcomes: list[Any] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
            }
        )

        def delivered(error: Any, _: Any) -> None:
            outcomes.append(error)

        for number in range(400):
            producer.produce("killed", b"%d" % number, partition=0, on_delivery=delivered)
            producer.poll(0.001)
            if number == 200:
                server.kill()
                server.start()
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert outcomes == [None] * 400
        expected = [b"%d" % number for number in range(400)]
        found = Confluent().consume(broker, "killed", 400)
        assert [each.value for each in found] == expected
        with server.open() as log:
            assert log.describe_topic("killed").partitions[0].end == 400


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_writes_and_reads(broker: str) -> None:
    subprocess.run(
        ["kcat", "-b", broker, "-P", "-t", "kcat", "-p", "0", "-z", "lz4"],
        input=b"one\ntwo\n",
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    read = subprocess.run(
        ["kcat", "-b", broker, "-C", "-t", "kcat", "-o", "beginning", "-e", "-q"],
        capture_output=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert read.stdout == b"one\ntwo\n"
