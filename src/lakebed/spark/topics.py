"""The topics that a source reads: found by name or pattern, with one schema for all of them."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakebed.api.reads import EARLIEST, LATEST
from lakebed.client.log import RemoteLog
from lakebed.errors import (
    InvalidArgumentError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from lakebed.spark.fetch import data_loss
from lakebed.spark.options import FIRST, LAST, SourceOptions, Start
from lakebed.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Bounds = Mapping[int, tuple[int, int]]
"""Earliest offset and end of each partition."""


@dataclass(frozen=True)
class TopicHandle:
    """A topic as it is now."""

    name: str
    id: int
    bounds: Bounds


def find(
    log: RemoteLog, options: SourceOptions, *, missing: Container[str | None] = ()
) -> list[TopicHandle]:
    """Return the topics that the options name, as they are now, in the order of their names.

    A pattern may match none, or more later. A topic that is named must exist, unless it is one of
    `missing`, for which the caller checks itself.
    """
    if options.pattern is not None:
        names = [name for name in log.topics() if re.fullmatch(options.pattern, name)]
    else:
        names = [options.topic] if options.topic is not None else list(options.subscribe)
    handles = []
    for name in sorted(names):
        try:
            handles.append(TopicHandle(name, log.describe_topic(name).id, log.offsets(name)))
        except TopicNotFoundError:
            if options.pattern is None and name not in missing:
                raise
            # It was deleted after it was listed.
    return handles


def schema_of(log: RemoteLog, options: SourceOptions) -> StructType:
    """Return the columns of the topics that the options name, in Spark's types."""
    topics = find(log, options)
    if not topics:
        raise TopicNotFoundError(
            "no topic fits the pattern, so its columns are not known: make the topic first, or give"
            " the schema",
            subscribePattern=options.pattern,
        )
    schemas = {
        topic.name: spark_schema(
            log.table(topic.name).schema,
            topic=options.topic is None,
            headers=options.include_headers,
        )
        for topic in topics
    }
    first = topics[0].name
    for name, schema in schemas.items():
        if schema != schemas[first]:
            raise InvalidArgumentError(
                "topics that are read together need values of one type: read them one by one and"
                " make them alike",
                topics=f"{first}, {name}",
                types=f"{schemas[first]['value'].dataType.simpleString()},"
                f" {schema['value'].dataType.simpleString()}",
            )
    return schemas[first]


def resolve_offsets(
    log: RemoteLog, topic: TopicHandle, wanted: Start, time_us: int | None, *, otherwise: str
) -> dict[int, int]:
    """Return the offset of each partition for a start or an end.

    `otherwise` (`earliest` or `latest`) is for partitions that `wanted` leaves out.
    """
    if time_us is not None:
        return {
            partition: log.offset_for_time(topic.name, partition, timestamp=time_us)
            for partition in topic.bounds
        }
    if isinstance(wanted, str):
        return {partition: _edge(wanted, bounds) for partition, bounds in topic.bounds.items()}
    requested = wanted.get(topic.name, {})
    unknown = sorted(set(requested) - set(topic.bounds))
    if unknown:
        raise PartitionNotFoundError(
            "offsets are given for a partition that does not exist",
            topic=topic.name,
            partition=unknown[0],
            partitions=len(topic.bounds),
        )
    names = {FIRST: EARLIEST, LAST: LATEST}
    offsets: dict[int, int] = {}
    for partition, bounds in topic.bounds.items():
        offset = requested.get(partition)
        if offset is None:
            offsets[partition] = _edge(otherwise, bounds)
        else:
            offsets[partition] = _edge(names[offset], bounds) if offset in names else offset
    return offsets


def select_partitions(topic: TopicHandle, starting: Start, ending: Start) -> TopicHandle:
    """Return a topic with the partitions that are read: all, or those that two dictionaries name.

    So a range that is bounded on both sides stays what it is when partitions are added.
    """
    if isinstance(starting, str) or isinstance(ending, str):
        return topic
    partitions = {*starting.get(topic.name, {}), *ending.get(topic.name, {})}
    bounds = {
        partition: span for partition, span in topic.bounds.items() if partition in partitions
    }
    return replace(topic, bounds=bounds)


def _edge(name: str, bounds: tuple[int, int]) -> int:
    return bounds[0] if name == EARLIEST else bounds[1]


def check_topics_read(wanted: Start, topics: list[TopicHandle], option: str) -> None:
    """Raise if `wanted` has offsets of a topic that is not read."""
    if isinstance(wanted, str):
        return
    unknown = sorted(set(wanted) - {topic.name for topic in topics})
    if unknown:
        raise InvalidArgumentError(
            "offsets are given for a topic that is not read",
            option=option,
            topic=unknown[0],
            topics=", ".join(topic.name for topic in topics),
        )


def check_starts(topic: TopicHandle, starts: Mapping[int, int]) -> None:
    """Raise if a start is beyond the partition's end: records before it would be skipped."""
    for partition, (low, end) in topic.bounds.items():
        if starts[partition] > end:
            raise OffsetOutOfRangeError(
                "a start lies beyond the end",
                topic=topic.name,
                partition=partition,
                offset=starts[partition],
                earliest=low,
                end=end,
            )


def existing_ranges(
    topic: TopicHandle,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    fail_on_data_loss: bool,
) -> dict[int, tuple[int, int]]:
    """Return the parts of the ranges that exist, without empty ones.

    With `fail_on_data_loss` a part that does not exist is a `DataLossError`.
    """
    ranges = {}
    for partition, (low, end) in topic.bounds.items():
        start, until = starts[partition], min(ends[partition], end)
        if ends[partition] > end and fail_on_data_loss:
            raise data_loss(topic.name, partition, start=end, until=ends[partition], end=end)
        if start < low and start < until:
            if fail_on_data_loss:
                raise data_loss(topic.name, partition, start=start, until=min(low, until), low=low)
            start = low
        if start < until:
            ranges[partition] = (start, until)
    return ranges
