"""Fetching: the next records behind a cursor, from the memtables and segments of this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from lakebed.api.cursor import Cursor, Fetched
from lakebed.api.reads import Bounds
from lakebed.engine.core import Key
from lakebed.engine.reading import Reading
from lakebed.errors import OffsetOutOfRangeError
from lakebed.state.values import Topic
from lakebed.types import TopicPartition


def fetch(
    reading: Reading, cursor: Cursor, bounds: Bounds, columns: Sequence[str] | None
) -> Fetched:
    """Read the partitions of a cursor in turn, as much of one topic as the bounds allow.

    It moves the cursor only where records were removed or a topic was recreated: `Cursor.give`
    moves it behind the records.
    """
    for name in cursor.topics():
        topic = reading.topic(name)
        cursor.restart(name, topic.id, partial(_low, reading, topic))
    places = sorted(cursor.positions)
    following: dict[TopicPartition, int] = {}
    delivered: dict[TopicPartition, int] = {}
    if not places:
        return Fetched(None, following, delivered)
    cursor.turn = (cursor.turn + 1) % len(places)
    tables: list[pa.Table] = []
    topic_name = ""
    records, size = bounds
    for partition in places[cursor.turn :] + places[: cursor.turn]:
        if tables and (partition.topic != topic_name or records <= 0 or size <= 0):
            continue
        table, following[partition] = _read(
            reading, cursor, partition, Bounds(records, size), columns
        )
        if table.num_rows:
            delivered[partition] = following[partition]
            topic_name = partition.topic
            tables.append(table)
            records -= table.num_rows
            size -= table.nbytes
    return Fetched(pa.concat_tables(tables) if tables else None, following, delivered)


def _low(reading: Reading, topic: Topic, partition: int) -> int:
    return reading.bounds(topic, partition)[0]


def _read(
    reading: Reading,
    cursor: Cursor,
    partition: TopicPartition,
    bounds: Bounds,
    columns: Sequence[str] | None,
) -> tuple[pa.Table, int]:
    position = cursor.positions[partition]
    try:
        return reading.read(
            reading.topic(partition.topic), partition.partition, position, bounds, columns
        )
    except OffsetOutOfRangeError:
        topic = reading.topic(partition.topic)
        start = cursor.skip(partition, position, *reading.bounds(topic, partition.partition))
        return reading.read(topic, partition.partition, start, bounds, columns)


def next_wanted(reading: Reading, cursor: Cursor) -> dict[Key, int]:
    """Return the next offset of each partition of a cursor, as `Reading.watch` takes it."""
    return {
        reading.key(reading.topic(partition.topic), partition.partition): offset
        for partition, offset in cursor.positions.items()
    }
