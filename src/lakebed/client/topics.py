"""The topics of a served log, as its writers need them."""

from __future__ import annotations

import pyarrow as pa

from lakebed.api.lookup import no_topic
from lakebed.client.connection import Connection
from lakebed.errors import TopicNotFoundError
from lakebed.host.clock import Clock, SystemClock
from lakebed.state.values import Topic
from lakebed.topic.storage_schemas import StorageSchemas


class RemoteTopics:
    """Topics as they were when the server was last asked about them. Any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.clock: Clock = SystemClock()
        self._names: dict[str, int] = {}
        self._topics: dict[int, Topic] = {}
        self._schemas = StorageSchemas()

    def topic_named(self, name: str) -> Topic:
        """Return a topic as it was when it was last looked up; ask the server if it never was.

        Raises `TopicNotFoundError` if the server does not know it.
        """
        if not isinstance(name, str):
            raise no_topic(name)
        return self.find(name) or self.look(name)

    def find(self, name: str) -> Topic | None:
        """Return a topic that was looked up before."""
        topic_id = self._names.get(name)
        return None if topic_id is None else self._topics.get(topic_id)

    def forget(self, name: str) -> None:
        """Ask the server about a topic before the next record goes to it."""
        self._names.pop(name, None)

    def look(self, name: str) -> Topic:
        """Ask the server about a topic."""
        try:
            description = self._connection.call("topic", name=name)
        except TopicNotFoundError:
            self._names.pop(name, None)
            raise
        topic_id, current_name, partitions, schemas, config, created_us = description
        topic = Topic(topic_id, current_name, partitions, schemas, config, created_us)
        before = self._topics.get(topic_id)
        self._names[current_name] = topic_id
        if before == topic:
            return before  # targets are told apart by their topic
        self._topics[topic_id] = topic
        return topic

    def has_changed(self, name: str) -> bool:
        """Ask again about a topic; return whether it is another one than it was."""
        before = self.find(name)
        return self.look(name) is not before

    def topic(self, topic_id: int) -> Topic | None:
        """Return a topic that was looked up before, by its id."""
        return self._topics.get(topic_id)

    def look_up(self, topic_id: int) -> Topic:
        """Return a topic that a record was encoded for, by its id."""
        return self._topics[topic_id]

    def schema(self, topic: Topic, version: int) -> pa.Schema:
        """Return the storage schema of a topic's schema version; 0 for a raw topic."""
        return self._schemas.find(topic, version)
