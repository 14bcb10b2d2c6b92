"""What the Iceberg table of a topic is to show.

The state of the log lists the segments. With a store, a table shows those that are there; without
one, all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from lakebed.iceberg.parts import LakeParts
from lakebed.iceberg.table_metadata import Registered
from lakebed.lake.schema import schema_with_ids
from lakebed.state.values import LOCAL, Partition, Segment, Topic


class TableContents(NamedTuple):
    """What the table of a topic is to show."""

    topic: int
    name: str
    columns: pa.Schema
    """With field ids."""
    first_columns: pa.Schema
    """As the topic was created. A catalog assigns the field ids of a new table; to these columns it
    assigns those that our files have. Fields that came later are added to the table afterwards.
    """
    files: Mapping[str, Registered]
    """By location."""
    position: int
    offsets: Mapping[int, int]


def contents_of(parts: LakeParts, topic: Topic) -> TableContents:
    """Return what the table of a topic is to show now."""
    log, stored = parts.log, parts.store is not None
    # First the position, then the segments: a segment that comes in between is shown, and the
    # position does not claim it.
    position = log.state.numbers["applied"]
    files, offsets = {}, {}
    for partition_id in range(topic.partitions):
        partition = log.partition((topic.id, partition_id)) or Partition()
        hidden = [partition.flushed]
        for segment in partition.segments:
            if segment.records > 0 and not (stored and segment.place == LOCAL):
                location = parts.locations.segment(topic.id, partition_id, segment)
                files[location] = _register(parts, topic.id, partition_id, segment)
            else:
                hidden.append(segment.base)
        offsets[partition_id] = min(hidden)
    columns = log.columns(topic)
    first = columns
    if len(topic.schemas) > 1:
        first = schema_with_ids([log.schema(topic, 1).field("value").type])
    return TableContents(topic.id, topic.name, columns, first, files, position, offsets)


def _register(parts: LakeParts, topic: int, partition: int, segment: Segment) -> Registered:
    return Registered(partition, segment, lambda: parts.reader.metadata(topic, partition, segment))
