"""Consumers: batch after batch from the partitions of a group's member, or from given ones."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

import pyarrow as pa

from lakebed.api.arguments import check_wait
from lakebed.api.backend import Backend, FetchRequest
from lakebed.api.cursor import Cursor, Fetched
from lakebed.api.lookup import check_partition
from lakebed.api.offsets import Offsets
from lakebed.api.reads import EARLIEST, Bounds, resolve_offset
from lakebed.errors import ClosedError, FencedError, InvalidArgumentError
from lakebed.types import Closing, TopicPartition

_HEARTBEATS: Final = 3
"""How often a waiting consumer sends a heartbeat within its session."""

Callback = Callable[[list[TopicPartition]], None]


class Consumer(Closing):
    """Reads what a group has not read yet. One thread at a time; `wake` from any thread.

    Iterating waits for new records and never ends (`break`, or `wake` from another thread). Each
    batch is a table of one topic, named in the metadata of its schema, with the column `partition`.
    """

    def __init__(
        self,
        backend: Backend,
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
        self._backend = backend
        self._groups = backend.groups
        self._cursor = Cursor(group)
        self._fetcher = backend.fetcher()
        self._start = start
        self._bounds = bounds
        self._columns = None if columns is None else sorted({*columns, "partition", "offset"})
        self._session_seconds = session_seconds
        self._strategy = strategy
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._began: dict[TopicPartition, int] = {}
        """Where this consumer began in each partition."""
        self._empty_table: pa.Table | None = None
        self._ring: Callable[[], None] = self._fetcher.wake
        """Ends the wait of the thread or task that polls."""
        self._stopping = False
        self._closed = False
        self._topics = tuple(topics)
        self._incarnation = backend.incarnation()
        if partitions is not None:
            self._positions.update(self._starts([TopicPartition(*pair) for pair in partitions]))
        else:
            self.member = self._groups.join(str(group), topics, session_seconds, strategy)
            self._groups.watch(str(group), self._regroup)

    @property
    def skipped_records(self) -> int:
        """Records that were removed before this consumer could read them."""
        return self._cursor.skipped_records

    @property
    def _positions(self) -> dict[TopicPartition, int]:
        return self._cursor.positions

    # Reading

    def poll(self, wait_ms: int | None = 0) -> pa.Table:
        """Return the next records; the table is empty if none arrive in time.

        It is also the heartbeat of the member.

        Args:
            wait_ms: how long to wait for records; None waits forever.

        Raises:
            FencedError: the member was removed from the group.
        """
        self._check_open()
        check_wait(wait_ms)
        deadline = None if wait_ms is None else time.monotonic() + wait_ms / 1000
        while True:
            try:
                return self._poll(deadline)
            except FencedError:
                if not self._rejoin():
                    raise

    def _poll(self, deadline: float | None) -> pa.Table:
        if self.member and not self._positions:
            self.heartbeat()
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            fetched = self._fetch(0.0 if self._stopping else left)
            if fetched.allowed is not None and fetched.allowed != frozenset(self._positions):
                self.heartbeat()
                if fetched.table is None:  # nothing was read: partitions changed hands
                    fetched = self._fetch()
            table = self._give(fetched)
            if table is not None:
                return table
            if self._stopping or (deadline is not None and time.monotonic() >= deadline):
                self._stopping = False
                return self._empty()
            self._check_open()

    def __iter__(self) -> Iterator[pa.Table]:
        """Return batch after batch, waiting for new records."""
        while True:
            table = self.poll(None)
            if not table.num_rows:
                return  # woken
            yield table

    def wake(self) -> None:
        """End the iteration, or the wait, of another thread."""
        self._stopping = True
        self._ring()

    def _fetch(self, seconds: float | None = 0.0) -> Fetched:
        """Fetch the next records, which the consumer does not count as received yet."""
        request = FetchRequest(self.member, self._bounds, self._columns)
        fetched = self._fetcher.fetch(self._cursor, request, self._at_most_a_beat(seconds))
        if fetched.empty is not None:
            self._empty_table = fetched.empty
        return fetched

    def _give(self, fetched: Fetched) -> pa.Table | None:
        """Hand out what was fetched; from here on a commit counts it as read."""
        return self._cursor.give(fetched)

    def _empty(self) -> pa.Table:
        if self._empty_table is not None:
            return self._empty_table
        topics = self._topics or [partition.topic for partition in self._positions]
        return self._backend.empty(topics, self._columns)

    def _at_most_a_beat(self, left: float | None) -> float | None:
        """Return how long a member may wait before its next heartbeat is due."""
        if not self.member:
            return left
        beat = self._session_seconds / _HEARTBEATS
        return beat if left is None else min(left, beat)

    # The group

    def heartbeat(self) -> None:
        """Send a heartbeat to the group, and take or give up partitions as it decides.

        `poll` does it; call it during work on one batch that takes longer than the session.
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
        self._cursor.give_up(places)

    def _regroup(self) -> None:
        self._ring()

    def _rejoin(self) -> bool:
        """Join the group again if it was only lost because the server was restarted."""
        if not self.member:
            return False
        incarnation = self._backend.incarnation()
        if incarnation == self._incarnation:
            return False
        held = self.assignment()
        if held and self._on_revoke is not None:
            self._on_revoke(held)
        self._give_up(held)
        self._incarnation = incarnation
        self.member = self._groups.join(
            str(self.group), self._topics, self._session_seconds, self._strategy
        )
        return True

    def _starts(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where to begin in each of these partitions, and remember it."""
        starts: dict[TopicPartition, int] = {}
        committed = self._groups.committed(self.group) if self.group else {}
        for name in sorted({partition.topic for partition in places}):
            topic, bounds = self._backend.describe(name)
            self._cursor.ids.setdefault(name, topic.id)
            for partition in [partition for partition in places if partition.topic == name]:
                check_partition(topic, partition.partition)
                low, end = bounds[partition.partition]
                position = committed.get(partition)
                if position is None:
                    position = low if self._start == EARLIEST else end
                elif not low <= position <= end:
                    position = self._cursor.skip(partition, position, low, end)
                starts[partition] = position
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
        """Continue at another offset of a partition that this consumer reads.

        Args:
            topic: name of the topic.
            partition: number of the partition.
            offset: an integer, `"earliest"` or `"latest"`.
        """
        for name in self._cursor.topics():
            topic_state, bounds = self._backend.describe(name)
            lows = {index: low for index, (low, _) in bounds.items()}
            self._cursor.restart(name, topic_state.id, lows.__getitem__)
        key = TopicPartition(topic, partition)
        if key not in self._positions:
            raise InvalidArgumentError(
                "the partition is not assigned to this consumer", topic=topic, partition=partition
            )
        topic_state, bounds = self._backend.describe(topic)
        check_partition(topic_state, partition)
        position = resolve_offset(topic_state, partition, offset, *bounds[partition])
        self._positions[key] = self._cursor.given[key] = position

    def rewind(self) -> None:
        """Go back to the committed offsets, or to where this consumer began.

        Use it after failed work; otherwise the next commit would include the failed records.
        """
        committed = self._groups.committed(self.group) if self.group else {}
        for partition in self._positions:
            self._positions[partition] = committed.get(partition, self._began[partition])
        self._cursor.given.clear()

    def lag(self) -> dict[TopicPartition, int]:
        """Count the records of each partition that this consumer has not returned yet."""
        ends = {name: self._backend.offsets(name) for name in self._cursor.topics()}
        return {
            partition: ends[partition.topic][partition.partition][1] - position
            for partition, position in self._positions.items()
        }

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets of the group; durable on return.

        Args:
            offsets: the next offsets to read; default: everything returned so far.

        Raises:
            FencedError: the partition is assigned to another member.
        """
        self._check_open()
        if self.group is None:
            raise InvalidArgumentError("a consumer without a group cannot commit")
        self._groups.commit(self.group, self.member, self.given() if offsets is None else offsets)

    def given(self) -> dict[TopicPartition, int]:
        """Return the offsets behind everything that was given out so far.

        What was given out of a topic that is gone does not count, even if there is one of its name.
        """
        delivered, ids = self._cursor.given, self._cursor.ids
        current_ids = self._backend.topic_ids({partition.topic for partition in delivered})
        return {
            partition: offset
            for partition, offset in delivered.items()
            if current_ids.get(partition.topic) == ids.get(partition.topic)
        }

    def close(self) -> None:
        """Leave the group, so that other members take over at once."""
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
        self._backend.check_process()

    def __repr__(self) -> str:
        return f"<Consumer of {self.group!r}: {len(self._positions)} partitions>"
