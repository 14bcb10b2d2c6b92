"""Topic ids: UUIDs that follow from the log's identity and the number of a topic.

A topic that was deleted and created again has another number, hence another id, and a client that
uses the old one gets an error.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakebed.state.image import State
    from lakebed.state.values import Topic


class TopicIds:
    """Maps topics to ids and back."""

    def __init__(self, log_id: str) -> None:
        self._prefix = hashlib.sha256(f"lakebed topic {log_id}".encode()).digest()[:8]

    def of(self, topic: Topic) -> bytes:
        """Return the id of a topic."""
        return self._prefix + (topic.id + 1).to_bytes(8, "big")

    def find(self, state: State, topic_id: bytes) -> Topic | None:
        """Return the topic of an id; None if it does not exist any more."""
        if topic_id[:8] != self._prefix:
            return None
        return state.topics.get(int.from_bytes(topic_id[8:], "big") - 1)
