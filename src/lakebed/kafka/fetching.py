"""Fetch: records of partitions as batches; at the end of all of them the request waits.

Every fetch is a whole one: no fetch session is offered, which clients accept. What is read is
always committed, so both isolation levels see the same, up to the high watermark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lakebed.api.reads import Bounds
from lakebed.bridge.completions import AsyncEvent
from lakebed.errors import LakebedError, OffsetOutOfRangeError
from lakebed.kafka import codes
from lakebed.kafka.codes import Refusal
from lakebed.kafka.encoding import empty_batch, encode_rows
from lakebed.kafka.services import Answer, Call
from lakebed.kafka.topics import find_topic, find_topic_id
from lakebed.operations.routes import STREAMS
from lakebed.state.values import Topic

_READ: Final = STREAMS["read"].need
_ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
"""The most records that one answer carries, whatever the client asks for."""
_RECORDS_MAX: Final = 65_536
"""Records of one batch."""
_WAIT_MS_MAX: Final = 300_000
_BY_ID: Final = 13
"""From this version on topics have ids and no names."""


@dataclass
class Wanted:
    """A partition of a request, and what was found there."""

    topic: Topic | None
    partition: int
    offset: int
    bytes_max: int
    error: BaseException | None = None
    records: bytes = b""
    following: int = 0
    """The offset behind what was looked at: where to wait for more."""

    @property
    def key(self) -> tuple[int, int]:
        """The partition as the log knows it."""
        return (self.topic.id if self.topic is not None else -1, self.partition)


async def fetch(call: Call) -> Answer:
    """Answer Fetch."""
    body = call.body
    if getattr(body, "session_id", 0):
        return {"error_code": codes.FETCH_SESSION_ID_NOT_FOUND}
    wanted = [
        (topic, [_want(call, topic, partition) for partition in topic.partitions])
        for topic in body.topics
    ]
    every = [partition for _, partitions in wanted for partition in partitions]
    await _fill(call, every)
    size = sum(len(partition.records) for partition in every)
    call.services.quotas.charge(call.principal, size)
    call.services.meters.count_sent(size)
    return {
        "error_code": codes.NONE,
        "session_id": 0,
        "responses": [
            {
                "topic": getattr(topic, "topic", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [_answer(call, partition) for partition in partitions],
            }
            for topic, partitions in wanted
        ],
    }


def _want(call: Call, topic: Any, partition: Any) -> Wanted:
    wanted = Wanted(
        None, partition.partition, partition.fetch_offset, max(1, partition.partition_max_bytes)
    )
    try:
        if call.version >= _BY_ID:
            known_topic = find_topic_id(call, topic.topic_id)
            if known_topic is None:
                raise Refusal(codes.UNKNOWN_TOPIC_ID)
        else:
            call.check("read", _READ, [topic.topic])
            known_topic = find_topic(call, topic.topic)
            if known_topic is None:
                raise Refusal(codes.UNKNOWN_TOPIC_OR_PARTITION)
        if call.version >= _BY_ID:
            call.check("read", _READ, [known_topic.name])
        if known_topic.schemas:
            raise Refusal(codes.INVALID_RECORD, "the topic has a schema: read it with Lakebed")
        wanted.topic = known_topic
        call.log.parts.reading.key(known_topic, wanted.partition)
        wanted.following = wanted.offset
    except (LakebedError, Refusal) as error:
        wanted.error = error
    return wanted


async def _fill(call: Call, every: list[Wanted]) -> None:
    """Read until there is enough, something is wrong, or the time is over."""
    body, reading = call.body, call.log.parts.reading
    seconds = min(max(0, body.max_wait), _WAIT_MS_MAX) / 1000
    deadline = time.monotonic() + seconds
    open_ones = [partition for partition in every if partition.error is None]
    enough = max(1, body.min_bytes)
    arrived = AsyncEvent(call.services.loop)
    stop = reading.watch({partition.key: 0 for partition in open_ones}, arrived.set)
    try:
        while True:
            left = deadline - time.monotonic()
            is_last = left <= 0 or call.services.stopping.is_set() or not open_ones
            arrived.clear()
            if is_last or _ready(call, open_ones):
                await call.run(_read_all, call, every, is_last=is_last)
            if is_last or any(partition.error is not None for partition in every):
                return
            if sum(len(partition.records) for partition in every) >= enough:
                return
            await arrived.wait(max(0.0, deadline - time.monotonic()))
    finally:
        stop()


def _ready(call: Call, wanted: list[Wanted]) -> bool:
    """Return whether a read would find more than the last one, or fail."""
    reading = call.log.parts.reading
    for partition in wanted:
        if reading.ready({partition.key: partition.following}):
            return True
        if partition.topic is None:
            continue
        low, end = reading.bounds(partition.topic, partition.partition)
        if not low <= partition.offset <= end:
            return True
    return False


def _read_all(call: Call, every: list[Wanted], *, is_last: bool) -> None:
    left = min(getattr(call.body, "max_bytes", _ANSWER_BYTES_MAX), _ANSWER_BYTES_MAX)
    for wanted in every:
        if wanted.error is None and left > 0:
            try:
                _read(call, wanted, min(left, wanted.bytes_max), is_last=is_last)
            except (LakebedError, Refusal) as error:
                wanted.error = error
            left -= len(wanted.records)


def _read(call: Call, wanted: Wanted, bytes_max: int, *, is_last: bool) -> None:
    if wanted.topic is None:
        return
    bounds = Bounds(_RECORDS_MAX, bytes_max)
    table, following = call.log.parts.reading.read(
        wanted.topic, wanted.partition, wanted.offset, bounds, None
    )
    wanted.following = following
    if table.num_rows:
        wanted.records = encode_rows(_one_batch(table), following)
    elif following > wanted.offset and is_last:
        # Everything up to the end was compacted away. Only now: a client that gets no record for a
        # batch asks again at once, and would do so all the time.
        wanted.records = empty_batch(wanted.offset, following)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def _answer(call: Call, wanted: Wanted) -> Mapping[str, Any]:
    low = end = -1
    if wanted.topic is not None:
        try:
            low, end = call.log.parts.reading.bounds(wanted.topic, wanted.partition)
        except LakebedError as error:
            wanted.error = wanted.error or error
    code = codes.NONE if wanted.error is None else codes.code_of(wanted.error)
    if isinstance(wanted.error, OffsetOutOfRangeError):
        code = codes.OFFSET_OUT_OF_RANGE
    return {
        "partition_index": wanted.partition,
        "error_code": code,
        "high_watermark": end,
        "last_stable_offset": end,
        "log_start_offset": low,
        "aborted_transactions": () if call.body.isolation_level else None,
        "preferred_read_replica": -1,
        "records": wanted.records if code == codes.NONE else b"",
    }
