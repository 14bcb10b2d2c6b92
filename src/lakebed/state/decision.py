"""What a command changes: the vocabulary in which the state machine decides."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lakebed.errors import (
    InvalidArgumentError,
    PartitionNotFoundError,
    RejectedError,
    TopicNotFoundError,
)
from lakebed.state.image import State
from lakebed.state.values import (
    Topic,
)

TIMED_OUT: Final = "timed out"
"""The outcome of a transaction that was open for too long."""

GONE: Final = object()
"""The value of a change that takes a key out."""

Change = tuple[Any, Any, Any]
"""A dictionary (or what takes values like one), a key, and the value to put there."""


class Placed(NamedTuple):
    """Rows of a part that got their offsets."""

    topic: int
    partition: int
    base: int
    records: int
    start: int
    """The first row in the part's batch."""
    index: int  # type: ignore[assignment]  # as in Pending
    number: int
    """The entry and the part that hold the batch."""


class Written(NamedTuple):
    """What a write came to: where its rows are, part by part."""

    parts: tuple[tuple[Placed, ...] | RejectedError, ...]
    duplicate: bool = False
    """It was a repeat: the rows are where the first one put them."""
    runs: tuple[tuple[Placed | RejectedError, ...], ...] = ()
    """Of `WriteMany`: what became of each run of each part. `parts` has the rows that are new."""


Dropped = tuple[int, int, int]
"""Topic, partition and id of a segment."""


class Decision(NamedTuple):
    """What is to become of the state, and what the caller is told."""

    result: Any
    changes: list[Change]
    dropped: tuple[Dropped, ...] = ()
    """Segments whose files are not needed any more."""


def find_topic(state: State, topic_id: int) -> Topic:
    """Return a topic, or raise `TopicNotFoundError`."""
    topic = state.topics.get(topic_id)
    if topic is None:
        raise TopicNotFoundError("the topic was deleted", topic_id=topic_id)
    return topic


def check_partition_id(topic: Topic, partition: int) -> None:
    """Raise if a topic has no such partition."""
    if not 0 <= partition < topic.partitions:
        raise PartitionNotFoundError(
            "the partition does not exist",
            topic=topic.name,
            partition=partition,
            partitions=topic.partitions,
        )


def check_room(what: str, count: int, most: int) -> None:
    """Raise if there is no room for one more."""
    if count >= most:
        raise InvalidArgumentError(f"there are too many {what}", **{f"{what}_max": most})
