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
    given: dict[TopicPartition, int] = {}
    if not places:
        return Fetched(None, following, given)
    cursor.turn = (cursor.turn + 1) % len(places)
    tables: list[pa.Table] = []
    topic_name = ""
    records, size = bounds
    for place in places[cursor.turn :] + places[: cursor.turn]:
        if tables and (place.topic != topic_name or records <= 0 or size <= 0):
            continue
        table, following[place] = _read(reading, cursor, place, Bounds(records, size), columns)
        if table.num_rows:
            given[place] = following[place]
            topic_name = place.topic
            tables.append(table)
            records -= table.num_rows
            size -= table.nbytes
    return Fetched(pa.concat_tables(tables) if tables else None, following, given)


def _low(reading: Reading, topic: Topic, partition: int) -> int:
    return reading.bounds(topic, partition)[0]


def _read(
    reading: Reading,
    cursor: Cursor,
    place: TopicPartition,
    bounds: Bounds,
    columns: Sequence[str] | None,
) -> tuple[pa.Table, int]:
    position = cursor.positions[place]
    try:
        return reading.read(reading.topic(place.topic), place.partition, position, bounds, columns)
    except OffsetOutOfRangeError:
        topic = reading.topic(place.topic)
        start = cursor.skip(place, position, *reading.bounds(topic, place.partition))
        return reading.read(topic, place.partition, start, bounds, columns)


def wanted_next(reading: Reading, cursor: Cursor) -> dict[Key, int]:
    """Return the next offset of each partition of a cursor, as `Reading.watch` takes it."""
    return {
        reading.key(reading.topic(place.topic), place.partition): offset
        for place, offset in cursor.positions.items()
    }
