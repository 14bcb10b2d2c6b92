"""Offsets of partitions: ListOffsets by position or time, and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.api.reads import Bounds
from lakebed.errors import LakebedError
from lakebed.kafka import codes
from lakebed.kafka.codes import Refusal
from lakebed.kafka.services import Answer, Call
from lakebed.kafka.topics import find_topic
from lakebed.operations.terms import READ
from lakebed.state.values import Topic

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIME: Final = -3
EARLIEST_LOCAL: Final = -4
_STEP: Final = Bounds(65_536, 16 * 1024 * 1024)


async def list_offsets(call: Call) -> Answer:
    """Answer ListOffsets."""
    return {"topics": await call.run(_list, call)}


def _list(call: Call) -> list[dict[str, Any]]:
    results = []
    for topic in call.body.topics:
        partitions = []
        for partition in topic.partitions:
            try:
                readable_topic = readable(call, topic.name)
                offset, time_ms = _offset(
                    call, readable_topic, partition.partition_index, partition.timestamp
                )
                fields = {"offset": offset, "timestamp": time_ms, "leader_epoch": 0}
            except (LakebedError, Refusal) as error:
                fields = {"error_code": codes.code_of(error), "offset": -1, "timestamp": -1}
            partitions.append({"partition_index": partition.partition_index, **fields})
        results.append({"name": topic.name, "partitions": partitions})
    return results


def readable(call: Call, name: str) -> Topic:
    """Return a topic that the caller may read, or raise why not."""
    call.check("offsets", READ, [name])
    topic = find_topic(call, name)
    if topic is None:
        raise Refusal(codes.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def _offset(call: Call, topic: Topic, partition: int, wanted: int) -> tuple[int, int]:
    """Return an offset and its time; -1 for one that has none."""
    reading = call.log.parts.reading
    low, end = reading.bounds(topic, partition)
    if wanted == LATEST:
        return end, -1
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        return low, -1
    if wanted == MAX_TIME:
        time_us = _max_time_us(call, topic, partition, low, end)
        if time_us is None:
            return -1, -1
    elif wanted >= 0:
        time_us = wanted * 1000
    else:
        raise Refusal(codes.UNSUPPORTED_VERSION, f"timestamp {wanted} has no meaning")
    offset = reading.offset_for_time(topic, partition, time_us)
    if offset >= end:
        return -1, -1
    table, _ = reading.read(topic, partition, offset, Bounds(1, 1), ["offset", "timestamp"])
    if not table.num_rows:
        return -1, -1
    row = table.slice(0, 1)
    moment = row.column("timestamp").cast(pa.int64())[0].as_py() // 1000
    return row.column("offset")[0].as_py(), moment


def _max_time_us(call: Call, topic: Topic, partition: int, low: int, end: int) -> int | None:
    """Return the greatest timestamp of a partition; None if it has no records."""
    state = call.log.parts.core.partition((topic.id, partition))
    if state is None:
        return None
    times = [segment.time_max_us for segment in state.segments]
    offset = max(low, state.flushed)
    while offset < end:
        table, following = call.log.parts.reading.read(
            topic, partition, offset, _STEP, ["timestamp"]
        )
        if table.num_rows:
            times.append(pc.max(table.column("timestamp").cast(pa.int64())).as_py())
        if following <= offset:
            break
        offset = following
    return max(times, default=None)


def describe_epochs(call: Call) -> Answer:
    """Answer OffsetForLeaderEpoch: there is one epoch, and it ends where the partition ends."""
    results = []
    for topic in call.body.topics:
        partitions = []
        for partition in topic.partitions:
            fields: dict[str, Any]
            try:
                readable_topic = readable(call, topic.topic)
                _, end = call.log.parts.reading.bounds(readable_topic, partition.partition)
                fields = {"leader_epoch": 0, "end_offset": end}
            except (LakebedError, Refusal) as error:
                fields = {"error_code": codes.code_of(error), "leader_epoch": -1, "end_offset": -1}
            partitions.append({"partition": partition.partition, **fields})
        results.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": results}
