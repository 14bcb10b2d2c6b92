"""Every partition has one reader, loads are even, and little moves when members come and go."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import InvalidArgumentError
from lakebed.topic.assignment import STRATEGIES, Assignment, assign
from lakebed.types import TopicPartition

MEMBERS = [f"m{number}" for number in range(12)]
TOPICS = ["a", "b", "c", "d"]

Members = Mapping[str, Collection[str]]
Case = tuple[Members, dict[str, int], Mapping[str, Collection[TopicPartition]]]

subscriptions = st.dictionaries(
    st.sampled_from(MEMBERS), st.frozensets(st.sampled_from([*TOPICS, "absent"])), max_size=12
)
partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))
holdings = st.dictionaries(
    st.sampled_from([*MEMBERS, "stranger"]),
    st.frozensets(
        st.builds(TopicPartition, st.sampled_from([*TOPICS, "gone"]), st.integers(0, 10)),
        max_size=12,
    ),
)


def parts(topic: str, *numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def loads(assignment: Assignment) -> list[int]:
    return sorted((len(each) for each in assignment.values()), reverse=True)


def moved(before: Assignment, after: Assignment) -> int:
    """How many partitions that somebody held, and still could, have somebody else now."""
    lost = [before[member] - after[member] for member in before if member in after]
    return sum(len(each) for each in lost)


def subscribed(members: Members, counts: Mapping[str, int]) -> list[TopicPartition]:
    topics = {topic for each in members.values() for topic in each}
    return [
        TopicPartition(topic, number)
        for topic in sorted(topics & set(counts))
        for number in range(counts[topic])
    ]


@given(st.sampled_from(STRATEGIES), subscriptions, partition_counts, holdings)
def test_each_partition_of_a_subscribed_topic_has_one_reader_who_subscribes_to_it(
    strategy: str,
    members: dict[str, frozenset[str]],
    counts: dict[str, int],
    held: dict[str, frozenset[TopicPartition]],
) -> None:
    assignment = assign(strategy, members, counts, held)
    assert assignment.keys() == members.keys()
    given_out = sorted(itertools.chain.from_iterable(assignment.values()))
    assert given_out == subscribed(members, counts)
    for member, partitions in assignment.items():
        assert {partition.topic for partition in partitions} <= members[member]


@given(st.sampled_from(STRATEGIES), subscriptions, partition_counts, holdings)
def test_the_order_in_which_things_are_named_makes_no_difference(
    strategy: str,
    members: dict[str, frozenset[str]],
    counts: dict[str, int],
    held: dict[str, frozenset[TopicPartition]],
) -> None:
    shuffled = {
        member: sorted(members[member], reverse=True) for member in sorted(members, reverse=True)
    }
    counts_shuffled = dict(reversed(counts.items()))
    held_shuffled = {member: sorted(held[member], reverse=True) for member in reversed(list(held))}
    assert assign(strategy, members, counts, held) == assign(
        strategy, shuffled, counts_shuffled, held_shuffled
    )


def test_the_answer_is_the_same_in_every_process() -> None:
    """Hashes of text differ from process to process; the answer must not."""
    program = """if True:
        from lakebed.topic.assignment import assign
        members = {f"m{n}": {f"t{(n * k) % 7}" for k in range(n % 5 + 1)} for n in range(40)}
        answer = assign("sticky", members, {f"t{n}": n * 5 for n in range(7)}, {})
        print({member: sorted(answer[member]) for member in sorted(answer)})
    """
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(answers) == 1


def test_range_gives_neighbours_and_the_first_members_one_more() -> None:
    members = {"y": ["a", "b"], "x": ["a"], "z": ["a", "b"]}
    assert assign("range", members, {"a": 7, "b": 3}, {}) == {
        "x": parts("a", 0, 1, 2),
        "y": parts("a", 3, 4) | parts("b", 0, 1),
        "z": parts("a", 5, 6) | parts("b", 2),
    }


def test_range_leaves_the_last_members_idle_when_there_are_too_few_partitions() -> None:
    members = {"x": ["a"], "y": ["a"], "z": ["a"]}
    assert loads(assign("range", members, {"a": 2}, {})) == [1, 1, 0]
    assert assign("range", members, {"a": 2}, {})["z"] == frozenset()


def test_range_heeds_nothing_that_is_held() -> None:
    members = {"x": ["a"], "y": ["a"]}
    held = {"y": parts("a", 0, 1, 2, 3)}
    assert assign("range", members, {"a": 4}, held) == assign("range", members, {"a": 4}, {})


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match=r"strategy='even' known=range, sticky"):
        assign("even", {"x": ["a"]}, {"a": 1}, {})


def test_nobody_and_nothing_are_assigned_nothing() -> None:
    for strategy in STRATEGIES:
        assert assign(strategy, {}, {"a": 4}, {}) == {}
        assert assign(strategy, {"x": []}, {"a": 4}, {}) == {"x": frozenset()}
        assert assign(strategy, {"x": ["a"]}, {}, {"x": parts("a", 0)}) == {"x": frozenset()}


@given(
    st.sets(st.sampled_from(MEMBERS), min_size=1),
    st.frozensets(st.sampled_from(TOPICS)),
    partition_counts,
    holdings,
)
def test_sticky_loads_differ_by_one_at_most_and_the_least_moves_when_all_subscribe_alike(
    members: set[str],
    topics: frozenset[str],
    counts: dict[str, int],
    held: dict[str, frozenset[TopicPartition]],
) -> None:
    subscriptions = dict.fromkeys(members, topics)
    everything = set(subscribed(subscriptions, counts))
    held = without_overlap(held, everything)
    assignment = assign("sticky", subscriptions, counts, held)
    assert loads(assignment)[0] - loads(assignment)[-1] <= 1
    kept = sum(len(assignment[member] & held.get(member, frozenset())) for member in members)
    assert kept == most_that_can_be_kept(
        [len(held.get(member, ())) for member in members], len(everything)
    )


def without_overlap(
    held: Mapping[str, frozenset[TopicPartition]], everything: set[TopicPartition]
) -> dict[str, frozenset[TopicPartition]]:
    """Leave each partition with the first who claims it, as in a real group."""
    left = set(everything)
    result = {}
    for member, partitions in held.items():
        result[member] = partitions & left
        left -= partitions
    return result


def most_that_can_be_kept(held: list[int], partitions: int) -> int:
    """The larger shares go to those who hold the most."""
    share, extra = divmod(partitions, len(held))
    holders = sorted(held, reverse=True)
    return sum(min(count, share + (place < extra)) for place, count in enumerate(holders))


@given(st.integers(1, 11), st.integers(0, 60))
def test_when_a_member_joins_it_alone_gets_partitions_and_no_more_than_its_share(
    size: int, partitions: int
) -> None:
    members = {key: ["a"] for key in MEMBERS[1 : size + 1]}
    before = assign("sticky", members, {"a": partitions}, {})
    after = assign("sticky", {**members, MEMBERS[0]: ["a"]}, {"a": partitions}, before)
    for member in before:
        assert after[member] <= before[member]
    assert moved(before, after) == len(after[MEMBERS[0]]) == partitions // (size + 1)


@given(st.integers(2, 12), st.integers(0, 60))
def test_when_a_member_leaves_only_what_it_held_moves(size: int, partitions: int) -> None:
    members = {key: ["a"] for key in MEMBERS[:size]}
    before = assign("sticky", members, {"a": partitions}, {})
    del members[MEMBERS[0]]
    after = assign("sticky", members, {"a": partitions}, before)
    assert moved(before, after) == 0
    assert loads(after)[0] - loads(after)[-1] <= 1


@given(subscriptions, partition_counts, holdings)
def test_sticky_moves_nothing_when_nothing_has_changed(
    members: dict[str, frozenset[str]],
    counts: dict[str, int],
    held: dict[str, frozenset[TopicPartition]],
) -> None:
    settled = assign("sticky", members, counts, held)
    assert assign("sticky", members, counts, settled) == settled


@given(
    st.dictionaries(
        st.sampled_from(MEMBERS[:4]),
        st.frozensets(st.sampled_from(TOPICS), min_size=1),
        min_size=1,
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 3), min_size=1),
    holdings,
)
def test_sticky_loads_are_as_even_as_any_that_the_subscriptions_allow(
    members: dict[str, frozenset[str]],
    counts: dict[str, int],
    held: dict[str, frozenset[TopicPartition]],
) -> None:
    assert loads(assign("sticky", members, counts, held)) == evenest_loads(members, counts)


def evenest_loads(members: Members, counts: Mapping[str, int]) -> list[int]:
    """Try every way to share each topic's partitions out."""
    ways = {tuple(0 for _ in members)}
    for topic, count in counts.items():
        takers = [place for place, topics in enumerate(members.values()) if topic in topics]
        for _ in range(count if takers else 0):
            ways = {
                (*way[:taker], way[taker] + 1, *way[taker + 1 :])
                for way in ways
                for taker in takers
            }
    return min(sorted(way, reverse=True) for way in ways)


