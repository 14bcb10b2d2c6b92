"""Which topics there are and where: Metadata, DescribeTopicPartitions and their like."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

from lakebed.errors import AccessDeniedError, LakebedError, TopicExistsError
from lakebed.kafka import codes
from lakebed.kafka.services import NODE, Answer, Call
from lakebed.kafka.topics import find_topic, find_topic_id, is_visible, topic_id_of
from lakebed.state.values import Topic
from lakebed.types import TopicName, is_internal

_PARTITIONS_MAX: Final = 2_000
"""Partitions of one answer to DescribeTopicPartitions."""


async def describe_metadata(call: Call) -> Answer:
    """Answer Metadata: the broker, and the topics that are asked for."""
    wanted = call.body.topics
    everything = wanted is None or (call.version == 0 and not wanted)
    if everything:
        topics = [_describe(call, topic) for topic in _visible(call)]
    else:
        creates = call.services.config.kafka_auto_create_topics and getattr(
            call.body, "allow_auto_topic_creation", True
        )
        topics = [await _look_up(call, topic, creates=creates) for topic in wanted]
    host, port = call.address
    return {
        "brokers": [{"node_id": NODE, "host": host, "port": port}],
        "cluster_id": call.services.cluster_id,
        "controller_id": NODE,
        "topics": topics,
    }


def _visible(call: Call) -> Iterable[Topic]:
    for topic in call.log.parts.topics.every():
        if not is_internal(topic.name) and is_visible(call, topic.name):
            yield topic


async def _look_up(call: Call, wanted: Any, *, creates: bool) -> dict[str, Any]:
    name = wanted.name
    if name is None:
        topic_id = getattr(wanted, "topic_id", b"")
        by_id = find_topic_id(call, topic_id)
        if by_id is None:
            unknown = codes.UNKNOWN_TOPIC_ID
            return {"error_code": unknown, "name": None, "topic_id": topic_id}
        return _describe(call, by_id)
    try:
        if not is_visible(call, name):
            return {"error_code": codes.TOPIC_AUTHORIZATION_FAILED, "name": name}
        topic = find_topic(call, name)
        if topic is None:
            if not creates:
                TopicName(name)
                return {"error_code": codes.UNKNOWN_TOPIC_OR_PARTITION, "name": name}
            topic = await _create(call, name)
        return _describe(call, topic)
    except (LakebedError, codes.Refusal) as error:
        return {"error_code": codes.code_of(error), "name": name}


async def _create(call: Call, name: str) -> Topic:
    with contextlib.suppress(TopicExistsError):
        try:
            await call.manage("create_topic", [name], lambda: call.log.create_topic(name))
        except AccessDeniedError:
            raise codes.Refusal(codes.UNKNOWN_TOPIC_OR_PARTITION) from None
    return call.log.parts.topics.find(name)


def _describe(call: Call, topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic_id_of(call, topic),
        "is_internal": is_internal(topic.name),
        "partitions": [_partition(partition) for partition in range(topic.partitions)],
    }


def _partition(index: int) -> dict[str, Any]:
    return {
        "partition_index": index,
        "leader_id": NODE,
        "leader_epoch": 0,
        "replica_nodes": (NODE,),
        "isr_nodes": (NODE,),
    }


def describe_topic_partitions(call: Call) -> Answer:
    """Answer DescribeTopicPartitions, some partitions at a time."""
    names = sorted({topic.name for topic in call.body.topics})
    if not names:
        names = [topic.name for topic in _visible(call)]
    cursor, first = call.body.cursor, 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        first = max(0, cursor.partition_index)
    left = max(1, min(call.body.response_partition_limit, _PARTITIONS_MAX))
    topics: list[dict[str, Any]] = []
    for name in names:
        topic = find_topic(call, name) if is_visible(call, name) else None
        if topic is None:
            topics.append({"error_code": codes.UNKNOWN_TOPIC_OR_PARTITION, "name": name})
            continue
        start = first if cursor is not None and name == cursor.topic_name else 0
        if left <= 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": start}}
        described = _describe(call, topic)
        described["partitions"] = described["partitions"][start : start + left]
        topics.append(described)
        end = start + len(described["partitions"])
        left -= len(described["partitions"])
        if end < topic.partitions:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
    return {"topics": topics, "next_cursor": None}


def describe_cluster(call: Call) -> Answer:
    """Answer DescribeCluster."""
    host, port = call.address
    return {
        "cluster_id": call.services.cluster_id,
        "controller_id": NODE,
        "endpoint_type": 1,
        "brokers": [{"broker_id": NODE, "host": host, "port": port}],
    }


def find_coordinator(call: Call) -> Answer:
    """Answer FindCoordinator: the one broker coordinates every group and transaction."""
    host, port = call.address
    here = {"node_id": NODE, "host": host, "port": port}
    if call.version < 4:
        return here
    return {"coordinators": [{"key": key, **here} for key in call.body.coordinator_keys]}
