"""Topics, as Kafka's admin clients manage them: create, delete, grow, trim, describe, configure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from lakebed.api.lookup import check_partition
from lakebed.errors import AccessDeniedError, LakebedError
from lakebed.kafka import codes
from lakebed.kafka.codes import Refusal
from lakebed.kafka.names import internal_name
from lakebed.kafka.services import NODE, Answer, Call
from lakebed.kafka.settings import MAPPED, describe_broker, describe_topic, topic_settings
from lakebed.kafka.topics import find_topic, find_topic_id, is_visible, topic_id_of
from lakebed.operations.terms import ADMIN, MANAGE
from lakebed.state.commands import Trim
from lakebed.state.values import Topic
from lakebed.types import TopicName, is_internal

_TOPIC: Final = 2
_BROKER: Final = 4
_SET: Final = 0
_DELETE: Final = 1
_END: Final = -1


async def _attempt(work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return what an item of a request came to: its fields, or its error."""
    try:
        return await work
    except (LakebedError, Refusal) as error:
        return {"error_code": codes.code_of(error), "error_message": codes.message_of(error)}


# Topics


async def create_topics(call: Call) -> Answer:
    """Answer CreateTopics. Whatever replication factor is asked for, it is 1."""
    results = []
    for topic in call.body.topics:
        result = await _attempt(_create(call, topic))
        results.append({"name": topic.name, **result})
    return {"topics": results}


async def _create(call: Call, wanted: Any) -> dict[str, Any]:
    config = topic_settings((config.name, config.value) for config in wanted.configs)
    partitions = None if wanted.num_partitions == -1 else wanted.num_partitions
    if wanted.assignments:
        partitions = len(wanted.assignments)
        if any(tuple(assignment.broker_ids) != (NODE,) for assignment in wanted.assignments):
            raise Refusal(codes.INVALID_REPLICA_ASSIGNMENT, f"there is one broker, {NODE}")
    if partitions is not None and partitions < 1:
        raise Refusal(codes.INVALID_PARTITIONS, "the number of partitions must be at least 1")
    name = str(TopicName(wanted.name))
    if call.body.validate_only:
        call.check("create_topic", MANAGE, [name])
        if find_topic(call, name) is not None:
            raise Refusal(codes.TOPIC_ALREADY_EXISTS, f"topic {name} exists")
        return {"num_partitions": partitions or 1, "replication_factor": 1}
    await call.manage(
        "create_topic",
        [name],
        lambda: call.log.create_topic(name, partitions=partitions, config=config),
    )
    topic = call.log.parts.topics.find(name)
    described = call.log.describe_topic(name)
    return {
        "topic_id": topic_id_of(call, topic),
        "num_partitions": topic.partitions,
        "replication_factor": 1,
        "configs": describe_topic(described.config),
    }


async def delete_topics(call: Call) -> Answer:
    """Answer DeleteTopics."""
    results = []
    wanted: list[tuple[str | None, Any]]
    if call.version < 6:
        wanted = [(name, None) for name in call.body.topic_names]
    else:
        wanted = [(topic.name, topic.topic_id) for topic in call.body.topics]
    for name, topic_id in wanted:
        topic: Topic | None = None
        if name is None:
            topic = find_topic_id(call, topic_id)
            name = None if topic is None else topic.name
        if name is None:
            results.append(
                {"name": None, "topic_id": topic_id, "error_code": codes.UNKNOWN_TOPIC_ID}
            )
            continue
        result = await _attempt(_delete(call, name))
        results.append({"name": name, "topic_id": topic_id, **result})
    return {"responses": results}


async def _delete(call: Call, name: str) -> dict[str, Any]:
    await call.manage("delete_topic", [name], lambda: call.log.delete_topic(name))
    return {}


async def create_partitions(call: Call) -> Answer:
    """Answer CreatePartitions."""
    results = []
    for topic in call.body.topics:
        result = await _attempt(_grow(call, topic))
        results.append({"name": topic.name, **result})
    return {"results": results}


async def _grow(call: Call, wanted: Any) -> dict[str, Any]:
    topic = call.log.parts.topics.find(wanted.name)
    if wanted.count <= topic.partitions:
        raise Refusal(
            codes.INVALID_PARTITIONS,
            f"topic {topic.name} has {topic.partitions} partitions, which can only grow",
        )
    if not call.body.validate_only:
        await call.manage(
            "add_partitions",
            [wanted.name],
            lambda: call.log.add_partitions(wanted.name, wanted.count),
        )
    return {}


async def delete_records(call: Call) -> Answer:
    """Answer DeleteRecords: raise the low watermark of partitions."""
    results = []
    for topic in call.body.topics:
        partitions = []
        for partition in topic.partitions:
            result = await _attempt(_trim(call, topic.name, partition))
            low = result.pop("low", -1)
            partitions.append(
                {"partition_index": partition.partition_index, "low_watermark": low, **result}
            )
        results.append({"name": topic.name, "partitions": partitions})
    return {"topics": results}


async def _trim(call: Call, name: str, wanted: Any) -> dict[str, Any]:
    topic = call.log.parts.topics.find(name)
    partition = wanted.partition_index
    check_partition(topic, partition)
    low, end = call.log.parts.reading.bounds(topic, partition)
    offset = end if wanted.offset == _END else wanted.offset
    if not 0 <= offset <= end:
        raise Refusal(codes.OFFSET_OUT_OF_RANGE)
    if offset > low:
        command = Trim(topic.id, ((partition, offset),))
        await call.manage("purge_topic", [name], lambda: call.log._submit(command))
    else:
        call.check("purge_topic", MANAGE, [name])
    return {"low": call.log.parts.reading.bounds(topic, partition)[0]}


