"""The HTTP gateway: topics, records and groups as JSON, under `/v1`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
from fastapi import FastAPI, Path, Query, Request
from pydantic import BeforeValidator
from starlette.responses import Response

from lakebed import limits
from lakebed.api.reads import Bounds
from lakebed.bridge import log as bridge
from lakebed.errors import InvalidArgumentError, TopicNotFoundError
from lakebed.operations.requests import filter_group
from lakebed.reports.groups import GroupInfo
from lakebed.reports.topics import TopicInfo
from lakebed.serve.gateway_models import (
    NAME_PATTERN,
    TOPIC_PATTERN,
    Commit,
    NewRecords,
    NewTopic,
    TopicChange,
)
from lakebed.serve.http_body import GoneError
from lakebed.serve.http_door import HttpCaller, RequestPipeline
from lakebed.serve.http_records import Run, records_answer
from lakebed.serve.openapi import add_route
from lakebed.serve.record_form import RecordReader
from lakebed.topic.json_records import by_partition
from lakebed.topic.schema_document import schema_document, schema_of

if TYPE_CHECKING:
    from lakebed.engine.log import EmbeddedLog

_READ_BYTES: Final = 4 * limits.MIB
"""About how many bytes of records one answer has; one record may be larger."""
WAIT_MS_MAX: Final = 60_000
"""The longest time that a request may wait for records."""

_text: Final = json.JSONEncoder(separators=(",", ":")).encode


def _whole(value: object) -> object:
    """Take a number that is written in the one way a number is written."""
    if isinstance(value, str) and not (value == "0" or _plain_digits(value)):
        raise ValueError("not an integer")
    return value


def _plain_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and text[0] != "0" and len(text) <= 18


Number = BeforeValidator(_whole)
TopicPath = Annotated[str, Path(pattern=TOPIC_PATTERN, description="A topic.")]
GroupPath = Annotated[str, Path(pattern=NAME_PATTERN, description="A consumer group.")]
PartitionQuery = Annotated[
    int, Query(ge=0, lt=limits.PARTITIONS_MAX, description="A partition."), Number
]
OffsetQuery = Annotated[
    str,
    Query(
        pattern=r"^(earliest|latest|0|[1-9][0-9]{0,17})$",
        description="Where to begin: earliest, latest, or an offset.",
    ),
]
MaxRecordsQuery = Annotated[
    int, Query(ge=1, le=limits.JSON_RECORDS_MAX, description="The most records to give."), Number
]
WaitQuery = Annotated[
    int,
    Query(ge=0, le=WAIT_MS_MAX, description="How long to wait for a record if there is none."),
    Number,
]


def add_gateway(app: FastAPI, door: RequestPipeline) -> None:
    """Add the routes; each has the name of its call."""
    _add_topics(app, door)
    _add_topic(app, door)
    _add_records(app, door)
    _add_groups(app, door)


def answer(value: object, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(_text(value), status, media_type="application/json")


def _add_topics(app: FastAPI, door: RequestPipeline) -> None:
    log, run = door.log, door.threads.run

    @add_route(app, "topics")
    async def topics(request: Request) -> Response:
        """List the topics that the caller may read."""

        async def work(caller: HttpCaller) -> Response:
            return answer({"topics": caller.filter_permitted(log.topics())})

        return await door.answer(request, "topics", work)

    @add_route(app, "create_topic")
    async def create_topic(request: Request) -> Response:
        """Make a topic."""

        async def work(caller: HttpCaller) -> Response:
            caller.check_somewhere()
            body, checked = await caller.body(NewTopic)
            caller.check([checked.topic])
            info = await run(log.create_topic, checked.topic, *_topic_arguments(body))
            return answer(_topic(info), 201)

        return await door.answer(request, "create_topic", work)


def _add_topic(app: FastAPI, door: RequestPipeline) -> None:
    log, run = door.log, door.threads.run

    @add_route(app, "describe_topic")
    async def describe_topic(request: Request, topic: TopicPath) -> Response:
        """Return partitions, schema and settings of a topic."""

        async def work(_: HttpCaller) -> Response:
            return answer(_topic(await run(log.describe_topic, topic)))

        return await door.answer(request, "describe_topic", work, [topic])

    @add_route(app, "alter_topic")
    async def alter_topic(request: Request, topic: TopicPath) -> Response:
        """Change settings, add nullable fields to the schema, add partitions."""

        async def work(caller: HttpCaller) -> Response:
            body, _ = await caller.body(TopicChange)
            partitions, schema, config = _topic_arguments(body)
            return answer(_topic(await run(log.alter_topic, topic, config, schema, partitions)))

        return await door.answer(request, "alter_topic", work, [topic])

    @add_route(app, "delete_topic")
    async def delete_topic(request: Request, topic: TopicPath) -> Response:
        """Remove a topic with everything in it."""

        async def work(_: HttpCaller) -> Response:
            await run(log.delete_topic, topic)
            return Response(status_code=204)

        return await door.answer(request, "delete_topic", work, [topic])

    @add_route(app, "offsets")
    async def offsets(request: Request, topic: TopicPath) -> Response:
        """Return where each partition begins and ends; the end is exclusive."""

        async def work(_: HttpCaller) -> Response:
            offsets = await run(log.offsets, topic)
            partitions = [
                {"partition": partition, "earliest": earliest, "end": end}
                for partition, (earliest, end) in offsets.items()
            ]
            return answer({"topic": topic, "partitions": partitions})

        return await door.answer(request, "offsets", work, [topic])


def _topic_arguments(body: dict[str, Any]) -> tuple[int | None, pa.Schema | None, Any]:
    document = body.get("schema")
    schema = None if document is None else schema_of(document)
    return body.get("partitions"), schema, body.get("config")


def _topic(info: TopicInfo) -> dict[str, object]:
    return {
        "topic": info.name,
        "id": info.id,
        "created_us": info.created_us,
        "records": info.records,
        "partitions": [asdict(partition) for partition in info.partitions],
        "schema": None if info.schema is None else schema_document(info.schema),
        "schema_version": info.schema_version,
        "config": info.config,
    }


# Records


def _add_records(app: FastAPI, door: RequestPipeline) -> None:
    run = door.threads.run

    @add_route(app, "put")
    async def put(request: Request, topic: TopicPath) -> Response:
        """Write records, all or none; answers when they are durable.

        A request that got no answer may have been written.
        """

        async def work(caller: HttpCaller) -> Response:
            body, _ = await caller.body(NewRecords, limits.JSON_BYTES_MAX)
            rows = await run(_rows, door.log, topic, body["records"])
            places = await _write(door, topic, rows)
            records = [{"partition": partition, "offset": offset} for partition, offset in places]
            return answer({"topic": topic, "records": records})

        return await door.answer(request, "put", work, [topic])

    @add_route(app, "read")
    async def read(
        request: Request,
        topic: TopicPath,
        partition: PartitionQuery = 0,
        offset: OffsetQuery = "earliest",
        max_records: MaxRecordsQuery = 1_000,
        wait_ms: WaitQuery = 0,
    ) -> Response:
        """Read records of a partition; with `wait_ms`, wait for one if there is none."""

        def reading(start: int) -> Coroutine[Any, Any, pa.Table]:
            bounds = Bounds(max_records, _READ_BYTES)
            return bridge.read(door.log, run, topic, partition, start, bounds, None, wait_ms / 1000)

        async def work(caller: HttpCaller) -> Response:
            start = await run(_start, door.log, topic, partition, offset)
            if wait_ms:
                with door.waiting(caller):
                    table = await _unless_gone(request, door.stopping, reading(start))
            else:
                table = await reading(start)
            if table is not None:
                caller.charge(table.nbytes)
                caller.hold(table.nbytes)
            return await run(_records, topic, partition, start, table, run)

        return await door.answer(request, "read", work, [topic])


def _rows(log: EmbeddedLog, topic: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records as rows, each with its partition if it has named one."""
    row_of = RecordReader(log.parts.writing.target(topic))
    return [row_of(record, row=row) for row, record in enumerate(records)]


