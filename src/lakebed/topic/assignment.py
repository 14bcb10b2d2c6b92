"""Who of a group should read which partition: a pure function of the members and what they hold.

* `range`: topic by topic, the members in order of their ids get neighbouring partitions. Partitions
  of the same number of equally wide topics meet at the same member, as a join needs it.
* `sticky`: loads are as even as the subscriptions allow, and what is held moves as little as that
  needs: the least possible where all members subscribe to the same topics, close to it otherwise.

The same members, partitions and holdings give the same answer in every process.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from lakebed.errors import InvalidArgumentError
from lakebed.types import TopicPartition

STRATEGIES: Final = ("range", "sticky")

Assignment = dict[str, frozenset[TopicPartition]]
"""What each member should read; members with nothing to read have an empty set."""


def assign(
    strategy: str,
    members: Mapping[str, Collection[str]],
    partitions: Mapping[str, int],
    held: Mapping[str, Collection[TopicPartition]],
) -> Assignment:
    """Assign every partition of each topic that has subscribers to one of them.

    `members` has the topics of each member, `partitions` the number of partitions of each topic
    that exists, and `held` what members read now. Holdings that are no longer possible are ignored.
    """
    check_strategy(strategy)
    if strategy == "range":
        return _ranges(members, partitions)
    balance = _Balance(members, partitions)
    balance.keep(held)
    balance.place_the_rest()
    balance.even_out()
    return balance.result()


def check_strategy(strategy: str) -> None:
    """Raise unless the strategy exists."""
    if strategy not in STRATEGIES:
        raise InvalidArgumentError(
            "unknown assignment strategy",
            strategy=repr(strategy),
            known=", ".join(STRATEGIES),
        )


def _ranges(members: Mapping[str, Collection[str]], partitions: Mapping[str, int]) -> Assignment:
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for topic, subscribers in _subscribers(members, partitions).items():
        share, extra = divmod(partitions[topic], len(subscribers))
        start = 0
        for position, member in enumerate(subscribers):
            end = start + share + (position < extra)
            assigned[member] += [TopicPartition(topic, index) for index in range(start, end)]
            start = end
    return {member: frozenset(owned) for member, owned in assigned.items()}


def _subscribers(
    members: Mapping[str, Collection[str]], partitions: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return the subscribers of each topic that exists and has any; both sorted by name."""
    subscribers_of: dict[str, list[str]] = {topic: [] for topic in sorted(partitions)}
    for member in sorted(members):
        for topic in set(members[member]):
            if topic in subscribers_of:
                subscribers_of[topic].append(member)
    return {topic: subscribers for topic, subscribers in subscribers_of.items() if subscribers}


class _Pool:
    """The topics that have the same subscribers: their partitions are interchangeable."""

    def __init__(self, subscribers: tuple[str, ...]) -> None:
        self.subscribers = subscribers
        self.topics: list[str] = []
        self.least_loaded = [(0, member) for member in subscribers]
        """A heap. Each subscriber has an entry that is at most its load: see `_Balance._least`."""


