"""Where rows are placed: the ends of partitions while one command is decided."""

from __future__ import annotations

from lakebed.errors import (
    SchemaChangeError,
)
from lakebed.state.decision import (
    Change,
    Placed,
    check_partition_id,
    find_topic,
)
from lakebed.state.image import State
from lakebed.state.values import (
    Part,
    Topic,
)


class PartitionEnds:
    """Partitions as the runs of one command leave them, one after another."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.ends: dict[tuple[int, int], int] = {}

    def place(self, part: Part, index: int, part_number: int) -> tuple[Placed, ...]:
        """Return each run of a part its offsets."""
        topic = self.check_part(part)
        for run in part.runs:
            check_partition_id(topic, run.partition)
        placed, start = [], 0
        for run in part.runs:
            key = (part.topic, run.partition)
            base = self.take(key, run.records)
            placed.append(Placed(*key, base, run.records, start, index, part_number))
            start += run.records
        return tuple(placed)

    def check_part(self, part: Part) -> Topic:
        """Return the topic of a part, or raise why the part cannot be placed."""
        topic = find_topic(self._state, part.topic)
        if part.schema and part.schema > len(topic.schemas):
            raise SchemaChangeError("the topic does not have this schema version", topic=topic.name)
        return topic

    def take(self, key: tuple[int, int], records: int) -> int:
        """Return the next offset of a partition, which so many records take."""
        base = self.ends.get(key)
        if base is None:
            base = self._state.partitions[key].end
        self.ends[key] = base + records
        return base

    def changes(self) -> list[Change]:
        """Return the changes of the partitions."""
        partitions = self._state.partitions
        return [
            (partitions, key, partitions[key]._replace(end=end)) for key, end in self.ends.items()
        ]
