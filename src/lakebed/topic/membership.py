"""The living members of one consumer group, and how partitions pass from one to the other.

A hand-over never stops the whole group, and never lets two members hold a partition:

1. A change of members, topics or partitions gives a new *target*: who should hold what.
2. A member's heartbeat says what it still holds. The answer is what it may hold from now on: of its
   target, what it holds already and what no member holds.
3. A partition that should move is missing from its holder's answer. The holder finishes with it,
   commits its offset, and leaves it out of its next heartbeat. From then on no member holds it, and
   the next heartbeat of the member that should have it is answered with it.
4. The holdings of a member that leaves, or that is silent for longer than its session, are free at
   once. Should it come back it is fenced: its next heartbeat or commit is refused.

An answer that gets lost does no harm: the member does not name what it was never told of, so nobody
holds that, and it is in the next answer again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from lakebed import limits
from lakebed.errors import FencedError, InvalidArgumentError
from lakebed.topic.assignment import Assignment, assign, check_strategy
from lakebed.types import TopicPartition


@dataclass
class _Member:
    topics: frozenset[str]
    last_seen: float
    session_seconds: float
    held: frozenset[TopicPartition] = field(default_factory=frozenset)
    """What it was given and has not said to have given up."""


class Membership:
    """Members of a group, what each holds and what each should hold.

    Time is the caller's, in seconds of any clock that does not go back. No thread may call while
    another does, and a member has one heartbeat under way at a time.
    """

    def __init__(self, generation: int = 0, partitions: Mapping[str, int] | None = None) -> None:
        self.generation = generation
        """Grows by one with every change of the members or of who holds what."""
        self.strategy: str | None = None
        """How partitions are assigned; None while there are no members."""
        self._partitions = dict(partitions or {})
        self._members: dict[str, _Member] = {}
        self._owners: dict[TopicPartition, str] = {}
        self._target: Assignment | None = None
        """None when it must be computed again: of a crowd that joins, only the last one costs."""

    def join(
        self,
        member: str,
        topics: Collection[str],
        now: float,
        session_seconds: float,
        *,
        strategy: str = "sticky",
    ) -> None:
        """Take in a member, or take note of the topics that a member subscribes to from now on."""
        check_strategy(strategy)
        if not 0 < session_seconds < math.inf:
            raise InvalidArgumentError("session_seconds must be above 0", value=session_seconds)
        self._check_room(member, strategy)
        present = self._members.get(member)
        joined = _Member(frozenset(topics), now, session_seconds)
        if present is not None:
            joined.held = present.held
        self._members[member] = joined
        if present is None or present.topics != joined.topics or self.strategy != strategy:
            self.strategy = strategy
            self._members_changed()

    def leave(self, member: str) -> None:
        """Remove a member: what it held is free at once."""
        self._find(member)
        self._remove([member])

    def expire(self, now: float) -> list[str]:
        """Expel those that were silent for longer than their session; return who they were."""
        silent = sorted(
            name
            for name, member in self._members.items()
            if now - member.last_seen > member.session_seconds
        )
        if silent:
            self._remove(silent)
        return silent

    def set_partitions(self, partitions: Mapping[str, int]) -> None:
        """Take note of the topics that exist, each with its number of partitions."""
        if partitions != self._partitions:
            self._partitions = dict(partitions)
            self._target = None

    def heartbeat(
        self, member: str, now: float, held: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Hear what a member still holds, and return what it may hold from now on.

        What it holds and is not in the answer it must give up: finish with it, then name it no
        more. A member that was silent for longer than its session, but is not expelled yet, goes on
        as if it had not been.
        """
        present = self._find(member)
        still = frozenset(held)
        if not still <= present.held:
            foreign = sorted(still - present.held)
            raise FencedError(
                "the partition is not assigned to this member",
                member=member,
                partitions=_name_some(foreign),
                generation=self.generation,
            )
        present.last_seen = max(present.last_seen, now)
        given_up = present.held - still
        target = self._targets()[member]
        allowed = frozenset(
            partition
            for partition in target
            if partition in still or partition in given_up or partition not in self._owners
        )
        self._hold(member, present, still | allowed)
        return allowed

    def owner(self, partition: TopicPartition) -> str | None:
        """Return who holds a partition right now."""
        return self._owners.get(partition)

    def owners(self) -> dict[TopicPartition, str]:
        """Return who holds what right now, which alone may commit offsets of it."""
        return dict(self._owners)

    @property
    def members(self) -> list[str]:
        """The ids of the members, sorted."""
        return sorted(self._members)

    @property
    def stable(self) -> bool:
        """Whether each member holds exactly what it should."""
        targets = self._targets()
        return all(member.held == targets[name] for name, member in self._members.items())

    def describe(self) -> dict[str, object]:
        """Return everything there is to know, as plain data."""
        targets = self._targets()
        return {
            "generation": self.generation,
            "strategy": self.strategy,
            "stable": self.stable,
            "members": {
                name: {
                    "topics": sorted(member.topics),
                    "held": _by_topic(member.held),
                    "target": _by_topic(targets[name]),
                    "last_seen": member.last_seen,
                    "session_seconds": member.session_seconds,
                }
                for name, member in sorted(self._members.items())
            },
        }

    def _find(self, member: str) -> _Member:
        present = self._members.get(member)
        if present is None:
            raise FencedError(
                "not a member of the group: it left, or was silent for longer than its session",
                member=member,
                generation=self.generation,
            )
        return present

    def _check_room(self, member: str, strategy: str) -> None:
        """Refuse one member too many, and one that wants partitions assigned in another way."""
        others = self._members.keys() - {member}
        if len(others) >= limits.GROUP_MEMBERS_MAX:
            raise InvalidArgumentError(
                "the group has the maximum number of members", limit=limits.GROUP_MEMBERS_MAX
            )
        if others and strategy != self.strategy:
            raise InvalidArgumentError(
                "the members of a group must have the same assignment strategy",
                group=self.strategy,
                joining=strategy,
            )

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            for partition in self._members.pop(name).held:
                del self._owners[partition]
        if not self._members:
            self.strategy = None
        self._members_changed()

    def _members_changed(self) -> None:
        self.generation += 1
        self._target = None

    def _targets(self) -> Assignment:
        if self._target is None:
            topics = {name: member.topics for name, member in self._members.items()}
            held = {name: member.held for name, member in self._members.items()}
            strategy = self.strategy or "sticky"  # without members it makes no difference
            self._target = assign(strategy, topics, self._partitions, held)
        return self._target

    def _hold(self, name: str, member: _Member, held: frozenset[TopicPartition]) -> None:
        """Change what a member holds, and with it the owners."""
        if held == member.held:
            return
        for partition in member.held - held:
            del self._owners[partition]
        self._owners.update(dict.fromkeys(held - member.held, name))
        member.held = held
        self.generation += 1


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    partitions_of: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        partitions_of.setdefault(topic, []).append(partition)
    return partitions_of


def _name_some(partitions: list[TopicPartition], most: int = 5) -> str:
    """Name some partitions; a message need not have them all."""
    names = ",".join(f"{topic}/{partition}" for topic, partition in partitions[:most])
    return names if len(partitions) <= most else f"{names},+{len(partitions) - most}"