class _Balance:
    """Moves partitions towards an even distribution.

    Moving a partition from one member to another that has at least two fewer makes loads more even.
    Where the two have no topic in common, a chain of members can pass it on: each gives one and
    gets one. Loads are as even as they can be when no such chain is left.
    """

    def __init__(
        self, members: Mapping[str, Collection[str]], partitions: Mapping[str, int]
    ) -> None:
        self._partitions = partitions
        self._load = dict.fromkeys(sorted(members), 0)
        self._owned: dict[str, dict[_Pool, list[TopicPartition]]] = {
            member: {} for member in self._load
        }
        """What each has: first what it held, then what it got, so that this goes first."""
        self._placed: set[TopicPartition] = set()
        self._settled: set[str] = set()
        self._pools: dict[str, _Pool] = {}
        """The pool of each topic that has subscribers."""
        self._pools_of: dict[str, dict[str, _Pool]] = {member: {} for member in self._load}
        """For each member, the pools of its topics."""
        self._make_pools(_subscribers(members, partitions))

    def _make_pools(self, subscribers: Mapping[str, list[str]]) -> None:
        pools: dict[tuple[str, ...], _Pool] = {}
        for topic, names in subscribers.items():
            key = tuple(names)
            if key not in pools:
                pools[key] = _Pool(key)
            pool = self._pools[topic] = pools[key]
            pool.topics.append(topic)
            for member in names:
                self._pools_of[member][topic] = pool

    def keep(self, held: Mapping[str, Collection[TopicPartition]]) -> None:
        """Leave with each member what it holds of the topics that it subscribes to."""
        for member in self._load:
            for partition in sorted(held.get(member, ())):
                topic, index = partition
                pool = self._pools_of[member].get(topic)
                if pool is None or not 0 <= index < self._partitions[topic]:
                    continue
                if partition not in self._placed:
                    self._give(member, pool, partition)
                    self._load[member] += 1

    def place_the_rest(self) -> None:
        """Assign what no member has to the least loaded subscribers, the least choice first."""
        for pool in sorted(set(self._pools.values()), key=_choice):
            for topic in pool.topics:
                for index in range(self._partitions[topic]):
                    partition = TopicPartition(topic, index)
                    if partition not in self._placed:
                        member = self._least(pool)
                        self._give(member, pool, partition)
                        self._load[member] += 1

    def even_out(self) -> None:
        """Pass partitions on from the most loaded until loads are as even as they can be."""
        most_loaded = [(-load, member) for member, load in self._load.items()]
        heapq.heapify(most_loaded)
        while most_loaded:
            load, giver = heapq.heappop(most_loaded)
            if giver in self._settled or -load != self._load[giver]:
                continue
            taker = self._pass_on(giver)
            for member in (giver, taker) if taker else ():
                heapq.heappush(most_loaded, (-self._load[member], member))

    def result(self) -> Assignment:
        """Return what each member has."""
        return {
            member: frozenset(partition for some in owned.values() for partition in some)
            for member, owned in self._owned.items()
        }

    def _give(self, member: str, pool: _Pool, partition: TopicPartition) -> None:
        self._owned[member].setdefault(pool, []).append(partition)
        self._placed.add(partition)

    def _least(self, pool: _Pool) -> str:
        """Return the least loaded subscriber of a pool.

        The heap learns late of loads that grew: an entry too low is corrected when it comes up.
        Loads that shrink are entered at once, so an entry too high has a better one beside it.
        """
        heap = pool.least_loaded
        while True:
            entered, member = heap[0]
            load = self._load[member]
            if entered == load:
                return member
            if entered < load:
                heapq.heapreplace(heap, (load, member))
            else:
                heapq.heappop(heap)

    def _pass_on(self, giver: str) -> str | None:
        """Relieve the most loaded member of one partition; return who has one more for it.

        If no member can take one, then neither from any that the search met: all of them have at
        most one less than the most loaded, and what they own is shared with no other. They are
        settled, and later searches need not go through them.
        """
        came: dict[str, tuple[str, _Pool] | None] = {giver: None}
        seen: set[_Pool] = set()
        edge = [giver]
        while edge:
            reached = self._reach(edge, seen)
            taker = self._best_taker(reached, self._load[giver] - 2)
            if taker is not None:
                self._move_along(came, *taker)
                return taker[0]
            edge = []
            for pool, member in reached.items():
                for subscriber in pool.subscribers:
                    if subscriber not in came and subscriber not in self._settled:
                        came[subscriber] = (member, pool)
                        edge.append(subscriber)
        self._settled.update(came)
        return None

    def _reach(self, edge: Iterable[str], seen: set[_Pool]) -> dict[_Pool, str]:
        """Return the pools not seen yet of which one of these members has a partition, with it."""
        reached: dict[_Pool, str] = {}
        for member in edge:
            for pool, owned in self._owned[member].items():
                if owned and pool not in seen:
                    seen.add(pool)
                    reached[pool] = member
        return reached

    def _best_taker(
        self, reached: Mapping[_Pool, str], load_max: int
    ) -> tuple[str, str, _Pool] | None:
        """Return the least loaded who may take one, from whom, and of which pool."""
        best: tuple[str, str, _Pool] | None = None
        for pool, member in reached.items():
            taker = self._least(pool)
            if self._load[taker] <= load_max:
                load_max = self._load[taker] - 1
                best = (taker, member, pool)
        return best

    def _move_along(
        self,
        came: Mapping[str, tuple[str, _Pool] | None],
        taker: str,
        giver: str,
        pool: _Pool,
    ) -> None:
        """Pass one partition on at each step of the chain, its last step first."""
        self._load[taker] += 1
        step: tuple[str, _Pool] | None = (giver, pool)
        while step is not None:
            giver, pool = step
            self._give(taker, pool, self._owned[giver][pool].pop())
            taker, step = giver, came[giver]
        self._load[giver] -= 1
        for other in set(self._pools_of[giver].values()):
            heapq.heappush(other.least_loaded, (self._load[giver], giver))


def _choice(pool: _Pool) -> tuple[int, str]:
    return len(pool.subscribers), pool.topics[0]
