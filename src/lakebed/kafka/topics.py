"""Topics as callers name them: by name or by id, and only those that they may use."""

from __future__ import annotations

from lakebed.kafka.ids import TopicIds
from lakebed.kafka.services import Call
from lakebed.operations.terms import MANAGE, READ, WRITE
from lakebed.state.values import Topic


def is_visible(call: Call, name: str) -> bool:
    """Return whether the caller may do anything with a topic of this name."""
    return any(call.permits(need, name) for need in (READ, WRITE, MANAGE))


def find_topic(call: Call, name: str) -> Topic | None:
    """Return a topic by name; None if it does not exist."""
    return call.log.parts.core.state.topic(name)


def find_topic_id(call: Call, topic_id: bytes) -> Topic | None:
    """Return a topic by id; None if it does not exist or is not for the caller."""
    topic = _ids(call).find(call.log.parts.core.state, topic_id)
    return None if topic is None or not is_visible(call, topic.name) else topic


def topic_id_of(call: Call, topic: Topic) -> bytes:
    """Return the id of a topic."""
    return _ids(call).of(topic)


def _ids(call: Call) -> TopicIds:
    return call.services.ids