async def _write(
    door: RequestPipeline, topic: str, rows: list[dict[str, Any]]
) -> list[tuple[int, int]]:
    """Write rows atomically; give partition and offset of each."""
    rows_of = by_partition(rows)
    if len(rows_of) == 1:
        append = door.log.parts.writing.append_batch_async
        future = await door.threads.run_slowly(append, topic, rows, next(iter(rows_of)))
        acks = await asyncio.wrap_future(future)  # no thread is held while the disk works
        return [(ack.partition, ack.offset) for ack in acks]
    return await door.threads.run_slowly(_write_together, door.log, topic, rows, rows_of)


def _write_together(
    log: EmbeddedLog, topic: str, rows: list[dict[str, Any]], rows_of: dict[int | None, list[int]]
) -> list[tuple[int, int]]:
    """Write rows that name different partitions: a transaction makes them one."""
    with log.transaction() as transaction:
        for partition, numbers in rows_of.items():
            transaction.append_batch(topic, [rows[row] for row in numbers], partition=partition)
        written = transaction.commit()
    if len(written) != len(rows_of):
        raise TopicNotFoundError("the topic was deleted during the call", topic=topic)
    places: list[tuple[int, int]] = [(0, 0)] * len(rows)
    for numbers, acks in zip(rows_of.values(), written, strict=True):
        for row, ack in zip(numbers, acks, strict=True):
            places[row] = (ack.partition, ack.offset)
    return places


