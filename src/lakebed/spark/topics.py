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

    A pattern may fit none, or more later on; a topic that is named has to be there, unless the
    caller looks itself which of those in `missing` are gone.
    """
    if options.pattern is not None:
        names = [name for name in log.topics() if re.fullmatch(options.pattern, name)]
    else:
        names = [options.topic] if options.topic is not None else list(options.subscribe)
    found = []
    for name in sorted(names):
        try:
            found.append(TopicHandle(name, log.describe_topic(name).id, log.offsets(name)))
        except TopicNotFoundError:
            if options.pattern is None and name not in missing:
                raise
            # It was deleted between being listed and being looked at.
    return found


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
        each.name: spark_schema(
            log.table(each.name).schema,
            topic=options.topic is None,
            headers=options.include_headers,
        )
        for each in topics
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


def resolved(
    log: RemoteLog, topic: TopicHandle, wanted: Start, time_us: int | None, *, otherwise: str
) -> dict[int, int]:
    """Return the offset of each partition that a start or an end means.

    `otherwise` is meant where offsets are given for some partitions and not for this one.
    """
    if time_us is not None:
        return {
            number: log.offset_for_time(topic.name, number, timestamp=time_us)
            for number in topic.bounds
        }
    if isinstance(wanted, str):
        return {number: _named(wanted, each) for number, each in topic.bounds.items()}
    given = wanted.get(topic.name, {})
    unknown = sorted(set(given) - set(topic.bounds))
    if unknown:
        raise PartitionNotFoundError(
            "offsets are given for a partition that does not exist",
            topic=topic.name,
            partition=unknown[0],
            partitions=len(topic.bounds),
        )
    names = {FIRST: EARLIEST, LAST: LATEST}
    offsets: dict[int, int] = {}
    for number, bounds in topic.bounds.items():
        offset = given.get(number)
        if offset is None:
            offsets[number] = _named(otherwise, bounds)
        else:
            offsets[number] = _named(names[offset], bounds) if offset in names else offset
    return offsets


def named(topic: TopicHandle, starting: Start, ending: Start) -> TopicHandle:
    """Return a topic with the partitions that are read: all, or those that two dictionaries name.

    So a range that is bounded on both sides stays what it is when partitions are added.
    """
    if isinstance(starting, str) or isinstance(ending, str):
        return topic
    known = {*starting.get(topic.name, {}), *ending.get(topic.name, {})}
    bounds = {number: each for number, each in topic.bounds.items() if number in known}
    return replace(topic, bounds=bounds)


def _named(name: str, bounds: tuple[int, int]) -> int:
    return bounds[0] if name == EARLIEST else bounds[1]


def check_known(wanted: Start, topics: list[TopicHandle], option: str) -> None:
    """Refuse offsets of topics that are not read."""
    if isinstance(wanted, str):
        return
    unknown = sorted(set(wanted) - {each.name for each in topics})
    if unknown:
        raise InvalidArgumentError(
            "offsets are given for a topic that is not read",
            option=option,
            topic=unknown[0],
            topics=", ".join(each.name for each in topics),
        )


def check_reached(topic: TopicHandle, starts: Mapping[int, int]) -> None:
    """Refuse to begin beyond a partition's end: what comes before that would be passed over."""
    for number, (low, end) in topic.bounds.items():
        if starts[number] > end:
            raise OffsetOutOfRangeError(
                "a start lies beyond the end",
                topic=topic.name,
                partition=number,
                offset=starts[number],
                earliest=low,
                end=end,
            )


def bounded(
    topic: TopicHandle,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    *,
    fail_on_data_loss: bool,
) -> dict[int, tuple[int, int]]:
    """Return the wanted ranges that exist; a missing one is an error, unless allowed."""
    ranges = {}
    for number, (low, end) in topic.bounds.items():
        start, until = starts[number], min(ends[number], end)
        if ends[number] > end and fail_on_data_loss:
            raise data_loss(topic.name, number, end, ends[number], end=end)
        if start < low and start < until:
            if fail_on_data_loss:
                raise data_loss(topic.name, number, start, min(low, until), low=low)
            start = low
        if start < until:
            ranges[number] = (start, until)
    return ranges
