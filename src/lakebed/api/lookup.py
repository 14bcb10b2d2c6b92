"""Topics and partitions that callers name, and the errors for those that do not exist."""

from __future__ import annotations

from lakebed.errors import (
    InvalidArgumentError,
    PartitionNotFoundError,
    RejectedError,
    TopicNotFoundError,
)
from lakebed.state.values import Topic
from lakebed.types import TopicName


def no_topic(name: object) -> RejectedError:
    """Build the error for a name that no topic has."""
    if not isinstance(name, str):
        return InvalidArgumentError("topic must be a str", got=type(name).__name__)
    TopicName(name)
    return TopicNotFoundError(f"topic {name!r} does not exist", topic=name)


def no_partition(topic: Topic, partition: object) -> RejectedError:
    """Build the error for a number that no partition has."""
    return PartitionNotFoundError(
        "the partition does not exist",
        topic=topic.name,
        partition=repr(partition),
        partitions=topic.partitions,
    )


def check_partition(topic: Topic, partition: object) -> None:
    """Raise `PartitionNotFoundError` if a topic does not have a partition."""
    if type(partition) is not int or not 0 <= partition < topic.partitions:
        raise no_partition(topic, partition)
