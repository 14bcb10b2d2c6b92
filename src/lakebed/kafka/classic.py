"""The coordinator of one classic consumer group: a state machine without a clock and without I/O.

Members' metadata and the leader's assignment are opaque bytes: they are the clients' business, and
Kafka Connect puts other things than partitions into them. Every method is given the time; requests
that wait (JoinGroup, SyncGroup) are tokens, and methods return which of them are answered now.

    EMPTY ──join──► PREPARING ──all joined, or time is over──► COMPLETING ──leader's sync──► STABLE
      ▲                ▲                                           │                         │
      └──none left─────┴──────── a member joins, leaves, expires ──┴─────────────────────────┘

Members live in memory. After a restart of the server they learn that they are unknown and join
again; what the group has committed is in the log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from lakebed.kafka import codes

INITIAL_DELAY_SECONDS: Final = 0.2
"""How long the first rebalance of a group waits for members that start at the same time."""
MEMBERS_MAX: Final = 1_000

Answer = Mapping[str, Any]
Answers = list[tuple[Hashable, Answer]]
"""Requests that are answered now, and with what."""


class State(enum.Enum):
    """The state of a group, under the name that clients are shown."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Join(NamedTuple):
    """A request to join."""

    member: str
    """Empty for a new one."""
    instance: str | None
    """The name of a static member, which keeps its place while it restarts."""
    client: str
    host: str
    session_seconds: float
    rebalance_seconds: float
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Assignors that the member knows, the best one first, with its metadata for each."""
    needs_known_id: bool = False
    """Whether a new member gets its id first and joins with that."""


@dataclass
class Member:
    """A member of a group."""

    id: str
    instance: str | None
    client: str
    host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: tuple[tuple[str, bytes], ...]
    expires: float
    assignment: bytes = b""
    joining: Hashable | None = None
    syncing: Hashable | None = None

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata of the member for an assignor."""
        return dict(self.protocols).get(protocol, b"")


