"""The coordinator of one classic consumer group: a state machine without a clock and without I/O.

Members' metadata and the leader's assignment are opaque bytes: they are the clients' business, and
Kafka Connect puts other things than partitions into them. The caller passes the time to every
method; requests that wait (JoinGroup, SyncGroup) are tokens, and methods return those to answer.

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


class GroupState(enum.Enum):
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
class ClassicMember:
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
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, ClassicMember] = field(default_factory=dict)
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
        """Add a member, or let one rejoin; it is answered when all others have joined too."""
        member = self.members.get(request.member)
        refused = self._refuse_join(request, member)
        if refused:
            return [(token, _join_error(refused, request.member))]
        if member is not None:
            return self._rejoin(now, token, request, member)
        static = self._static(request.instance)
        if static is not None:
            return self._replace(now, token, request, static)
        if not request.member and request.needs_known_id and request.instance is None:
            made = self.new_id(request)
            self.pending[made] = now + request.session_seconds
            return [(token, _join_error(codes.MEMBER_ID_REQUIRED, made))]
        return self._add(now, token, request)

    def _refuse_join(self, request: Join, member: ClassicMember | None) -> int:
        others = [other for other in self.members.values() if other is not member]
        if others and request.protocol_type != self.protocol_type:
            return codes.INCONSISTENT_GROUP_PROTOCOL
        names = {name for name, _ in request.protocols}
        for other in others:
            if other.instance is None or other.instance != request.instance:
                names &= {name for name, _ in other.protocols}
        if not names or not request.protocol_type:
            return codes.INCONSISTENT_GROUP_PROTOCOL
        if request.member and member is None and request.member not in self.pending:
            is_fenced = self._static(request.instance) is not None
            return codes.FENCED_INSTANCE_ID if is_fenced else codes.UNKNOWN_MEMBER_ID
        if member is not None and member.instance != request.instance:
            return codes.FENCED_INSTANCE_ID
        if member is None and len(self.members) >= MEMBERS_MAX:
            return codes.GROUP_MAX_SIZE_REACHED
        return codes.NONE

    def _static(self, instance: str | None) -> ClassicMember | None:
        if instance is None:
            return None
        return next(
            (member for member in self.members.values() if member.instance == instance), None
        )

    def _add(self, now: float, token: Hashable, request: Join) -> Answers:
        made = request.member or self.new_id(request)
        self.pending.pop(made, None)
        is_new = not self.members
        self.protocol_type = request.protocol_type
        self.members[made] = _member(made, now, token, request)
        answers = self._prepare(now, is_new=is_new)
        return answers + self._complete(now)

    def _rejoin(self, now: float, token: Hashable, request: Join, member: ClassicMember) -> Answers:
        answers: Answers = []
        if member.joining is not None and member.joining != token:
            answers.append((member.joining, _join_error(codes.UNKNOWN_MEMBER_ID, member.id)))
        is_changed = member.protocols != request.protocols
        unchanged_follower = self.state is GroupState.STABLE and member.id != self.leader
        if not is_changed and (unchanged_follower or self.state is GroupState.COMPLETING):
            member.expires = now + member.session_seconds
            return [*answers, (token, self._join_answer(member))]
        _update(member, now, token, request)
        if self.state is not GroupState.PREPARING:
            answers += self._prepare(now, is_new=False)
        return answers + self._complete(now)

    def _replace(self, now: float, token: Hashable, request: Join, old: ClassicMember) -> Answers:
        """Hand the place of a static member to its next process."""
        answers: Answers = []
        for waiting in (old.joining, old.syncing):
            if waiting is not None:
                answers.append((waiting, _join_error(codes.FENCED_INSTANCE_ID, old.id)))
        del self.members[old.id]
        made = self.new_id(request)
        member = _member(made, now, token, request)
        member.assignment = old.assignment
        self.members[made] = member
        was_leader = self.leader == old.id
        if self.state is GroupState.STABLE and not was_leader and old.protocols == member.protocols:
            member.joining = None
            return [*answers, (token, self._join_answer(member))]
        if was_leader:
            self.leader = made
        if self.state is not GroupState.PREPARING:
            answers += self._prepare(now, is_new=False)
        return answers + self._complete(now)

    # Rebalancing

    def _prepare(self, now: float, *, is_new: bool) -> Answers:
        """Begin a rebalance: every member has to join again."""
        answers: Answers = []
        if self.state is not GroupState.PREPARING:
            self.state = GroupState.PREPARING
            self._earliest = now + (INITIAL_DELAY_SECONDS if is_new else 0.0)
        timeouts = [member.rebalance_seconds for member in self.members.values()]
        self._latest = max(self._earliest, now + max(timeouts, default=0.0))
        for member in self.members.values():
            if member.syncing is not None:
                answers.append((member.syncing, {"error_code": codes.REBALANCE_IN_PROGRESS}))
                member.syncing = None
        return answers

    def _complete(self, now: float) -> Answers:
        """End a rebalance if every member has joined, or the others have timed out."""
        if self.state is not GroupState.PREPARING or now < self._earliest:
            return []
        late = [member for member in self.members.values() if member.joining is None]
        if late and now < self._latest:
            return []
        for member in late:
            if member.instance is None:
                del self.members[member.id]
        self.generation += 1
        if not self.members:
            self._become_empty()
            return []
        self.protocol = self._choose_protocol()
        joined = [member for member in self.members.values() if member.joining is not None]
        if self.leader not in {member.id for member in joined} and joined:
            self.leader = joined[0].id
        self.state = GroupState.COMPLETING
        answers: Answers = []
        for member in self.members.values():
            member.assignment = b""
            member.expires = now + max(member.session_seconds, member.rebalance_seconds)
            if member.joining is not None:
                answers.append((member.joining, self._join_answer(member)))
                member.joining = None
        return answers

    def _choose_protocol(self) -> str:
        """Return the assignor that most members prefer among those that all know."""
        common = set.intersection(
            *({name for name, _ in member.protocols} for member in self.members.values())
        )
        votes: dict[str, int] = {}
        for member in self.members.values():
            best = next((name for name, _ in member.protocols if name in common), "")
            votes[best] = votes.get(best, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _join_answer(self, member: ClassicMember) -> Answer:
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
                    "member_id": member.id,
                    "group_instance_id": member.instance,
                    "metadata": member.metadata(self.protocol),
                }
                for member in self.members.values()
            ]
            if is_leader
            else (),
        }

    def _become_empty(self) -> None:
        self.state, self.leader, self.protocol = GroupState.EMPTY, "", ""

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
        """Handle SyncGroup of a member; the leader's has the assignments of all members."""
        refused = self.check_member(member, instance, generation)
        if not refused and self.state is GroupState.PREPARING:
            refused = codes.REBALANCE_IN_PROGRESS
        if refused:
            return [(token, {"error_code": refused})]
        member_state = self.members[member]
        member_state.expires = now + member_state.session_seconds
        if self.state is GroupState.STABLE:
            return [(token, self._sync_answer(member_state))]
        answers: Answers = []
        if member_state.syncing is not None:
            answers.append((member_state.syncing, {"error_code": codes.UNKNOWN_MEMBER_ID}))
        member_state.syncing = token
        if member == self.leader:
            answers += self._assign(now, dict(assignments))
        return answers

    def _assign(self, now: float, assignments: Mapping[str, bytes]) -> Answers:
        self.state = GroupState.STABLE
        answers: Answers = []
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.syncing is not None:
                answers.append((member.syncing, self._sync_answer(member)))
                member.syncing = None
                member.expires = now + member.session_seconds
        return answers

    def _sync_answer(self, member: ClassicMember) -> Answer:
        return {
            "error_code": codes.NONE,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": member.assignment,
        }

    def heartbeat(self, now: float, member: str, instance: str | None, generation: int) -> int:
        """Record a heartbeat of a member; return the error code of the answer."""
        refused = self.check_member(member, instance, generation)
        if refused:
            return refused
        member_state = self.members[member]
        member_state.expires = max(member_state.expires, now + member_state.session_seconds)
        is_joining = self.state is GroupState.PREPARING and member_state.joining is None
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

        A client that is not a member may commit while the group has no members.
        """
        if generation < 0 and not member and not self.members:
            return codes.NONE
        refused = self.check_member(member, instance, generation)
        if not refused and self.state is GroupState.COMPLETING:
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
            member.id
            for member in self.members.values()
            if member.joining is None and member.syncing is None and member.expires <= now
        ]
        answers = self._remove(now, silent) if silent else []
        return answers + self._complete(now)

    def _remove(self, now: float, names: Sequence[str]) -> Answers:
        answers: Answers = []
        for name in names:
            gone = self.members.pop(name)
            for waiting in (gone.joining, gone.syncing):
                if waiting is not None:
                    answers.append((waiting, _join_error(codes.UNKNOWN_MEMBER_ID, name)))
        if not self.members:
            if self.state is not GroupState.EMPTY:
                self.generation += 1
            self._become_empty()
            return answers
        if self.state is not GroupState.PREPARING:
            answers += self._prepare(now, is_new=False)
        return answers + self._complete(now)

    def abandon(self, token: Hashable) -> None:
        """Forget a request that waits: its connection is gone."""
        for member in self.members.values():
            if member.joining == token:
                member.joining = None
            if member.syncing == token:
                member.syncing = None

    def next_event(self) -> float | None:
        """Return when `tick` has something to do; None if nothing will be due."""
        times = list(self.pending.values())
        times += [
            member.expires
            for member in self.members.values()
            if member.joining is None and member.syncing is None
        ]
        if self.state is GroupState.PREPARING:
            is_complete = all(member.joining is not None for member in self.members.values())
            times.append(self._earliest if is_complete else self._latest)
        return min(times, default=None)


def _member(name: str, now: float, token: Hashable, request: Join) -> ClassicMember:
    return ClassicMember(
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


def _update(member: ClassicMember, now: float, token: Hashable, request: Join) -> None:
    member.session_seconds = request.session_seconds
    member.rebalance_seconds = request.rebalance_seconds
    member.protocols = request.protocols
    member.expires = now + request.session_seconds
    member.joining = token


def _join_error(code: int, member: str) -> Answer:
    return {"error_code": code, "member_id": member, "protocol_name": "", "leader": ""}
