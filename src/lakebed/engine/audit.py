"""The audit: what a server refused, and what was done to the log itself, as a topic of the log.

The topic `__audit` is made when the first record is written. Its records are kept for 90 days,
unless `alter_topic` says otherwise, and are read like those of any topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from lakebed.config import TopicConfig
from lakebed.engine.topics import Topics
from lakebed.engine.writing import Writing
from lakebed.reports.audit import AuditRecord
from lakebed.topic.schema import TIMESTAMP

AUDIT_TOPIC: Final = "__audit"
AUDIT_SCHEMA: Final = pa.schema(
    [
        pa.field("time", TIMESTAMP, nullable=False),
        pa.field("principal", pa.string(), nullable=False),
        pa.field("token", pa.string(), nullable=False),
        pa.field("peer", pa.string(), nullable=False),
        pa.field("call", pa.string(), nullable=False),
        pa.field("names", pa.list_(pa.string()), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
_RETENTION_MS: Final = 90 * 86_400_000


class Audit:
    """Writes to the topic `__audit`. Any thread."""

    def __init__(self, topics: Topics, writing: Writing) -> None:
        self._topics = topics
        self._writing = writing

    def append(self, records: Sequence[AuditRecord]) -> None:
        """Append records in one batch; return when they are durable."""
        self._topics.ensure_internal(
            AUDIT_TOPIC, AUDIT_SCHEMA, TopicConfig(retention_ms=_RETENTION_MS)
        )
        rows = [{"value": record._asdict(), "timestamp": record.time} for record in records]
        self._writing.append_batch(AUDIT_TOPIC, rows, 0)