def test_sticky_passes_partitions_on_along_a_chain_of_members() -> None:
    """x shares a topic only with y, and y one with z: x is relieved through y."""
    members = {"x": ["a"], "y": ["a", "b"], "z": ["b"]}
    held = {"x": parts("a", 0, 1, 2), "y": parts("b", 0, 1)}
    after = assign("sticky", members, {"a": 3, "b": 2}, held)
    assert loads(after) == [2, 2, 1]
    assert moved({**held, "z": frozenset()}, after) == 2


def test_a_partition_that_two_claim_to_hold_goes_to_one_of_them() -> None:
    members = {"x": ["a"], "y": ["a"]}
    held = {"x": parts("a", 0, 1), "y": parts("a", 1)}
    assert assign("sticky", members, {"a": 2}, held) == {"x": parts("a", 0), "y": parts("a", 1)}


def many_alike() -> Case:
    """One member reads everything when all the others come."""
    held = {"m0000": parts("t", *range(10_000))}
    return {f"m{number:04}": ["t"] for number in range(1_000)}, {"t": 10_000}, held


def many_different() -> Case:
    members = {
        f"m{number:04}": [f"t{number * step % 101}" for step in range(1, number % 20 + 2)]
        for number in range(1_000)
    }
    return members, {f"t{number}": 99 for number in range(101)}, {}


@pytest.mark.parametrize("case", [many_alike, many_different])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_thousand_members_share_ten_thousand_partitions_in_a_moment(
    strategy: str, case: Callable[[], Case]
) -> None:
    members, counts, held = case()
    started = time.process_time()
    assignment = assign(strategy, members, counts, held)
    assert time.process_time() - started < 2
    assert sum(loads(assignment)) == sum(counts.values())
