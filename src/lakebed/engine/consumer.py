"""Consumers: batch after batch from the partitions of a group's member, or from given ones."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from lakebed.api.arguments import check_wait
from lakebed.api.offsets import Offsets
from lakebed.api.reads import EARLIEST, Bounds
from lakebed.engine.core import Key
from lakebed.engine.groups import Groups
from lakebed.engine.reading import Reading
from lakebed.errors import ClosedError, InvalidArgumentError, OffsetOutOfRangeError
from lakebed.types import Closing, TopicPartition

_log = logging.getLogger("lakebed.engine")

_HEARTBEATS: Final = 3
"""How often a waiting consumer says that it lives within its session."""

Callback = Callable[[list[TopicPartition]], None]


class Fetched(NamedTuple):
    """Records that were read, and where the consumer is once it has given them out."""

    table: pa.Table | None
    following: dict[TopicPartition, int]
    given: dict[TopicPartition, int]


class Consumer(Closing):
    """Reads what a group has not read yet. One thread at a time; `wake` from any thread.

    Iterating waits for new records and never ends (`break`, or `wake` from another
    thread). Each batch is a table of one topic, named in its schema's metadata, with the column
    `partition`; `commit` remembers everything that was given out so far.
    """

    def __init__(
        self,
        reading: Reading,
        groups: Groups,
        group: str | None,
        topics: Collection[str],
        partitions: Collection[tuple[str, int]] | None,
        *,
        start: str,
        bounds: Bounds,
        columns: Collection[str] | None,
        session_seconds: float,
        strategy: str,
        on_assign: Callback | None,
        on_revoke: Callback | None,
    ) -> None:
        self.group = group
        self.member = ""
        self.skipped_records = 0
        """Records that were removed before this consumer could read them."""
        self._reading = reading
        self._groups = groups
        self._start = start
        self._bounds = bounds
        self._columns = None if columns is None else sorted({*columns, "partition", "offset"})
        self._session_seconds = session_seconds
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._positions: dict[TopicPartition, int] = {}
        self._given: dict[TopicPartition, int] = {}
        self._ids: dict[str, int] = {}
        """Which topic each name meant when it was last looked at."""
        self._began: dict[TopicPartition, int] = {}
        """Where this consumer began in each partition."""
        self._turn = 0
        self._woken = threading.Event()
        self._ring: Callable[[], None] = self._woken.set
        """Wakes whoever waits for this consumer."""
        self._stopping = False
        self._closed = False
        self._topics = tuple(topics)
        if partitions is not None:
            self._positions = self._starts([TopicPartition(*each) for each in partitions])
        else:
            self.member = groups.join(str(group), topics, session_seconds, strategy)
            groups.watch(str(group), self._regroup)

    # Reading

    def poll(self, wait_ms: int | None = 0) -> pa.Table:
        """Return the next records, waiting for them at most so long (None: forever).

        The table is empty if none came. It is also what tells the group that this member lives: a
        member that does not poll for longer than its session loses its partitions.
        """
        self._check_open()
        check_wait(wait_ms)
        deadline = None if wait_ms is None else time.monotonic() + wait_ms / 1000
        while True:
            self.heartbeat()
            table = self._give(self._fetch())
            if table is not None:
                return table
            left = None if deadline is None else deadline - time.monotonic()
            if self._stopping or (left is not None and left <= 0):
                self._stopping = False
                return self._empty()
            self._wait(left)

    def __iter__(self) -> Iterator[pa.Table]:
        """Return batch after batch, waiting for new records."""
        while True:
            table = self.poll(None)
            if not table.num_rows:
                return  # woken
            yield table

    def wake(self) -> None:
        """End the iteration or the waiting of another thread."""
        self._stopping = True
        self._ring()

    def _fetch(self) -> Fetched:
        """Take turns among the partitions that have something; nothing is given out yet."""
        self._begin_anew()
        positions = dict(self._positions)
        following: dict[TopicPartition, int] = {}
        given: dict[TopicPartition, int] = {}
        places = sorted(positions)
        if not places:
            return Fetched(None, following, given)
        self._turn = (self._turn + 1) % len(places)
        tables: list[pa.Table] = []
        topic_name = ""
        records, size = self._bounds
        for place in places[self._turn :] + places[: self._turn]:
            if tables and (place.topic != topic_name or records <= 0 or size <= 0):
                continue
            table, following[place] = self._read(place, positions[place], Bounds(records, size))
            if table.num_rows:
                given[place] = following[place]
                topic_name = place.topic
                tables.append(table)
                records -= table.num_rows
                size -= table.nbytes
        return Fetched(pa.concat_tables(tables) if tables else None, following, given)

    def _begin_anew(self) -> None:
        """Start again in topics that were deleted and recreated: their old offsets mean nothing."""
        for name in {place.topic for place in self._positions}:
            topic = self._reading.topic(name)
            if self._ids.setdefault(name, topic.id) == topic.id:
                continue
            _log.warning("%s was made anew; reading from its start", name)
            for place in [each for each in self._positions if each.topic == name]:
                self._given.pop(place, None)
                self._positions[place] = self._reading.bounds(topic, place.partition)[0]
            self._ids[name] = topic.id

    def _give(self, fetched: Fetched) -> pa.Table | None:
        """Return out what was fetched; from here on a commit counts it as read."""
        self._positions.update(fetched.following)
        self._given.update(fetched.given)
        return fetched.table

    def _read(self, place: TopicPartition, position: int, bounds: Bounds) -> tuple[pa.Table, int]:
        try:
            return self._read_at(place, position, bounds)
        except OffsetOutOfRangeError:
            return self._read_at(place, self._skip(place, position), bounds)

    def _read_at(self, place: TopicPartition, at: int, bounds: Bounds) -> tuple[pa.Table, int]:
        topic = self._reading.topic(place.topic)
        return self._reading.read(topic, place.partition, at, bounds, self._columns)

    def _skip(self, place: TopicPartition, position: int) -> int:
        """Go on where the partition begins now; say how much was removed unread."""
        low, end = self._reading.bounds(self._reading.topic(place.topic), place.partition)
        if position > end:
            _log.warning(
                "%s/%d ends at %d, before offset %d: it was made anew; reading from its start",
                place.topic,
                place.partition,
                end,
                position,
            )
            return low
        self.skipped_records += low - position
        _log.warning(
            "%d records of %s/%d were removed before group %s read them; going on at %d",
            low - position,
            place.topic,
            place.partition,
            self.group,
            low,
        )
        return low

    def _empty(self) -> pa.Table:
        names = self._topics or [place.topic for place in self._positions]
        known = self._reading.names()
        left = [name for name in names if name in known] or names  # one may be deleted
        return self._reading.empty(self._reading.topic(left[0]), self._columns)

    def _wait(self, left: float | None) -> None:
        """Sleep until there are records, the group changes, or it is time for a heartbeat."""
        self._reading.check_may_wait()
        left = self._at_most_a_beat(left)
        wanted = self._wanted()
        stop = self._reading.watch(wanted, self._woken.set)
        try:
            if not self._reading.ready(wanted):
                self._woken.wait(left)
            self._woken.clear()
        finally:
            stop()

    def _at_most_a_beat(self, left: float | None) -> float | None:
        """Return how long a member may sleep before it has to say that it lives."""
        if not self.member:
            return left
        beat = self._session_seconds / _HEARTBEATS
        return beat if left is None else min(left, beat)

    def _wanted(self) -> dict[Key, int]:
        """Return the offset that is wanted next of each partition."""
        return {self._key(place): offset for place, offset in self._positions.items()}

    def _key(self, place: TopicPartition) -> Key:
        return self._reading.key(self._reading.topic(place.topic), place.partition)

    # The group

    def heartbeat(self) -> None:
        """Send the group a heartbeat; take and give up partitions as it says.

        `poll` does it. Work on one batch that takes longer than the session needs it in between.
        """
        if not self.member:
            return
        held = frozenset(self._positions)
        allowed = self._beat()
        lost = sorted(held - allowed)
        if lost:
            if self._on_revoke is not None:
                self._on_revoke(lost)
            self._give_up(lost)
            allowed = self._beat()
        gained = sorted(allowed - held)
        if gained:
            self._positions.update(self._starts(gained))
            if self._on_assign is not None:
                self._on_assign(gained)

    def _beat(self) -> frozenset[TopicPartition]:
        """Send the group what this member holds; return what it may hold."""
        held = frozenset(self._positions)
        return self._groups.heartbeat(str(self.group), self.member, held)

    def _give_up(self, places: list[TopicPartition]) -> None:
        for place in places:
            self._positions.pop(place, None)
            self._given.pop(place, None)
        left = {place.topic for place in self._positions}
        self._ids = {name: number for name, number in self._ids.items() if name in left}

    def _regroup(self) -> None:
        self._ring()

    def _starts(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where to begin in each of these partitions, and remember it."""
        starts: dict[TopicPartition, int] = {}
        committed = self._groups.committed(self.group) if self.group else {}
        for place in places:
            topic = self._reading.topic(place.topic)
            self._ids.setdefault(place.topic, topic.id)
            self._reading.key(topic, place.partition)
            low, end = self._reading.bounds(topic, place.partition)
            position = committed.get(place)
            if position is None:
                position = low if self._start == EARLIEST else end
            elif not low <= position <= end:
                position = self._skip(place, position)
            starts[place] = position
        self._began.update(starts)
        return starts

    def assignment(self) -> list[TopicPartition]:
        """List the partitions that this consumer reads."""
        return sorted(self._positions)

    # Positions

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition."""
        return dict(self._positions)

    def seek(self, topic: str, partition: int, offset: int | str) -> None:
        """Go on elsewhere in a partition that this consumer reads."""
        self._begin_anew()
        place = TopicPartition(topic, partition)
        if place not in self._positions:
            raise InvalidArgumentError(
                "the partition is not assigned to this consumer", topic=topic, partition=partition
            )
        found = self._reading.start(self._reading.topic(topic), partition, offset)
        self._positions[place] = self._given[place] = found

    def place(self, topic: str, partition: int, offset: int) -> None:
        """Stand at an offset without a look whether it is there: `poll` skips what was removed."""
        self._positions[TopicPartition(topic, partition)] = offset

    def rewind(self) -> None:
        """Go back to what the group committed last, or else to where this consumer began.

        For work that failed: what was given out and not committed is given out again. Without it
        the next `poll` goes on behind it, and the next commit would count it as done.
        """
        committed = self._groups.committed(self.group) if self.group else {}
        for place in self._positions:
            self._positions[place] = committed.get(place, self._began[place])
        self._given.clear()

    def lag(self) -> dict[TopicPartition, int]:
        """Count the records of each partition that this consumer has not been given yet."""
        return {
            place: self._reading.bounds(self._reading.topic(place.topic), place.partition)[1] - at
            for place, at in self._positions.items()
        }

    def commit(self, offsets: Offsets | None = None) -> None:
        """Remember how far the group has come; durable when this returns.

        Without `offsets`: everything given out so far.
        """
        self._check_open()
        if self.group is None:
            raise InvalidArgumentError("a consumer without a group has nowhere to commit to")
        self._groups.commit(self.group, self.member, self.given() if offsets is None else offsets)

    def given(self) -> dict[TopicPartition, int]:
        """Return the offsets behind everything that was given out so far.

        What was given out of a topic that is gone does not count, even if there is one of its name.
        """
        names = self._reading.ids()
        return {
            place: offset
            for place, offset in self._given.items()
            if names.get(place.topic) == self._ids.get(place.topic)
        }

    def close(self) -> None:
        """Leave the group, so that its other members take over at once."""
        if self._closed:
            return
        self._closed = True
        self.wake()
        if self.member:
            self._groups.unwatch(str(self.group), self._regroup)
            with contextlib.suppress(ClosedError):  # a closed log has no members any more
                self._groups.leave(str(self.group), self.member)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed", group=self.group)

    def __repr__(self) -> str:
        return f"<Consumer of {self.group!r}: {len(self._positions)} partitions>"