def _start(log: EmbeddedLog, topic: str, partition: int, offset: str) -> int:
    """Return the offset that is meant, so that an answer without records can name it."""
    topic_state = log.parts.reading.topic(topic)
    return log.parts.reading.start(
        topic_state, partition, int(offset) if offset.isdigit() else offset
    )


async def _unless_gone(
    request: Request, stopping: asyncio.Event, reading: Coroutine[Any, Any, pa.Table]
) -> pa.Table | None:
    """Wait for records; return none if the server stops, raise `GoneError` if the client goes."""
    read = asyncio.ensure_future(reading)
    gone = asyncio.ensure_future(_wait_until_gone(request))
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((read, gone, stop), return_when=asyncio.FIRST_COMPLETED)
        if read.done():
            return read.result()
        if stop.done():
            return None
        raise GoneError
    finally:
        for task in (read, gone, stop):
            task.cancel()


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _records(topic: str, partition: int, start: int, table: pa.Table | None, run: Run) -> Response:
    following = start
    if table is not None and table.num_rows:
        following = table.column("offset")[-1].as_py() + 1
    head = _text({"topic": topic, "partition": partition, "next_offset": following})[:-1]
    return records_answer(head, table, run)


# Groups


def _add_groups(app: FastAPI, door: RequestPipeline) -> None:
    log, run = door.log, door.threads.run

    @add_route(app, "groups")
    async def groups(request: Request) -> Response:
        """List the consumer groups that the caller may see."""

        async def work(caller: HttpCaller) -> Response:
            return answer({"groups": caller.filter_permitted(log.groups())})

        return await door.answer(request, "groups", work)

    @add_route(app, "describe_group")
    async def describe_group(request: Request, group: GroupPath) -> Response:
        """Return members, committed offsets and lag of a group."""

        async def work(caller: HttpCaller) -> Response:
            info = await run(log.describe_group, group)
            return answer(_group(filter_group(info, caller.may_read)))

        return await door.answer(request, "describe_group", work, [group])

    @add_route(app, "commit_offsets")
    async def commit_offsets(request: Request, group: GroupPath) -> Response:
        """Commit offsets for a group, whoever its members are; durable when it answers."""

        async def work(caller: HttpCaller) -> Response:
            _, checked = await caller.body(Commit, limits.JSON_COMMIT_BYTES_MAX)
            offsets = {
                (committed.topic, committed.partition): committed.offset
                for committed in checked.offsets
            }
            if len(offsets) < len(checked.offsets):
                raise InvalidArgumentError("a partition is given twice")
            caller.check_also("read", sorted({topic for topic, _ in offsets}))
            caller.room.check_groups([group])
            await run(log.commit_offsets, group, offsets)
            return Response(status_code=204)

        return await door.answer(request, "commit_offsets", work, [group])

    @add_route(app, "delete_group")
    async def delete_group(request: Request, group: GroupPath) -> Response:
        """Forget a group that has no members."""

        async def work(_: HttpCaller) -> Response:
            await run(log.delete_group, group)
            return Response(status_code=204)

        return await door.answer(request, "delete_group", work, [group])


def _group(info: GroupInfo) -> dict[str, object]:
    return {
        "group": info.name,
        "lag": info.lag,
        "generation": info.generation,
        "members": list(info.members),
        "partitions": [asdict(partition) for partition in info.partitions],
    }
