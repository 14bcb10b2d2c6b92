"""A served log as producers, transactions and consumers use it.

The position of a consumer is the client's; the server only looks up what comes next from there. One
request fetches from all partitions of a consumer, tells its group that it lives, and waits for
records.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from lakebed.api.backend import FetchRequest
from lakebed.api.cursor import Cursor, Fetched
from lakebed.client.connection import Connection
from lakebed.client.groups import RemoteGroups
from lakebed.client.put_items import check_may_wait
from lakebed.client.reading import WAIT_MS_MAX, RemoteReading
from lakebed.client.topics import RemoteTopics
from lakebed.client.writing import RemoteWriting
from lakebed.errors import LakebedError
from lakebed.host.clock import Clock
from lakebed.host.forks import Forkable, watch_forks
from lakebed.state.values import Topic
from lakebed.types import TopicPartition

_UNASSIGNED_SECONDS: Final = 0.05
"""How often a member that holds no partition asks whether it got one."""


class RemoteFetcher:
    """Fetches for one consumer of a served log."""

    def __init__(
        self, connection: Connection, reading: RemoteReading, groups: RemoteGroups
    ) -> None:
        self._connection = connection
        self._waiting = reading.waiting
        self._groups = groups
        self._woken = threading.Event()
        self._waiter = ""
        """The name under which the request in flight can be woken."""

    def fetch(self, cursor: Cursor, request: FetchRequest, seconds: float | None) -> Fetched:
        """Return the next records behind a cursor, and wait for them at most so long."""
        most = self._connection.wait_ms_max(WAIT_MS_MAX)
        wait_ms = most if seconds is None else min(most, int(seconds * 1000))
        if not cursor.positions:
            return self._wait_for_partitions(cursor, request, wait_ms / 1000)
        with self._waiting.under_a_name() as name:
            self._waiter = name
            ticket = _ticket(cursor, request)
            # Woken before the request has a name that it could be woken under.
            ticket |= {"wait_ms": 0 if self._woken.is_set() else wait_ms, "waiter": name}
            table, said = self._connection.get(ticket)
        self._woken.clear()
        _move(cursor, said)
        allowed = said["allowed"]
        return Fetched(
            None if said["empty"] else table,
            _places(said["following"]),
            _places(said["given"]),
            None
            if allowed is None
            else frozenset(TopicPartition(*partition) for partition in allowed),
            table if said["empty"] else None,
        )

    def _wait_for_partitions(
        self, cursor: Cursor, request: FetchRequest, seconds: float
    ) -> Fetched:
        """Wait a moment for partitions: other members hold them all."""
        self._woken.wait(min(seconds, _UNASSIGNED_SECONDS))
        self._woken.clear()
        allowed: frozenset[TopicPartition] = frozenset()
        if request.member:
            allowed = self._groups.heartbeat(str(cursor.group), request.member, ())
        return Fetched(None, {}, {}, allowed)

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._woken.set()
        if self._waiter:
            self._waiting.wake(self._waiter)


class RemoteBackend:
    """A served log, as its producers, transactions and consumers use it. Any thread."""

    def __init__(
        self,
        *,
        connection: Connection,
        topics: RemoteTopics,
        writing: RemoteWriting,
        reading: RemoteReading,
        groups: RemoteGroups,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._reading = reading
        self.writing = writing
        self.groups = groups

    @property
    def clock(self) -> Clock:
        """The clock of this process, or the one of a test."""
        return self._topics.clock

    def admit(self) -> None:
        """Do nothing: the server makes writes wait when it has to."""

    def check_may_wait(self) -> None:
        """Raise in a callback of the thread that would receive the answer."""
        check_may_wait()

    # Forked processes

    @property
    def forked(self) -> bool:
        """Return whether this process was forked from the one that opened the log."""
        return self._connection.forked

    def check_process(self) -> None:
        """Raise `ClosedError` if `forked`."""
        self._connection.check_process()

    def fork_error(self) -> LakebedError:
        """Return the error of what a forked process tries."""
        return self._connection.fork_error()

    def adopt(self, session: Forkable) -> None:
        """Call the `after_fork` of a producer or transaction in a forked process."""
        watch_forks(session)

    # Reading

    def describe(self, topic: str) -> tuple[Topic, Mapping[int, tuple[int, int]]]:
        """Return a topic, and the earliest offset and the end of each partition."""
        return self._reading.describe(topic)

    def offsets(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Return the earliest offset and the end of each partition."""
        return self._reading.offsets(topic)

    def topic_ids(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the ids of those of these topics that exist."""
        return self._reading.ids(names)

    def empty(self, topics: Sequence[str], columns: Sequence[str] | None) -> pa.Table:
        """Return a table without records in the columns of the first of the topics that exists."""
        return self._reading.empty(topics, columns)

    def fetcher(self) -> RemoteFetcher:
        """Return what fetches the records of a new consumer."""
        return RemoteFetcher(self._connection, self._reading, self.groups)

    def incarnation(self) -> str:
        """Return which server answers: a restarted one has forgotten the members of groups."""
        return self._reading.server()


def _ticket(cursor: Cursor, request: FetchRequest) -> dict[str, Any]:
    return {
        "call": "fetch",
        "places": [(*partition, offset) for partition, offset in cursor.positions.items()],
        "ids": cursor.ids,
        "turn": cursor.turn,
        "max_records": request.bounds.records,
        "max_bytes": request.bounds.bytes,
        "columns": request.columns,
        "group": cursor.group,
        "member": request.member,
    }


def _move(cursor: Cursor, said: Mapping[str, Any]) -> None:
    """Bring a cursor to where the server says that it is."""
    for topic, topic_id in said["ids"].items():
        if cursor.ids.get(topic, topic_id) != topic_id:  # recreated: old offsets mean nothing
            for partition in [key for key in cursor.given if key.topic == topic]:
                del cursor.given[partition]
    cursor.ids = dict(said["ids"])
    cursor.turn = said["turn"]
    cursor.skipped_records += said["skipped"]
    cursor.positions.update(_places(said["positions"]))


def _places(rows: Iterable[tuple[str, int, int]]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}
