"""Offsets of consumer groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from lakebed.errors import AccessDeniedError, LakebedError
from lakebed.kafka import codes
from lakebed.kafka.codes import Refusal
from lakebed.kafka.names import internal_name
from lakebed.kafka.services import Answer, Call
from lakebed.kafka.topics import find_topic
from lakebed.operations.terms import GROUP, READ
from lakebed.serve.room import StateQuota
from lakebed.state.commands import CommitOffsets
from lakebed.state.values import Topic

_METADATA_BYTES_MAX: Final = 4096


async def commit_offsets(call: Call) -> Answer:
    """Answer OffsetCommit."""
    body = call.body
    code = _check_commit(call)
    places: list[tuple[int, int, int]] = []
    results: list[dict[str, Any]] = []
    accepted: list[dict[str, Any]] = []
    for topic in body.topics:
        partitions = []
        for partition in topic.partitions:
            result = {"partition_index": partition.partition_index, "error_code": code}
            if not code:
                result["error_code"] = _place(call, topic.name, partition, places)
                if not result["error_code"]:
                    accepted.append(result)
            partitions.append(result)
        results.append({"name": topic.name, "partitions": partitions})
    if places:
        failed = await call.run(_commit, call, internal_name(body.group_id), tuple(places))
        for result in accepted:
            result["error_code"] = failed
    return {"topics": results}


def _check_commit(call: Call) -> int:
    body = call.body
    try:
        group = internal_name(body.group_id)
        call.check("groups_commit", GROUP, [group])
        administrator = call.services.guard.administers(call.principal)
        StateQuota(call.log, call.principal.name, administrator=administrator).check_groups([group])
    except Refusal as error:
        return error.code
    except AccessDeniedError:
        return codes.GROUP_AUTHORIZATION_FAILED
    except LakebedError:
        return codes.GROUP_MAX_SIZE_REACHED
    generation = getattr(body, "generation_id_or_member_epoch", getattr(body, "generation_id", -1))
    instance = getattr(body, "group_instance_id", None)
    return call.services.groups.check_commit(body.group_id, body.member_id, instance, generation)


def _place(call: Call, name: str, partition: Any, places: list[tuple[int, int, int]]) -> int:
    """Add an offset to those that are committed; return why not, or 0."""
    if not call.permits(READ, name):
        return codes.TOPIC_AUTHORIZATION_FAILED
    topic = find_topic(call, name)
    if topic is None or not 0 <= partition.partition_index < topic.partitions:
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    if len((partition.committed_metadata or "").encode()) > _METADATA_BYTES_MAX:
        return codes.OFFSET_METADATA_TOO_LARGE
    _, end = call.log.parts.reading.bounds(topic, partition.partition_index)
    if not 0 <= partition.committed_offset <= end:
        return codes.OFFSET_OUT_OF_RANGE
    places.append((topic.id, partition.partition_index, partition.committed_offset))
    return codes.NONE


def _commit(call: Call, group: str, places: tuple[tuple[int, int, int], ...]) -> int:
    time_us = call.log.parts.core.clock.time_us()
    try:
        call.log._submit(CommitOffsets(group, "", places, time_us))
    except LakebedError as error:
        return codes.code_of(error)
    return codes.NONE


def fetch_offsets(call: Call) -> Answer:
    """Answer OffsetFetch."""
    if call.version >= 8:
        groups = []
        for group in call.body.groups:
            code, topics = _fetch(call, group.group_id, group.topics)
            groups.append({"group_id": group.group_id, "error_code": code, "topics": topics})
        return {"groups": groups}
    code, topics = _fetch(call, call.body.group_id, call.body.topics)
    return {"error_code": code, "topics": topics}


def _fetch(call: Call, group: str, wanted: Any) -> tuple[int, list[dict[str, Any]]]:
    try:
        name = internal_name(group)
        call.check("groups_committed", GROUP, [name])
    except Refusal as error:
        return error.code, []
    except LakebedError:
        return codes.GROUP_AUTHORIZATION_FAILED, []
    state = call.log.parts.core.state
    if wanted is None:
        partitions_by_topic: dict[int, list[int]] = {}
        for committed_group, topic_id, partition in list(state.offsets):
            if committed_group == name:
                partitions_by_topic.setdefault(topic_id, []).append(partition)
        topics = (
            (state.topics.get(topic_id), places) for topic_id, places in partitions_by_topic.items()
        )
        pairs: Iterable[tuple[str, Topic | None, list[int]]] = [
            (topic.name, topic, sorted(places))
            for topic, places in topics
            if topic is not None and call.permits(READ, topic.name)
        ]
    else:
        pairs = [
            (topic.name, find_topic(call, topic.name), topic.partition_indexes) for topic in wanted
        ]
    return codes.NONE, [
        {
            "name": text,
            "partitions": [_position(call, name, topic, partition) for partition in places],
        }
        for text, topic, places in pairs
    ]


def _position(call: Call, group: str, topic: Topic | None, partition: int) -> dict[str, Any]:
    committed = None
    if topic is not None and call.permits(READ, topic.name):
        committed = call.log.parts.core.state.offsets.get((group, topic.id, partition))
    code = codes.NONE
    if topic is not None and not call.permits(READ, topic.name):
        code = codes.TOPIC_AUTHORIZATION_FAILED
    return {
        "partition_index": partition,
        "committed_offset": -1 if committed is None else committed.offset,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": code,
    }
