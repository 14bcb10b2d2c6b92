"""What commands on topics change."""

from __future__ import annotations

from lakebed import limits
from lakebed.errors import (
    InvalidArgumentError,
    SchemaChangeError,
    TopicExistsError,
)
from lakebed.state import commands
from lakebed.state.decision import (
    GONE,
    Change,
    Decision,
    Dropped,
    check_partition_id,
    find_topic,
)
from lakebed.state.image import State
from lakebed.state.values import (
    Group,
    Partition,
    Topic,
)


def create_topic(state: State, command: commands.CreateTopic) -> Decision:
    """Create a topic with its partitions."""
    if command.name in state.names:
        raise TopicExistsError("the topic exists", topic=command.name)
    if len(state.topics) >= limits.TOPICS_MAX:
        raise InvalidArgumentError("there are too many topics", topics_max=limits.TOPICS_MAX)
    topic_id = state.numbers["topic"]
    schemas = (command.schema,) if command.schema else ()
    topic = Topic(
        topic_id, command.name, command.partitions, schemas, command.config, command.time_us
    )
    changes: list[Change] = [(state.topics, topic_id, topic), (state.names, topic.name, topic_id)]
    changes += [
        (state.partitions, (topic_id, partition), Partition())
        for partition in range(command.partitions)
    ]
    changes.append((state.numbers, "topic", topic_id + 1))
    return Decision(topic_id, changes)


def alter_topic(state: State, command: commands.AlterTopic) -> Decision:
    """Change settings and schema of a topic."""
    topic = find_topic(state, command.topic)
    if len(topic.schemas) != command.schemas:
        raise SchemaChangeError("the schema was changed concurrently", topic=topic.name)
    schemas = (*topic.schemas, command.schema) if command.schema else topic.schemas
    changed = topic._replace(config=command.config, schemas=schemas)
    return Decision(None, [(state.topics, topic.id, changed)])


def add_partitions(state: State, command: commands.AddPartitions) -> Decision:
    """Add partitions to a topic."""
    topic = find_topic(state, command.topic)
    if command.partitions < topic.partitions:
        raise InvalidArgumentError(
            "a topic's partitions can only grow",
            topic=topic.name,
            partitions=topic.partitions,
            wanted=command.partitions,
        )
    changes: list[Change] = [
        (state.partitions, (topic.id, partition), Partition())
        for partition in range(topic.partitions, command.partitions)
    ]
    changes.append((state.topics, topic.id, topic._replace(partitions=command.partitions)))
    return Decision(None, changes)


def delete_topic(state: State, command: commands.DeleteTopic) -> Decision:
    """Delete a topic with everything in it."""
    topic = find_topic(state, command.topic)
    changes: list[Change] = [(state.topics, topic.id, GONE), (state.names, topic.name, GONE)]
    dropped: list[Dropped] = []
    for partition in range(topic.partitions):
        key = (topic.id, partition)
        changes.append((state.partitions, key, GONE))
        dropped += [(*key, old.id) for old in state.partitions[key].segments]
    changes += [(state.sequences, key, GONE) for key in state.sequences if key[1] == topic.id]
    changes += [(state.offsets, key, GONE) for key in state.offsets if key[1] == topic.id]
    for name, group in state.groups.items():
        owners = tuple(owner for owner in group.owners if owner[0] != topic.id)
        if owners != group.owners:
            changes.append((state.groups, name, Group(group.generation + 1, owners)))
    return Decision(None, changes, tuple(dropped))


def purge_topic(state: State, command: commands.PurgeTopic) -> Decision:
    """Remove every record of a topic."""
    topic = find_topic(state, command.topic)
    lows = {
        partition: state.partitions[(topic.id, partition)].end
        for partition in range(topic.partitions)
    }
    return _raise_lows(state, topic, lows)


def trim(state: State, command: commands.Trim) -> Decision:
    """Remove the oldest records of partitions."""
    topic = find_topic(state, command.topic)
    for partition, _ in command.lows:
        check_partition_id(topic, partition)
    return _raise_lows(state, topic, dict(command.lows))


def _raise_lows(state: State, topic: Topic, lows: dict[int, int]) -> Decision:
    """Raise low watermarks; segments below them are not needed any more."""
    changes: list[Change] = []
    dropped: list[Dropped] = []
    for partition_id, wanted in lows.items():
        key = (topic.id, partition_id)
        partition = state.partitions[key]
        low = max(partition.low, min(wanted, partition.end))
        kept = tuple(segment for segment in partition.segments if segment.end > low)
        gone = partition.segments[: len(partition.segments) - len(kept)]
        dropped += [(*key, segment.id) for segment in gone]
        flushed = max(partition.flushed, low)
        changed = partition._replace(low=low, flushed=flushed, segments=kept)
        changes.append((state.partitions, key, changed))
    return Decision(None, changes, tuple(dropped))
