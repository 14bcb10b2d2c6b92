"""Consumer groups of a served log: members here, everything that is agreed on at the server."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from lakebed.api.offsets import Offsets, flat_offsets
from lakebed.client.connection import Connection
from lakebed.client.writing import RemoteCore
from lakebed.engine.groups import Groups
from lakebed.reports.groups import GroupInfo
from lakebed.types import GroupName, TopicPartition


class RemoteGroups:
    """The consumer groups of a served log. Any thread."""

    def __init__(self, core: RemoteCore, connection: Connection, reading: Any) -> None:
        self._core = core
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
        return frozenset(TopicPartition(*each) for each in allowed)

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
        places = sent(offsets)
        if places:
            self._call("commit", group=str(GroupName(group)), member=member, offsets=places)

    def places(self, offsets: Offsets) -> tuple[tuple[int, int, int], ...]:
        """Check offsets and return them as (topic id, partition, offset)."""
        topics = {topic: self._reading.topic(topic) for topic, _, _ in flat_offsets(offsets)}
        reading = _Known(topics)
        return Groups.places(_Places(reading), offsets)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        found = self._call("committed", group=str(GroupName(group)))
        return {TopicPartition(topic, partition): offset for topic, partition, offset in found}

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
        self._call("reset_group", name=str(GroupName(group)), offsets=sent(offsets))

    def delete(self, group: str) -> None:
        """Forget a group that has no members."""
        self._call("delete_group", name=str(GroupName(group)))


def sent(offsets: Offsets) -> list[tuple[str, int, Any]]:
    """Return offsets as they travel."""
    return flat_offsets(offsets)


class _Known:
    """Topics that were looked up, where the engine would look into its state."""

    def __init__(self, topics: dict[str, Any]) -> None:
        self._topics = topics

    def topic(self, name: str) -> Any:
        """Return a topic that was looked up."""
        return self._topics[name]

    def key(self, topic: Any, partition: Any) -> tuple[int, int]:
        """Find a partition, or raise `PartitionNotFoundError`."""
        from lakebed.client.reading import RemoteReading

        return RemoteReading.key(self, topic, partition)  # type: ignore[arg-type]


class _Places(Groups):
    """The engine's checks of offsets, over topics that were looked up."""

    def __init__(self, reading: _Known) -> None:
        self._reading = reading  # type: ignore[assignment]  # what `places` uses of it