@dataclass
class ClassicGroup:
    """One group. One thread."""

    new_id: Callable[[Join], str]
    """Makes the id of a member."""
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Ids that were given to clients which have not joined with them yet, and until when."""
    _earliest: float = 0.0
    _latest: float = 0.0
    """When a rebalance may end at the soonest, and when it ends without those who did not join."""

    @property
    def is_unused(self) -> bool:
        """Whether nothing would be lost by forgetting the group."""
        return not self.members and not self.pending

    # Joining

    def join(self, now: float, token: Hashable, request: Join) -> Answers:
        """Take a member in, or in again; it is answered when all others have joined, too."""
        known = self.members.get(request.member)
        refused = self._refuse_join(request, known)
        if refused:
            return [(token, _not_joined(refused, request.member))]
        if known is not None:
            return self._rejoin(now, token, request, known)
        static = self._static(request.instance)
        if static is not None:
            return self._replace(now, token, request, static)
        if not request.member and request.needs_known_id and request.instance is None:
            made = self.new_id(request)
            self.pending[made] = now + request.session_seconds
            return [(token, _not_joined(codes.MEMBER_ID_REQUIRED, made))]
        return self._add(now, token, request)

    def _refuse_join(self, request: Join, known: Member | None) -> int:
        others = [each for each in self.members.values() if each is not known]
        if others and request.protocol_type != self.protocol_type:
            return codes.INCONSISTENT_GROUP_PROTOCOL
        names = {name for name, _ in request.protocols}
        for each in others:
            if each.instance is None or each.instance != request.instance:
                names &= {name for name, _ in each.protocols}
        if not names or not request.protocol_type:
            return codes.INCONSISTENT_GROUP_PROTOCOL
        if request.member and known is None and request.member not in self.pending:
            is_fenced = self._static(request.instance) is not None
            return codes.FENCED_INSTANCE_ID if is_fenced else codes.UNKNOWN_MEMBER_ID
        if known is not None and known.instance != request.instance:
            return codes.FENCED_INSTANCE_ID
        if known is None and len(self.members) >= MEMBERS_MAX:
            return codes.GROUP_MAX_SIZE_REACHED
        return codes.NONE

    def _static(self, instance: str | None) -> Member | None:
        if instance is None:
            return None
        return next((each for each in self.members.values() if each.instance == instance), None)

    def _add(self, now: float, token: Hashable, request: Join) -> Answers:
        made = request.member or self.new_id(request)
        self.pending.pop(made, None)
        is_new = not self.members
        self.protocol_type = request.protocol_type
        self.members[made] = _member(made, now, token, request)
        answers = self._prepare(now, is_new=is_new)
        return answers + self._complete(now)

    def _rejoin(self, now: float, token: Hashable, request: Join, member: Member) -> Answers:
        answers: Answers = []
        if member.joining is not None and member.joining != token:
            answers.append((member.joining, _not_joined(codes.UNKNOWN_MEMBER_ID, member.id)))
        is_changed = member.protocols != request.protocols
        unchanged_follower = self.state is State.STABLE and member.id != self.leader
        if not is_changed and (unchanged_follower or self.state is State.COMPLETING):
            member.expires = now + member.session_seconds
            return [*answers, (token, self._joined(member))]
        _update(member, now, token, request)
        if self.state is not State.PREPARING:
            answers += self._prepare(now, is_new=False)
        return answers + self._complete(now)

    def _replace(self, now: float, token: Hashable, request: Join, old: Member) -> Answers:
        """Hand the place of a static member to its next process."""
        answers: Answers = []
        for waiting in (old.joining, old.syncing):
            if waiting is not None:
                answers.append((waiting, _not_joined(codes.FENCED_INSTANCE_ID, old.id)))
        del self.members[old.id]
        made = self.new_id(request)
        member = _member(made, now, token, request)
        member.assignment = old.assignment
        self.members[made] = member
        was_leader = self.leader == old.id
        if self.state is State.STABLE and not was_leader and old.protocols == member.protocols:
            member.joining = None
            return [*answers, (token, self._joined(member))]
        if was_leader:
            self.leader = made
        if self.state is not State.PREPARING:
            answers += self._prepare(now, is_new=False)
        return answers + self._complete(now)

    # Rebalancing

    def _prepare(self, now: float, *, is_new: bool) -> Answers:
        """Begin a rebalance: every member has to join again."""
        answers: Answers = []
        if self.state is not State.PREPARING:
            self.state = State.PREPARING
            self._earliest = now + (INITIAL_DELAY_SECONDS if is_new else 0.0)
        timeouts = [each.rebalance_seconds for each in self.members.values()]
        self._latest = max(self._earliest, now + max(timeouts, default=0.0))
        for each in self.members.values():
            if each.syncing is not None:
                answers.append((each.syncing, {"error_code": codes.REBALANCE_IN_PROGRESS}))
                each.syncing = None
        return answers

    def _complete(self, now: float) -> Answers:
        """End a rebalance if every member has joined, or those who have not are too late."""
        if self.state is not State.PREPARING or now < self._earliest:
            return []
        late = [each for each in self.members.values() if each.joining is None]
        if late and now < self._latest:
            return []
        for each in late:
            if each.instance is None:
                del self.members[each.id]
        self.generation += 1
        if not self.members:
            self._become_empty()
            return []
        self.protocol = self._choose_protocol()
        joined = [each for each in self.members.values() if each.joining is not None]
        if self.leader not in {each.id for each in joined} and joined:
            self.leader = joined[0].id
        self.state = State.COMPLETING
        answers: Answers = []
        for each in self.members.values():
            each.assignment = b""
            each.expires = now + max(each.session_seconds, each.rebalance_seconds)
            if each.joining is not None:
                answers.append((each.joining, self._joined(each)))
                each.joining = None
        return answers

    def _choose_protocol(self) -> str:
        """Return the assignor that most members prefer among those that all know."""
        common = set.intersection(
            *({name for name, _ in each.protocols} for each in self.members.values())
        )
        votes: dict[str, int] = {}
        for each in self.members.values():
            best = next((name for name, _ in each.protocols if name in common), "")
            votes[best] = votes.get(best, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _joined(self, member: Member) -> Answer:
        is_leader = member.id == self.leader
        return {
            "error_code": codes.NONE,
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member.id,
            "members": [
                {
                    "member_id": each.id,
                    "group_instance_id": each.instance,
                    "metadata": each.metadata(self.protocol),
                }
                for each in self.members.values()
            ]
            if is_leader
            else (),
        }

    def _become_empty(self) -> None:
        self.state, self.leader, self.protocol = State.EMPTY, "", ""

    # Members that have joined

    def sync(
        self,
        now: float,
        token: Hashable,
        member: str,
        instance: str | None,
        generation: int,
        assignments: Sequence[tuple[str, bytes]],
    ) -> Answers:
        """Take a member's wish for its assignment; that of the leader has all of them."""
        refused = self.check_member(member, instance, generation)
        if not refused and self.state is State.PREPARING:
            refused = codes.REBALANCE_IN_PROGRESS
        if refused:
            return [(token, {"error_code": refused})]
        found = self.members[member]
        found.expires = now + found.session_seconds
        if self.state is State.STABLE:
            return [(token, self._synced(found))]
        answers: Answers = []
        if found.syncing is not None:
            answers.append((found.syncing, {"error_code": codes.UNKNOWN_MEMBER_ID}))
        found.syncing = token
        if member == self.leader:
            answers += self._assign(now, dict(assignments))
        return answers

    def _assign(self, now: float, assignments: Mapping[str, bytes]) -> Answers:
        self.state = State.STABLE
        answers: Answers = []
        for each in self.members.values():
            each.assignment = assignments.get(each.id, b"")
            if each.syncing is not None:
                answers.append((each.syncing, self._synced(each)))
                each.syncing = None
                each.expires = now + each.session_seconds
        return answers

    def _synced(self, member: Member) -> Answer:
        return {
            "error_code": codes.NONE,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    def heartbeat(self, now: float, member: str, instance: str | None, generation: int) -> int:
        """Note that a member lives; return the code that it is answered with."""
        refused = self.check_member(member, instance, generation)
        if refused:
            return refused
        found = self.members[member]
        found.expires = max(found.expires, now + found.session_seconds)
        is_joining = self.state is State.PREPARING and found.joining is None
        return codes.REBALANCE_IN_PROGRESS if is_joining else codes.NONE

    def check_member(self, member: str, instance: str | None, generation: int) -> int:
        """Return why a request of a member is refused; 0 if it is not."""
        if instance is not None:
            static = self._static(instance)
            if static is not None and static.id != member:
                return codes.FENCED_INSTANCE_ID
        if member not in self.members:
            return codes.UNKNOWN_MEMBER_ID
        return codes.ILLEGAL_GENERATION if generation != self.generation else codes.NONE

    def check_commit(self, member: str, instance: str | None, generation: int) -> int:
        """Return why a commit of offsets is refused; 0 if it is not.

        Whoever is no member may commit while the group has none.
        """
        if generation < 0 and not member and not self.members:
            return codes.NONE
        refused = self.check_member(member, instance, generation)
        if not refused and self.state is State.COMPLETING:
            return codes.REBALANCE_IN_PROGRESS
        return refused

    # Leaving

    def leave(self, now: float, member: str, instance: str | None) -> tuple[int, Answers]:
        """Remove a member; a static one may be named by its instance alone."""
        self.pending.pop(member, None)
        static = self._static(instance)
        if static is not None:
            if member and member != static.id:
                return codes.FENCED_INSTANCE_ID, []
            member = static.id
        if member not in self.members:
            return codes.UNKNOWN_MEMBER_ID, []
        return codes.NONE, self._remove(now, [member])

    def tick(self, now: float) -> Answers:
        """Expel members that were silent for too long, and end a rebalance whose time is over."""
        self.pending = {name: until for name, until in self.pending.items() if until > now}
        silent = [
            each.id
            for each in self.members.values()
            if each.joining is None and each.syncing is None and each.expires <= now
        ]
        answers = self._remove(now, silent) if silent else []
        return answers + self._complete(now)

    def _remove(self, now: float, names: Sequence[str]) -> Answers:
        answers: Answers = []
        for name in names:
            gone = self.members.pop(name)
            for waiting in (gone.joining, gone.syncing):
                if waiting is not None:
                    answers.append((waiting, _not_joined(codes.UNKNOWN_MEMBER_ID, name)))
        if not self.members:
            if self.state is not State.EMPTY:
                self.generation += 1
            self._become_empty()
            return answers
        if self.state is not State.PREPARING:
            answers += self._prepare(now, is_new=False)
        return answers + self._complete(now)

    def abandon(self, token: Hashable) -> None:
        """Forget a request that waits: its connection is gone."""
        for each in self.members.values():
            if each.joining == token:
                each.joining = None
            if each.syncing == token:
                each.syncing = None

    def next_event(self) -> float | None:
        """Return when `tick` has something to do; None if nothing will be due."""
        times = list(self.pending.values())
        times += [
            each.expires
            for each in self.members.values()
            if each.joining is None and each.syncing is None
        ]
        if self.state is State.PREPARING:
            is_complete = all(each.joining is not None for each in self.members.values())
            times.append(self._earliest if is_complete else self._latest)
        return min(times, default=None)


def _member(name: str, now: float, token: Hashable, request: Join) -> Member:
    return Member(
        name,
        request.instance,
        request.client,
        request.host,
        request.session_seconds,
        request.rebalance_seconds,
        request.protocols,
        now + request.session_seconds,
        joining=token,
    )


def _update(member: Member, now: float, token: Hashable, request: Join) -> None:
    member.session_seconds = request.session_seconds
    member.rebalance_seconds = request.rebalance_seconds
    member.protocols = request.protocols
    member.expires = now + request.session_seconds
    member.joining = token


def _not_joined(code: int, member: str) -> Answer:
    return {"error_code": code, "member_id": member, "protocol_name": "", "leader": ""}
