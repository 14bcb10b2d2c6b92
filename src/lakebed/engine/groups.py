"""Consumer groups: who is alive, who holds what, and how far each group has come.

Members live in this process's memory; who holds which partition, and the offsets committed, live in
the log. Each change of hands is an entry, and a commit says which member it comes from: one that
arrives after its partition went to somebody else is refused by the state machine, whatever the
order of events was outside of the log.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection
from typing import Any

from lakebed.api.offsets import Offsets, place_offsets
from lakebed.engine.core import Core
from lakebed.engine.reading import Reading
from lakebed.errors import (
    FencedError,
    GroupNotEmptyError,
    GroupNotFoundError,
)
from lakebed.reports.groups import GroupInfo, GroupPartition
from lakebed.state.commands import ChangeGroup, Command, CommitOffsets, DeleteGroup
from lakebed.state.values import Group
from lakebed.topic.membership import Membership
from lakebed.types import GroupName, TopicPartition


class Groups:
    """The consumer groups of a log. Any thread."""

    def __init__(
        self,
        core: Core,
        reading: Reading,
        submit: Callable[[Command], Any],
        check_writable: Callable[[], None],
    ) -> None:
        self._core = core
        self._reading = reading
        self._submit = submit
        self._check_writable = check_writable
        self._guard = threading.RLock()
        self._memberships: dict[str, Membership] = {}
        self._watchers: dict[str, list[Callable[[], None]]] = {}
        self._logged: dict[str, int] = {}
        """The generation of each membership that the log knows."""

    def _alone(self) -> threading.RLock:
        """Return the lock. Its holder may wait for a commit, so no callback of one may take it."""
        self._core.check_may_wait()
        return self._guard

    # Members

    def join(
        self, group: str, topics: Collection[str], session_seconds: float, strategy: str
    ) -> str:
        """Take a consumer into a group; return its id."""
        self._check_writable()
        name = GroupName(group)
        for topic in topics:
            self._reading.topic(topic)
        member = f"{name}-{uuid.uuid4().hex[:12]}"
        with self._alone():
            membership = self._membership(name)
            now = self._core.clock.monotonic()
            membership.expire(now)
            membership.join(member, topics, now, session_seconds, strategy=strategy)
            self._note_change(name, membership)
        return member

    def heartbeat(
        self, group: str, member: str, held: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Report that a member lives and what it holds; return what it may hold."""
        with self._alone():
            membership = self._memberships.get(group)
            if membership is None:
                raise FencedError("not a member of the group", group=group, member=member)
            membership.set_partitions(self._counts())
            allowed = membership.heartbeat(member, self._core.clock.monotonic(), held)
            # Also if a change was made before whose entry was never written (Ctrl-C).
            if membership.generation != self._logged.get(group) or self._is_recreated(
                group, allowed
            ):
                self._note_change(group, membership)
            return allowed

    def _is_recreated(self, group: str, held: Collection[TopicPartition]) -> bool:
        """Return whether a topic was deleted and created again, under a new id."""
        state = self._core.state
        owned = {topic for topic, *_ in state.groups.get(group, Group()).owners}
        return any(
            state.names.get(name) not in owned for name in {partition.topic for partition in held}
        )

    def leave(self, group: str, member: str) -> None:
        """Let a member go. One that is gone already is no mistake."""
        with self._alone():
            membership = self._memberships.get(group)
            if membership is not None and member in membership.members:
                membership.leave(member)
                self._note_change(group, membership)

    def expire(self) -> list[str]:
        """Expel members that were silent for too long; return who they were."""
        gone: list[str] = []
        with self._alone():
            for name, membership in self._memberships.items():
                expelled = membership.expire(self._core.clock.monotonic())
                if expelled:
                    gone += expelled
                    self._note_change(name, membership)
        return gone

    def watch(self, group: str, callback: Callable[[], None]) -> None:
        """Have a consumer told when its group changes."""
        with self._alone():
            self._watchers.setdefault(group, []).append(callback)

    def unwatch(self, group: str, callback: Callable[[], None]) -> None:
        """End that."""
        with self._alone():
            self._watchers[group] = [
                watcher for watcher in self._watchers.get(group, ()) if watcher != callback
            ]

    def wake_all(self) -> None:
        """Wake every consumer: the log is being closed."""
        for callbacks in list(self._watchers.values()):
            for callback in callbacks:
                callback()

    def _membership(self, group: str) -> Membership:
        membership = self._memberships.get(group)
        if membership is None:
            state = self._core.state.groups.get(group, Group())
            membership = Membership(state.generation)
            self._memberships[group] = membership
        membership.set_partitions(self._counts())
        return membership

    def _counts(self) -> dict[str, int]:
        return {topic.name: topic.partitions for topic in list(self._core.state.topics.values())}

    def _note_change(self, group: str, membership: Membership) -> None:
        """Write down who holds what, before anyone acts on it; tell the others."""
        names = self._core.state.names
        owners = tuple(
            sorted(
                (names[partition.topic], partition.partition, member)
                for partition, member in membership.owners().items()
                if partition.topic in names
            )
        )
        state = self._core.state.groups.get(group)
        if state is None or state.owners != owners:
            self._submit(ChangeGroup(group, owners))
        self._logged[group] = membership.generation
        for callback in self._watchers.get(group, ()):
            callback()

    # Offsets

    def commit(self, group: str, member: str, offsets: Offsets) -> None:
        """Remember how far a group has come; durable when this returns."""
        name = GroupName(group)
        places = self.places(offsets)
        if places:
            time_us = self._core.clock.time_us()
            self._submit(CommitOffsets(str(name), member, places, time_us))

    def places(self, offsets: Offsets) -> tuple[tuple[int, int, int], ...]:
        """Check offsets and return them as (topic id, partition, offset)."""
        return place_offsets(offsets, self._core.topic_named)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        state = self._core.state
        offsets: dict[TopicPartition, int] = {}
        for (name, topic_id, partition), committed in list(state.offsets.items()):
            topic = state.topics.get(topic_id)
            if name == group and topic is not None:
                offsets[TopicPartition(topic.name, partition)] = committed.offset
        return offsets

    # Looking after groups

    def names(self) -> list[str]:
        """List the groups, sorted."""
        return sorted(self._core.state.groups)

    def describe(self, group: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group."""
        state = self._core.state.groups.get(GroupName(group))
        if state is None:
            raise _no_group(group)
        with self._alone():
            membership = self._memberships.get(group)
            members = tuple(membership.members) if membership else ()
            owners = membership.owners() if membership else {}
            generation = state.generation
        committed = self.committed(group)
        rows = [
            self._partition(partition, committed.get(partition), owners.get(partition))
            for partition in self._places_of(
                {partition.topic for partition in (*committed, *owners)}
            )
        ]
        return GroupInfo(group, generation, members, tuple(rows))

    def _places_of(self, topics: set[str]) -> list[TopicPartition]:
        """List every partition of the topics a group reads, also those it has not come to yet."""
        return [
            TopicPartition(name, partition)
            for name in sorted(topics)
            for partition in range(self._reading.topic(name).partitions)
        ]

    def _partition(
        self, partition: TopicPartition, committed: int | None, member: str | None
    ) -> GroupPartition:
        topic = self._reading.topic(partition.topic)
        low, end = self._reading.bounds(topic, partition.partition)
        position = low if committed is None else max(low, committed)
        return GroupPartition(*partition, committed, low, end, end - position, member)

    def reset(self, group: str, offsets: Offsets) -> None:
        """Let a group without members go on from other offsets."""
        name = GroupName(group)
        with self._alone():
            self._check_empty(name)
            self.commit(name, "", offsets)

    def delete(self, group: str) -> None:
        """Forget a group that has no members."""
        name = GroupName(group)
        with self._alone():
            if name not in self._core.state.groups:
                raise _no_group(name)
            self._check_empty(name)
            if self._core.state.groups[name].owners:
                self._submit(ChangeGroup(name, ()))  # of members that died with their process
            self._submit(DeleteGroup(name))
            self._memberships.pop(name, None)
            self._logged.pop(name, None)

    def _check_empty(self, group: str) -> None:
        membership = self._memberships.get(group)
        if membership is not None:
            membership.expire(self._core.clock.monotonic())
        if membership is not None and membership.members:
            raise GroupNotEmptyError(
                "the group has members", group=group, members=len(membership.members)
            )


def _no_group(group: str) -> GroupNotFoundError:
    return GroupNotFoundError(f"group {group!r} does not exist", group=group)
