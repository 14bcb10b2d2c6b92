"""Which files in `lake/` a log may have written and left behind, by their names.

Ids of topics and segments are given once and only grow, and a topic's partitions only grow. So a
name tells whether the log can have written the file: one that it cannot have written belongs to
another log or to a user, and is put aside, never removed.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakebed.lake.folder import SegmentName
from lakebed.state.image import State


def segment_owners(state: State) -> dict[int, tuple[int, int]]:
    """Return the partition of each segment that the state names, by the segment's id."""
    return {
        segment.id: key
        for key, partition in state.partitions.items()
        for segment in partition.segments
    }


def may_be_unfinished(state: State, name: SegmentName) -> bool:
    """Return True if a segment of this name can have been begun: its partition exists or did."""
    topic = state.topics.get(name.topic)
    if topic is not None:
        return name.partition < topic.partitions
    return 0 < name.topic < state.numbers["topic"]  # of a topic that was deleted


def may_be_dropped(state: State, owners: Mapping[int, tuple[int, int]], name: SegmentName) -> bool:
    """Return True if the log can have had a segment of this name, which it does not name now."""
    return (
        0 < name.segment < state.numbers["segment"]
        and name.segment not in owners
        and may_be_unfinished(state, name)
    )
