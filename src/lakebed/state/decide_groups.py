"""What commands on consumer groups change: committed offsets, and the members that may commit."""

from __future__ import annotations

from lakebed.errors import (
    FencedError,
    GroupNotEmptyError,
    GroupNotFoundError,
    OffsetOutOfRangeError,
)
from lakebed.state import commands
from lakebed.state.decision import (
    GONE,
    Change,
    Decision,
    check_partition_id,
    find_topic,
)
from lakebed.state.image import State
from lakebed.state.partition_ends import PartitionEnds
from lakebed.state.values import (
    CommittedOffset,
    Group,
)


def commit_offsets(state: State, command: commands.CommitOffsets) -> Decision:
    """Commit offsets of a group."""
    changes: list[Change] = []
    ends = PartitionEnds(state)
    owners = group_owners(state, command.group)
    for topic, partition, offset in command.offsets:
        check_group_owner(owners, command.group, command.member, (topic, partition))
        changes += set_offsets(
            state, command.group, topic, partition, offset, command.time_us, ends
        )
    return Decision(None, changes)


def set_offsets(
    state: State,
    group: str,
    topic: int,
    partition: int,
    offset: int,
    time_us: int,
    ends: PartitionEnds,
) -> list[Change]:
    """Return the changes that set the committed offset of a partition."""
    key = (topic, partition)
    topic_state = find_topic(state, topic)
    check_partition_id(topic_state, partition)
    end = ends.ends.get(key, state.partitions[key].end)
    if offset > end:
        raise OffsetOutOfRangeError(
            "cannot commit beyond the end",
            topic=topic_state.name,
            partition=partition,
            offset=offset,
            end=end,
        )
    changes: list[Change] = [(state.offsets, (group, *key), CommittedOffset(offset, time_us))]
    if group not in state.groups:
        changes.append((state.groups, group, Group()))
    return changes


def group_owners(state: State, group: str) -> dict[tuple[int, int], str]:
    """Return the member that holds each partition of a group."""
    return {owner[:2]: owner[2] for owner in state.groups.get(group, Group()).owners}


def check_group_owner(
    owners: dict[tuple[int, int], str], group: str, member: str, key: tuple[int, int]
) -> None:
    """Refuse a member that does not hold the partition (any more); no member means no check."""
    owner = owners.get(key)
    if member and owner != member:
        raise FencedError(
            "the partition is no longer assigned to this consumer",
            group=group,
            partition=key[1],
            member=member,
            owner=owner,
        )


def change_group(state: State, command: commands.ChangeGroup) -> Decision:
    """Set the members that hold the partitions of a group."""
    group = state.groups.get(command.group, Group())
    owners = tuple(owner for owner in command.owners if owner[0] in state.topics)
    changed = Group(group.generation + 1, owners)
    return Decision(changed.generation, [(state.groups, command.group, changed)])


def delete_group(state: State, command: commands.DeleteGroup) -> Decision:
    """Delete a group."""
    group = state.groups.get(command.group)
    if group is None:
        raise GroupNotFoundError(f"group {command.group!r} does not exist", group=command.group)
    if group.owners:
        raise GroupNotEmptyError("the group has members", group=command.group)
    changes: list[Change] = [(state.groups, command.group, GONE)]
    changes += [(state.offsets, key, GONE) for key in state.offsets if key[0] == command.group]
    return Decision(None, changes)
