"""The classic group coordinator, in simulated time: no member is forgotten, none waits for ever."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakebed.kafka import codes
from lakebed.kafka.classic import INITIAL_DELAY_SECONDS, Answers, ClassicGroup, GroupState, Join

RANGE = (("range", b"meta"),)


def request(member: str = "", instance: str | None = None, **changes: Any) -> Join:
    fields = {
        "member": member,
        "instance": instance,
        "client": "c",
        "host": "/h",
        "session_seconds": 10.0,
        "rebalance_seconds": 60.0,
        "protocol_type": "consumer",
        "protocols": RANGE,
    }
    return Join(**{**fields, **changes})


class Scene:
    """A group, a clock, and what requests were answered with."""

    def __init__(self) -> None:
        numbers = itertools.count(1)
        self.group = ClassicGroup(lambda _: f"m{next(numbers)}")
        self.now = 100.0
        self.tokens = itertools.count(1)
        self.answers: dict[Any, Any] = {}

    def took(self, answers: Answers) -> None:
        for token, answer in answers:
            assert token not in self.answers, "answered twice"
            self.answers[token] = answer

    def join(self, *args: Any, **changes: Any) -> int:
        token = next(self.tokens)
        self.took(self.group.join(self.now, token, request(*args, **changes)))
        return token

    def sync(self, member: str, assignments: Any = (), instance: str | None = None) -> int:
        token = next(self.tokens)
        generation = self.group.generation
        self.took(self.group.sync(self.now, token, member, instance, generation, assignments))
        return token

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (event := self.group.next_event()) is not None and event <= end:
            self.now = max(self.now, event)
            self.took(self.group.tick(self.now))
        self.now = end

    def stable(self, count: int) -> list[str]:
        """Bring a group of so many members to the stable state."""
        tokens = [self.join() for _ in range(count)]
        self.wait(INITIAL_DELAY_SECONDS)
        members = [self.answers[token]["member_id"] for token in tokens]
        synced = [self.sync(each) for each in members if each != self.group.leader]
        leader = self.sync(self.group.leader, [(each, each.encode()) for each in members])
        for token in (*synced, leader):
            assert self.answers[token]["error_code"] == codes.NONE
        assert self.group.state is GroupState.STABLE
        return members


def test_members_that_start_together_share_the_first_generation() -> None:
    scene = Scene()
    members = scene.stable(3)
    assert scene.group.generation == 1
    leaders = [each for each in scene.answers.values() if each.get("members")]
    assert [len(each["members"]) for each in leaders] == [3]
    assert {each.assignment for each in scene.group.members.values()} == {
        each.encode() for each in members
    }


def test_a_new_member_gets_its_id_first() -> None:
    scene = Scene()
    first = scene.join(needs_known_id=True)
    assert scene.answers[first]["error_code"] == codes.MEMBER_ID_REQUIRED
    second = scene.join(scene.answers[first]["member_id"], needs_known_id=True)
    scene.wait(INITIAL_DELAY_SECONDS)
    assert scene.answers[second]["error_code"] == codes.NONE
    assert not scene.group.pending


def test_an_id_that_is_not_used_is_forgotten() -> None:
    scene = Scene()
    scene.join(needs_known_id=True)
    scene.wait(11)
    assert scene.group.is_unused


def test_a_member_that_joins_makes_the_others_join_again() -> None:
    scene = Scene()
    (old,) = scene.stable(1)
    token = scene.join()
    assert scene.group.state is GroupState.PREPARING
    generation = scene.group.generation
    assert scene.group.heartbeat(scene.now, old, None, generation) == codes.REBALANCE_IN_PROGRESS
    again = scene.join(old)
    assert scene.answers[again]["generation_id"] == generation + 1
    assert scene.answers[token]["generation_id"] == generation + 1


def test_a_silent_member_is_expelled_and_one_that_joins_late_is_left_out() -> None:
    scene = Scene()
    kept, silent = scene.stable(2)
    scene.wait(6)
    assert scene.group.heartbeat(scene.now, kept, None, 1) == codes.NONE
    scene.wait(5)
    assert list(scene.group.members) == [kept]
    assert scene.group.state is GroupState.PREPARING
    assert scene.group.heartbeat(scene.now, silent, None, 1) == codes.UNKNOWN_MEMBER_ID
    scene.join()
    scene.wait(61)
    assert kept not in scene.group.members


def test_a_member_that_leaves_while_it_is_awaited_ends_the_rebalance() -> None:
    scene = Scene()
    first, second = scene.stable(2)
    token = scene.join(first, protocols=(("range", b"other"),))
    assert token not in scene.answers
    code, answers = scene.group.leave(scene.now, second, None)
    scene.took(answers)
    assert code == codes.NONE
    assert scene.answers[token]["error_code"] == codes.NONE


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    scene = Scene()
    tokens = [scene.join("", "a"), scene.join("", "b")]
    scene.wait(INITIAL_DELAY_SECONDS)
    members = [scene.answers[token]["member_id"] for token in tokens]
    leader, follower = scene.group.leader, next(m for m in members if m != scene.group.leader)
    name = scene.group.members[follower].instance
    scene.sync(leader, [(each, each.encode()) for each in members])
    token = scene.join("", name)
    answer = scene.answers[token]
    assert (answer["error_code"], scene.group.state) == (codes.NONE, GroupState.STABLE)
    assert answer["member_id"] != follower
    synced = scene.sync(answer["member_id"], (), name)
    assert scene.answers[synced]["assignment"] == follower.encode()
    generation = scene.group.generation
    fenced = scene.group.heartbeat(scene.now, follower, name, generation)
    assert fenced == codes.FENCED_INSTANCE_ID


def test_members_without_a_common_assignor_are_refused() -> None:
    scene = Scene()
    scene.stable(1)
    for changes in ({"protocols": (("sticky", b""),)}, {"protocol_type": "connect"}):
        token = scene.join(**changes)
        assert scene.answers[token]["error_code"] == codes.INCONSISTENT_GROUP_PROTOCOL


def test_commits_are_those_of_members_of_this_generation() -> None:
    scene = Scene()
    assert scene.group.check_commit("", None, -1) == codes.NONE
    (member,) = scene.stable(1)
    assert scene.group.check_commit(member, None, 1) == codes.NONE
    assert scene.group.check_commit(member, None, 0) == codes.ILLEGAL_GENERATION
    assert scene.group.check_commit("x", None, 1) == codes.UNKNOWN_MEMBER_ID
    assert scene.group.check_commit("", None, -1) == codes.UNKNOWN_MEMBER_ID


class AnyOrder(RuleBasedStateMachine):
    """Whatever clients do, every request is answered once, and silence ends every group."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene()
        self.waiting: set[int] = set()

    def _sent(self, token: int) -> None:
        self.waiting.add(token)

    def _member(self, number: int) -> str:
        members = list(self.scene.group.members)
        return members[number % len(members)] if members else "none"

    @rule(known=st.booleans(), name=st.sampled_from([None, None, "a", "b"]))
    def join_new(self, known: bool, name: str | None) -> None:
        self._sent(self.scene.join("", name, needs_known_id=known))

    @rule(number=st.integers(0, 5), changed=st.booleans())
    def join_again(self, number: int, changed: bool) -> None:
        member = self._member(number)
        found = self.scene.group.members.get(member)
        protocols = (("range", b"x"),) if changed else RANGE
        instance = None if found is None else found.instance
        self._sent(self.scene.join(member, instance, protocols=protocols))

    @precondition(lambda self: self.scene.group.members)
    @rule(number=st.integers(0, 5))
    def sync(self, number: int) -> None:
        member = self._member(number)
        assignments = [(each, b"p") for each in self.scene.group.members]
        instance = self.scene.group.members[member].instance
        self._sent(self.scene.sync(member, assignments, instance))

    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        _, answers = self.scene.group.leave(self.scene.now, self._member(number), None)
        self.scene.took(answers)

    @rule(number=st.integers(0, 5), seconds=st.floats(0, 5))
    def live(self, number: int, seconds: float) -> None:
        self.scene.wait(seconds)
        member = self._member(number)
        found = self.scene.group.members.get(member)
        instance = None if found is None else found.instance
        self.scene.group.heartbeat(self.scene.now, member, instance, self.scene.group.generation)

    @invariant()
    def waiting_requests_belong_to_members(self) -> None:
        held = {
            token
            for each in self.scene.group.members.values()
            for token in (each.joining, each.syncing)
            if token is not None
        }
        assert self.waiting - set(self.scene.answers) == held

    def teardown(self) -> None:
        self.scene.wait(500)
        assert self.waiting <= set(self.scene.answers)
        assert self.scene.group.is_unused


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=80, stateful_step_count=30)
