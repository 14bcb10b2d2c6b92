"""Produce and consume records with each of the clients, in a group or without one."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka

from tests.waiting import PATIENCE_SECONDS

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of how it reads its own files
    import kafka

_MS = int(PATIENCE_SECONDS * 1000)


class Sent(NamedTuple):
    """A record, as it is produced and as it is expected back."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    time_ms: int = 1_700_000_000_000


class Confluent:
    """librdkafka."""

    name = "confluent"

    def takes(self, _: Sent) -> bool:
        return True

    def produce(self, broker: str, topic: str, records: Sequence[Sent], **config: Any) -> list[int]:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker, "message.timeout.ms": _MS, **config}
        )
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for each in records:
            producer.produce(
                topic,
                each.value,
                each.key,
                0,
                on_delivery=delivered,
                timestamp=each.time_ms,
                headers=list(each.headers),
            )
        assert producer.flush(PATIENCE_SECONDS) == 0
        return offsets

    def consume(self, broker: str, topic: str, count: int, group: str = "") -> list[Sent]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": group or "none",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        try:
            if group:
                consumer.subscribe([topic])
            else:
                consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            found: list[Sent] = []
            while len(found) < count:
                message = consumer.poll(PATIENCE_SECONDS)
                assert message is not None
                assert message.error() is None, message.error()
                headers = tuple(message.headers() or ())
                moment = message.timestamp()[1]
                found.append(Sent(message.value(), message.key(), headers, moment))
            if group:
                consumer.commit(asynchronous=False)
            return found
        finally:
            consumer.close()


class KafkaPython:
    """kafka-python, whose producer is idempotent unless told otherwise."""

    name = "kafka-python"

    def takes(self, record: Sent) -> bool:
        """Return whether the client itself allows to produce a record."""
        has_nulls = any(value is None for _, value in record.headers)
        return not has_nulls and not (record.key is None and record.value is None)

    def produce(self, broker: str, topic: str, records: Sequence[Sent], **config: Any) -> list[int]:
        producer = kafka.KafkaProducer(bootstrap_servers=broker, **config)
        try:
            futures = [
                producer.send(
                    topic,
                    value=each.value,
                    key=each.key,
                    headers=list(each.headers),
                    partition=0,
                    timestamp_ms=each.time_ms,
                )
                for each in records
            ]
            return [each.get(timeout=PATIENCE_SECONDS).offset for each in futures]
        finally:
            producer.close()

    def consume(self, broker: str, topic: str, count: int, group: str = "") -> list[Sent]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=broker,
            group_id=group or None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=_MS,
        )
        try:
            if group:
                consumer.subscribe([topic])
            else:
                consumer.assign([kafka.TopicPartition(topic, 0)])
            found = [
                Sent(each.value, each.key, tuple(each.headers), each.timestamp)
                for _, each in zip(range(count), consumer, strict=False)
            ]
            if group:
                consumer.commit()
            return found
        finally:
            consumer.close()

    def admin(self, broker: str) -> Any:
        return kafka.KafkaAdminClient(bootstrap_servers=broker)


class AioKafka:
    """aiokafka."""

    name = "aiokafka"

    def takes(self, record: Sent) -> bool:
        """Return whether the client itself allows to produce a record."""
        return record.key is not None or record.value is not None

    def produce(self, broker: str, topic: str, records: Sequence[Sent], **config: Any) -> list[int]:
        return asyncio.run(self._produce(broker, topic, records, config))

    async def _produce(
        self, broker: str, topic: str, records: Sequence[Sent], config: dict[str, Any]
    ) -> list[int]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker, **config)
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    each.value,
                    each.key,
                    partition=0,
                    timestamp_ms=each.time_ms,
                    headers=list(each.headers),
                )
                for each in records
            ]
            return [(await each).offset for each in futures]
        finally:
            await producer.stop()

    def consume(self, broker: str, topic: str, count: int, group: str = "") -> list[Sent]:
        return asyncio.run(self._consume(broker, topic, count, group))

    async def _consume(self, broker: str, topic: str, count: int, group: str) -> list[Sent]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker,
            group_id=group or None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            if group:
                consumer.subscribe([topic])
            else:
                consumer.assign([aiokafka.TopicPartition(topic, 0)])
            found: list[Sent] = []
            async for each in consumer:
                found.append(Sent(each.value, each.key, tuple(each.headers), each.timestamp))
                if len(found) == count:
                    break
            if group:
                await consumer.commit()
            return found
        finally:
            await consumer.stop()


CLIENTS: list[Any] = [Confluent(), KafkaPython(), AioKafka()]
