"""The storage schemas of topics, which engine and client decode once for each version."""

from __future__ import annotations

import pyarrow as pa

from lakebed.state.values import Topic
from lakebed.topic.schema import decode_schema, storage_schema, value_type


class StorageSchemas:
    """Storage schemas by topic and version. Any thread: two may decode the same one."""

    def __init__(self) -> None:
        self._schemas: dict[tuple[int, int], pa.Schema] = {}

    def find(self, topic: Topic, version: int) -> pa.Schema:
        """Return the storage schema of a topic's schema version; 0 for a raw topic."""
        key = (topic.id, version)
        schema = self._schemas.get(key)
        if schema is None:
            declared = decode_schema(topic.schemas[version - 1]) if version else None
            schema = self._schemas[key] = storage_schema(value_type(declared))
        return schema
