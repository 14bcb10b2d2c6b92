"""Consumer groups of a served log: members here, everything that is agreed on at the server."""

from __future__ import annotations

from collections.abc import Callable, Collection

from lakebed.api.offsets import Offsets, flat_offsets, place_offsets
from lakebed.client.connection import Connection
from lakebed.client.reading import RemoteReading
from lakebed.reports.groups import GroupInfo
from lakebed.types import GroupName, TopicPartition


class RemoteGroups:
    """The consumer groups of a served log. Any thread."""

    def __init__(self, connection: Connection, reading: RemoteReading) -> None:
        self._call = connection.call
        self._reading = reading

    # Members

    def join(
        self, group: str, topics: Collection[str], session_seconds: float, strategy: str
    ) -> str:
        """Take a consumer into a group; return its id."""
        member: str = self._call(
            "join",
            group=str(GroupName(group)),
            topics=list(topics),
            session_seconds=session_seconds,
            strategy=strategy,
        )
        return member

    def heartbeat(
        self, group: str, member: str, held: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Report that a member lives and what it holds; return what it may hold."""
        allowed = self._call("heartbeat", group=group, member=member, held=sorted(held))
        return frozenset(TopicPartition(*partition) for partition in allowed)

    def leave(self, group: str, member: str) -> None:
        """Let a member go."""
        self._call("leave", group=group, member=member)

    def watch(self, group: str, callback: Callable[[], None]) -> None:
        """Do nothing: the answer to a request tells when the group has changed."""

    def unwatch(self, group: str, callback: Callable[[], None]) -> None:
        """Do nothing."""

    # Offsets

    def commit(self, group: str, member: str, offsets: Offsets) -> None:
        """Remember how far a group has come; durable when this returns."""
        places = flat_offsets(offsets)
        if places:
            self._call("commit", group=str(GroupName(group)), member=member, offsets=places)

    def places(self, offsets: Offsets) -> tuple[tuple[int, int, int], ...]:
        """Check offsets and return them as (topic id, partition, offset)."""
        names = {topic for topic, _, _ in flat_offsets(offsets)}
        topics = {name: self._reading.topic(name) for name in names}
        return place_offsets(offsets, topics.__getitem__)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        offsets = self._call("committed", group=str(GroupName(group)))
        return {TopicPartition(topic, partition): offset for topic, partition, offset in offsets}

    # Looking after groups

    def names(self) -> list[str]:
        """List the groups, sorted."""
        return list(self._call("groups"))

    def describe(self, group: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group."""
        info: GroupInfo = self._call("describe_group", name=str(GroupName(group)))
        return info

    def reset(self, group: str, offsets: Offsets) -> None:
        """Let a group without members go on from other offsets."""
        self._call("reset_group", name=str(GroupName(group)), offsets=flat_offsets(offsets))

    def delete(self, group: str) -> None:
        """Forget a group that has no members."""
        self._call("delete_group", name=str(GroupName(group)))