# Settings


def describe_configs(call: Call) -> Answer:
    """Answer DescribeConfigs."""
    results = []
    for resource in call.body.resources:
        try:
            rows = _describe(call, resource.resource_type, resource.resource_name)
            wanted = resource.configuration_keys
            if wanted is not None:
                rows = [row for row in rows if row["name"] in wanted]
            result: dict[str, Any] = {"configs": rows}
        except (LakebedError, Refusal) as error:
            result = {
                "error_code": codes.code_of(error),
                "error_message": codes.message_of(error),
            }
        results.append(
            {
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                **result,
            }
        )
    return {"results": results}


def _describe(call: Call, kind: int, name: str) -> list[dict[str, Any]]:
    if kind == _TOPIC:
        if not is_visible(call, name):
            raise Refusal(codes.TOPIC_AUTHORIZATION_FAILED)
        return describe_topic(call.log.describe_topic(name).config)
    if kind == _BROKER:
        if name not in ("", str(NODE)):
            raise Refusal(codes.INVALID_REQUEST, f"there is one broker, {NODE}")
        return describe_broker(call.services.config, call.log.config.default_partitions)
    raise Refusal(codes.INVALID_REQUEST, "only topics and the broker have settings")


async def alter_configs(call: Call) -> Answer:
    """Answer AlterConfigs, which gives all settings: those that are not named are the defaults."""

    def changes(resource: Any) -> dict[str, Any]:
        pairs = [(config.name, config.value) for config in resource.configs]
        missing = [(name, None) for name in MAPPED if name not in dict(pairs)]
        return topic_settings([*missing, *pairs])

    return await _alter(call, changes)


async def alter_some_configs(call: Call) -> Answer:
    """Answer IncrementalAlterConfigs."""

    def changes(resource: Any) -> dict[str, Any]:
        pairs = []
        for config in resource.configs:
            if config.config_operation not in (_SET, _DELETE):
                raise Refusal(codes.INVALID_CONFIG, "only SET and DELETE are supported")
            value = config.value if config.config_operation == _SET else None
            pairs.append((config.name, value))
        return topic_settings(pairs)

    return await _alter(call, changes)


async def _alter(call: Call, changes: Callable[[Any], dict[str, Any]]) -> Answer:
    results = []
    for resource in call.body.resources:
        result = await _attempt(_alter_one(call, resource, changes))
        results.append(
            {
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                **result,
            }
        )
    return {"responses": results}


async def _alter_one(
    call: Call, resource: Any, changes: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    if resource.resource_type != _TOPIC:
        raise Refusal(codes.INVALID_REQUEST, "only topics have settings that can be changed")
    name = resource.resource_name
    config = changes(resource)
    call.log.parts.topics.find(name)
    if not call.body.validate_only:
        await call.manage("alter_topic", [name], lambda: call.log.alter_topic(name, config=config))
    return {}


# The broker


def describe_log_dirs(call: Call) -> Answer:
    """Answer DescribeLogDirs: one folder, with the segments of the topics."""
    try:
        call.check("stats", ADMIN, [])
    except AccessDeniedError:
        return {"error_code": codes.CLUSTER_AUTHORIZATION_FAILED}
    wanted = call.body.topics
    names = None if wanted is None else {topic.topic for topic in wanted}
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": partition, "partition_size": _size(call, topic, partition)}
                for partition in range(topic.partitions)
            ],
        }
        for topic in call.log.parts.topics.every()
        if not is_internal(topic.name) and (names is None or topic.name in names)
    ]
    return {"results": [{"log_dir": "lakebed", "topics": topics}]}


def _size(call: Call, topic: Topic, partition: int) -> int:
    state = call.log.parts.core.partition((topic.id, partition))
    return 0 if state is None else sum(segment.file_bytes for segment in state.segments)


def describe_acls(_: Call) -> Answer:
    """Answer DescribeAcls: rules are managed by `lakebed access`, and are not Kafka's."""
    message = "rules are managed by `lakebed access`"
    return {"error_code": codes.SECURITY_DISABLED, "error_message": message}


def describe_quotas(_: Call) -> Answer:
    """Answer DescribeClientQuotas: there are none that Kafka's tools manage."""
    return {"entries": ()}


def list_reassignments(_: Call) -> Answer:
    """Answer ListPartitionReassignments: nothing moves, there is one broker."""
    return {"topics": ()}


async def delete_groups(call: Call) -> Answer:
    """Answer DeleteGroups."""
    results = []
    for name in call.body.groups_names:
        result = await _attempt(_delete_group(call, name))
        results.append({"group_id": name, "error_code": result.get("error_code", codes.NONE)})
    return {"results": results}


async def _delete_group(call: Call, name: str) -> dict[str, Any]:
    if call.services.groups.find(name) is not None:
        raise Refusal(codes.NON_EMPTY_GROUP)
    inside = internal_name(name)
    try:
        await call.manage("delete_group", [inside], lambda: call.log.delete_group(inside))
    except AccessDeniedError:
        raise Refusal(codes.GROUP_AUTHORIZATION_FAILED) from None
    return {}
