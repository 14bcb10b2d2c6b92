"""Topics: making, describing, changing and removing them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from lakebed import limits
from lakebed.api.lookup import no_topic
from lakebed.config import TopicConfig, stored_config
from lakebed.config.checks import is_whole
from lakebed.engine.core import Core
from lakebed.errors import (
    InvalidArgumentError,
    SchemaChangeError,
    TopicExistsError,
    TopicNotFoundError,
)
from lakebed.reports.topics import PartitionInfo, TopicInfo
from lakebed.state.commands import (
    AddPartitions,
    AlterTopic,
    Command,
    CreateTopic,
    DeleteTopic,
    PurgeTopic,
)
from lakebed.state.values import Partition, Topic
from lakebed.topic.schema import check_change, check_schema, decode_schema, encode_schema
from lakebed.types import TopicName, is_internal


class Topics:
    """The topics of a log. Any thread."""

    def __init__(
        self, core: Core, submit: Callable[[Command], Any], default_partitions: int
    ) -> None:
        self._core = core
        self._submit = submit
        self._default_partitions = default_partitions

    def create(
        self,
        name: str,
        partitions: int | None,
        schema: pa.Schema | None,
        config: Mapping[str, object] | TopicConfig | None,
    ) -> TopicInfo:
        """Make a topic, or raise `TopicExistsError`."""
        checked = TopicName(name)
        count = self._count(self._default_partitions if partitions is None else partitions)
        settings = TopicConfig.of(config or {})
        encoded = b"" if schema is None else encode_schema(check_schema(schema))
        if checked in self._core.state.names:
            raise TopicExistsError("the topic exists", topic=checked)
        time_us = self._core.clock.time_us()
        changed = tuple(sorted(settings.changed().items()))
        topic_id = self._submit(CreateTopic(str(checked), count, encoded, changed, time_us))
        schemas = (encoded,) if encoded else ()
        made = Topic(topic_id, str(checked), count, schemas, changed, time_us)
        return self._describe(self._core.topic(topic_id) or made)  # deleted, perhaps, by now

    def get_or_create(
        self,
        name: str,
        partitions: int | None,
        schema: pa.Schema | None,
        config: Mapping[str, object] | TopicConfig | None,
    ) -> TopicInfo:
        """Return a topic as it is, or make it; again if it is deleted between these two steps."""
        while True:
            try:
                return self.create(name, partitions, schema, config)
            except TopicExistsError:
                with contextlib.suppress(TopicNotFoundError):
                    return self.describe(name)

    def ensure_internal(self, name: str, schema: pa.Schema, config: TopicConfig) -> None:
        """Make a topic of the log's own, of one partition, unless there is one."""
        if name in self._core.state.names:
            return
        time_us = self._core.clock.time_us()
        changed = tuple(sorted(config.changed().items()))
        with contextlib.suppress(TopicExistsError):  # another thread made it meanwhile
            encoded = encode_schema(check_schema(schema))
            self._submit(CreateTopic(name, 1, encoded, changed, time_us))

    def describe(self, name: str) -> TopicInfo:
        """Return everything about a topic but its records."""
        return self._describe(self.find(name))

    def _describe(self, topic: Topic) -> TopicInfo:
        return TopicInfo(
            name=topic.name,
            id=topic.id,
            partitions=tuple(
                self._partition(topic, partition) for partition in range(topic.partitions)
            ),
            schema=self.schema(topic),
            schema_version=len(topic.schemas),
            config=asdict(stored_config(topic.config)),
            created_us=topic.created_us,
        )

    def alter(
        self,
        name: str,
        config: Mapping[str, object] | TopicConfig | None,
        schema: pa.Schema | None,
        partitions: int | None,
    ) -> TopicInfo:
        """Change settings, add nullable fields to the schema, add partitions."""
        topic = self.find(name)
        count = None if partitions is None else self._count(partitions)
        settings = TopicConfig.of(config or {}, stored_config(topic.config))
        encoded = self._change_schema(topic, schema)
        if count is not None and count != topic.partitions:
            self._submit(AddPartitions(topic.id, count))
        changed = tuple(sorted(settings.changed().items()))
        if encoded or changed != topic.config:
            self._submit(AlterTopic(topic.id, changed, encoded, len(topic.schemas)))
        return self.describe(name)

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Let a topic have so many partitions in all; they can only grow."""
        topic = self.find(name)
        self._submit(AddPartitions(topic.id, self._count(partitions)))
        return self.describe(name)

    def purge(self, name: str) -> None:
        """Remove every record; offsets go on where they were."""
        self._submit(PurgeTopic(self.find(name).id))

    def delete(self, name: str) -> None:
        """Remove a topic with everything in it."""
        self._submit(DeleteTopic(self.find(name).id))

    def names(self) -> list[str]:
        """List the topics, sorted, without those of the log's own."""
        return sorted(name for name in list(self._core.state.names) if not is_internal(name))

    def partitions(self) -> list[tuple[str, int]]:
        """List the partitions of the topics, without those of the log's own."""
        return [
            (topic.name, partition)
            for topic in self.every()
            if not is_internal(topic.name)
            for partition in range(topic.partitions)
        ]

    def every(self) -> list[Topic]:
        """Return all topics, those of the log's own too, sorted by name."""
        return sorted(self._core.state.topics.values(), key=lambda topic: topic.name)

    def find(self, name: str) -> Topic:
        """Find a topic, or raise `TopicNotFoundError`."""
        topic = self._core.state.topic(name) if isinstance(name, str) else None
        if topic is None:
            raise no_topic(name)
        return topic

    def schema(self, topic: Topic) -> pa.Schema | None:
        """Return the newest schema; None for a raw topic."""
        return decode_schema(topic.schemas[-1]) if topic.schemas else None

    def _change_schema(self, topic: Topic, schema: pa.Schema | None) -> bytes:
        if schema is None:
            return b""
        wanted, now = check_schema(schema), self.schema(topic)
        if now is None:
            raise SchemaChangeError("a raw topic cannot become a typed one", topic=topic.name)
        check_change(now, wanted)
        return b"" if wanted.equals(now) else encode_schema(wanted)

    def _partition(self, topic: Topic, partition: int) -> PartitionInfo:
        state = self._core.state.partitions.get((topic.id, partition), Partition())
        return PartitionInfo(
            partition=partition,
            earliest=state.low,
            end=state.end,
            segments=len(state.segments),
            segment_bytes=sum(segment.file_bytes for segment in state.segments),
            memtable_records=state.end - state.flushed,
        )

    def _count(self, partitions: object) -> int:
        if not is_whole(partitions, 1, limits.PARTITIONS_MAX):
            raise InvalidArgumentError(
                f"partitions must be an integer from 1 to {limits.PARTITIONS_MAX}",
                got=repr(partitions),
            )
        return partitions
