"""Members come, go and fall silent; a partition passes on only when its holder has let go of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakebed import limits
from lakebed.errors import FencedError, InvalidArgumentError
from lakebed.topic.membership import Membership
from lakebed.types import TopicPartition

SESSION = 10.0


def parts(*numbers: int, topic: str = "a") -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def group(*members: str, partitions: int = 4) -> Membership:
    """Return a group whose members joined at 0 and have not been heard of since."""
    made = Membership(100, {"a": partitions})
    for member in members:
        made.join(member, ["a"], 0, SESSION)
    return made


def test_the_only_member_gets_everything() -> None:
    made = group("x")
    assert not made.stable
    assert made.heartbeat("x", 1, ()) == parts(0, 1, 2, 3)
    assert made.stable
    assert made.owners() == dict.fromkeys(parts(0, 1, 2, 3), "x")


def test_a_partition_moves_only_after_its_holder_said_that_it_let_go() -> None:
    made = group("x")
    everything = made.heartbeat("x", 1, ())
    made.join("y", ["a"], 1, SESSION)
    assert made.heartbeat("y", 1, ()) == frozenset()
    kept = made.heartbeat("x", 2, everything)
    assert len(kept) == 2
    assert kept < everything
    assert made.heartbeat("y", 2, ()) == frozenset(), "x may still be at work on them"
    assert made.owners() == dict.fromkeys(everything, "x")
    made.heartbeat("x", 3, kept)
    assert made.heartbeat("y", 3, ()) == everything - kept
    assert made.stable


def test_partitions_that_stay_are_in_every_answer_of_a_hand_over() -> None:
    """Nobody stops reading what it goes on to read."""
    made = group("x")
    everything = made.heartbeat("x", 1, ())
    made.join("y", ["a"], 1, SESSION)
    kept = made.heartbeat("x", 2, everything)
    assert made.heartbeat("x", 3, everything) == kept
    assert made.heartbeat("x", 4, kept) == kept


def test_the_partitions_of_a_member_that_leaves_are_free_at_once() -> None:
    made = group("x", "y")
    made.heartbeat("x", 1, ())
    mine = made.heartbeat("y", 1, ())
    made.leave("x")
    assert made.heartbeat("y", 1, mine) == parts(0, 1, 2, 3)


def test_a_member_is_expelled_when_it_was_silent_for_longer_than_its_session() -> None:
    made = group("x", "y")
    made.heartbeat("x", 1, ())
    mine = made.heartbeat("y", 5, ())
    assert made.expire(1 + SESSION) == []
    assert made.expire(1.001 + SESSION) == ["x"]
    assert made.heartbeat("y", 12, mine) == parts(0, 1, 2, 3)
    assert made.expire(100) == ["y"]
    assert made.owners() == {}
    assert made.stable


def test_each_member_has_its_own_session() -> None:
    made = group()
    made.join("x", ["a"], 0, 5)
    made.join("y", ["a"], 0, 50)
    assert made.expire(6) == ["x"]
    assert made.members == ["y"]


def test_strangers_and_expelled_members_are_fenced() -> None:
    made = group("x")
    mine = made.heartbeat("x", 1, ())
    made.expire(100)
    with pytest.raises(FencedError, match="member=x generation=103"):
        made.heartbeat("x", 100, mine)
    with pytest.raises(FencedError):
        made.leave("x")
    with pytest.raises(FencedError):
        made.heartbeat("stranger", 1, ())


def test_an_expelled_member_that_joins_again_holds_nothing() -> None:
    made = group("x")
    mine = made.heartbeat("x", 1, ())
    made.expire(100)
    made.join("x", ["a"], 100, SESSION)
    with pytest.raises(FencedError, match="not assigned"):
        made.heartbeat("x", 101, mine)
    assert made.heartbeat("x", 101, ()) == mine


def test_a_claim_to_hold_what_was_not_given_is_fenced_and_changes_nothing() -> None:
    made = group("x", "y")
    mine = made.heartbeat("x", 1, ())
    before = made.describe()
    with pytest.raises(FencedError, match=r"partitions=a/\d,a/\d generation=103"):
        made.heartbeat("y", 9, parts(0, 1, 2, 3) - mine)
    assert made.describe() == before


def test_a_claim_to_much_is_fenced_with_a_short_message() -> None:
    made = group("x")
    with pytest.raises(FencedError, match=r"partitions=a/0,a/1,a/2,a/3,a/4,\+95 "):
        made.heartbeat("x", 1, parts(*range(100)))


def test_an_answer_that_was_lost_is_given_again() -> None:
    made = group("x")
    lost = made.heartbeat("x", 1, ())
    generation = made.generation
    assert made.heartbeat("x", 2, ()) == lost
    assert made.generation == generation, "nothing has changed hands"


def test_new_partitions_are_given_out_and_those_of_a_topic_that_is_gone_are_withdrawn() -> None:
    made = group("x", partitions=2)
    mine = made.heartbeat("x", 1, ())
    made.set_partitions({"a": 3})
    assert not made.stable
    mine = made.heartbeat("x", 2, mine)
    assert mine == parts(0, 1, 2)
    made.set_partitions({})
    assert made.heartbeat("x", 3, mine) == frozenset()
    assert made.owners() == dict.fromkeys(mine, "x")
    assert made.heartbeat("x", 4, ()) == frozenset()
    assert made.owners() == {}
    assert made.stable


def test_a_member_that_joins_again_changes_its_topics_and_keeps_what_it_holds() -> None:
    made = Membership(0, {"a": 2, "b": 2})
    made.join("x", ["a"], 0, SESSION)
    mine = made.heartbeat("x", 1, ())
    made.join("x", ["a", "b"], 2, SESSION)
    assert made.generation == 3
    both = made.heartbeat("x", 3, mine)
    assert both == mine | parts(0, 1, topic="b")
    made.join("x", ["b"], 4, SESSION)
    assert made.heartbeat("x", 5, both) == parts(0, 1, topic="b")


def test_joining_again_with_nothing_new_only_shows_that_the_member_lives() -> None:
    made = group("x")
    generation = made.generation
    made.join("x", ["a"], 8, SESSION)
    assert made.generation == generation
    assert made.expire(8 + SESSION) == []


def test_generation_counts_changes_of_members_and_of_owners_and_nothing_else() -> None:
    made = group("x")
    assert made.generation == 101
    mine = made.heartbeat("x", 1, ())
    assert made.generation == 102
    made.heartbeat("x", 2, mine)
    made.set_partitions({"a": 5})
    made.expire(3)
    assert made.generation == 102
    made.heartbeat("x", 3, mine)
    assert made.generation == 103
    made.leave("x")
    assert made.generation == 104


def test_members_that_expire_together_are_one_change() -> None:
    made = group("x", "y", "z")
    assert made.expire(100) == ["x", "y", "z"]
    assert made.generation == 104


def test_the_first_member_decides_the_strategy() -> None:
    made = Membership(0, {"a": 4})
    assert made.strategy is None
    made.join("x", ["a"], 0, SESSION, strategy="range")
    with pytest.raises(InvalidArgumentError, match="group=range joining=sticky"):
        made.join("y", ["a"], 0, SESSION, strategy="sticky")
    assert made.members == ["x"]
    made.join("y", ["a"], 0, SESSION, strategy="range")
    assert made.heartbeat("x", 1, ()) == parts(0, 1)


def test_a_group_that_was_empty_may_have_another_strategy() -> None:
    made = Membership(0, {"a": 4})
    made.join("x", ["a"], 0, SESSION, strategy="range")
    made.leave("x")
    assert made.strategy is None
    made.join("y", ["a"], 0, SESSION, strategy="sticky")
    assert made.strategy == "sticky"


def test_an_unknown_strategy_or_an_impossible_session_is_refused() -> None:
    made = group()
    with pytest.raises(InvalidArgumentError, match="known=range, sticky"):
        made.join("x", ["a"], 0, SESSION, strategy="even")
    for seconds in (0, -1, float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match="session_seconds"):
            made.join("x", ["a"], 0, seconds)
    assert made.generation == 100


def test_a_group_has_no_more_members_than_the_limit() -> None:
    made = group(*(f"m{number}" for number in range(limits.GROUP_MEMBERS_MAX)))
    with pytest.raises(InvalidArgumentError, match="limit=1000"):
        made.join("x", ["a"], 0, SESSION)
    made.join("m0", ["a", "b"], 0, SESSION)
    made.leave("m1")
    made.join("x", ["a"], 0, SESSION)


def test_a_description_is_plain_data() -> None:
    made = group("y", "x", partitions=3)
    made.heartbeat("y", 2.5, ())
    described = json.loads(json.dumps(made.describe()))
    assert described == {
        "generation": 103,
        "strategy": "sticky",
        "stable": False,
        "members": {
            "x": {
                "topics": ["a"],
                "held": {},
                "target": {"a": [0, 2]},
                "last_seen": 0,
                "session_seconds": SESSION,
            },
            "y": {
                "topics": ["a"],
                "held": {"a": [1]},
                "target": {"a": [1]},
                "last_seen": 2.5,
                "session_seconds": SESSION,
            },
        },
    }


def test_what_owners_gives_is_the_callers_own() -> None:
    made = group("x")
    made.heartbeat("x", 1, ())
    made.owners().clear()
    assert made.owner(TopicPartition("a", 0)) == "x"
    assert made.owner(TopicPartition("b", 0)) is None


NAMES = [f"m{number}" for number in range(6)]
TOPICS = ["a", "b", "c"]
Topics = st.frozensets(st.sampled_from(TOPICS), min_size=1)


class Groups(RuleBasedStateMachine):
    """A group beside what its members themselves believe to hold.

    Members let go late, let go of more than they must, miss answers, fall silent and come back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.counts: dict[str, int] = {"a": 3, "b": 2}
        self.group = Membership(7, self.counts)
        self.strategy = "sticky"
        self.topics: dict[str, frozenset[str]] = {}
        self.holds: dict[str, frozenset[TopicPartition]] = {}
        self.allowed: dict[str, frozenset[TopicPartition]] = {}
        self.seen: dict[str, float] = {}
        self.past = self.observed()

    def observed(self) -> tuple[int, dict[TopicPartition, str], list[str]]:
        return self.group.generation, self.group.owners(), self.group.members

    def forget(self, name: str) -> None:
        for each in (self.topics, self.holds, self.allowed, self.seen):
            del each[name]

    @rule(name=st.sampled_from(NAMES), topics=Topics, strategy=st.sampled_from(["range", "sticky"]))
    def join(self, name: str, topics: frozenset[str], strategy: str) -> None:
        if not self.topics.keys() - {name}:
            self.strategy = strategy
        self.group.join(name, topics, self.now, SESSION, strategy=self.strategy)
        self.topics[name], self.seen[name] = topics, self.now
        self.holds.setdefault(name, frozenset())
        self.allowed.setdefault(name, frozenset())

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        self.group.leave(name)
        self.forget(name)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        silent = sorted(name for name, seen in self.seen.items() if self.now - seen > SESSION)
        assert self.group.expire(self.now) == silent
        for name in silent:
            with pytest.raises(FencedError):
                self.group.heartbeat(name, self.now, self.holds[name])
            self.forget(name)

    @rule(counts=st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 5)))
    def topics_change(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.group.set_partitions(counts)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), answered=st.booleans())
    def heartbeat(self, data: st.DataObject, answered: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        holds = sorted(self.holds[name])
        dropped = data.draw(st.sets(st.sampled_from(holds))) if holds else set()
        self.beat(name, self.holds[name] - dropped, answered=answered)

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), number=st.integers(0, 5), topic=st.sampled_from(TOPICS))
    def false_claim(self, data: st.DataObject, number: int, topic: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.topics)))
        claim = TopicPartition(topic, number)
        if self.group.owner(claim) != name:
            with pytest.raises(FencedError):
                self.group.heartbeat(name, self.now, self.holds[name] | {claim})

    def beat(self, name: str, holds: frozenset[TopicPartition], *, answered: bool = True) -> None:
        answer = self.group.heartbeat(name, self.now, holds)
        self.seen[name] = self.now
        self.holds[name] = holds | answer if answered else holds
        self.allowed[name] = answer
        assert {each.topic for each in answer} <= self.topics[name]

    @rule()
    def everyone_does_as_told(self) -> None:
        """Three heartbeats each settle all: one is told, one lets go, one gets."""
        for _ in range(3):
            for name in sorted(self.topics):
                self.beat(name, self.holds[name] & self.allowed[name])
                self.generation_tells_of_changes()
        assert self.group.stable
        wanted = {topic for topics in self.topics.values() for topic in topics}
        assert set(self.group.owners()) == {
            TopicPartition(topic, number)
            for topic, count in self.counts.items()
            if topic in wanted
            for number in range(count)
        }
        assert self.group.owners() == {
            each: name for name, holds in self.holds.items() for each in holds
        }

    @invariant()
    def nobody_holds_what_belongs_to_another(self) -> None:
        owners = self.group.owners()
        for name, holds in self.holds.items():
            assert all(owners[each] == name for each in holds)

    @invariant()
    def generation_tells_of_changes(self) -> None:
        observed = self.observed()
        if observed[1:] != self.past[1:]:
            assert observed[0] > self.past[0]
        assert observed[0] >= self.past[0]
        self.past = observed

    @invariant()
    def members_are_those_that_are_alive(self) -> None:
        assert self.group.members == sorted(self.topics)
        assert set(self.group.owners().values()) <= set(self.topics)


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
