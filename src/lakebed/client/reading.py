"""Reading a served log: one ticket for each answer, and consumers that stand here.

A consumer's position is the client's; the server only looks what comes next from there. One request
fetches from all of a consumer's partitions, tells its group that it lives, and waits for records.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from lakebed.api.arguments import check_wait
from lakebed.api.lookup import no_partition, no_topic
from lakebed.api.reads import EARLIEST, Bounds
from lakebed.client.connection import Connection
from lakebed.engine.consumer import Consumer, Fetched
from lakebed.engine.core import Key
from lakebed.engine.reading import Reading
from lakebed.errors import ClosedError, FencedError, LakebedError
from lakebed.host.forks import watch_forks
from lakebed.state.values import Topic
from lakebed.types import TopicPartition

_WAIT_MS_MAX: Final = 10_000
"""The longest that one request waits; after it the next one is made."""


class Waiting:
    """Requests that wait for records, so that they can be woken."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names: set[str] = set()
        self._guard = threading.Lock()
        watch_forks(self)

    @contextlib.contextmanager
    def under_a_name(self) -> Any:
        """Return a name under which a request of the block can be woken."""
        self._connection.check_process()
        name = uuid.uuid4().hex
        with self._guard:
            self._names.add(name)
        try:
            yield name
        finally:
            with self._guard:
                self._names.discard(name)

    def wake(self, name: str) -> None:
        """Have a request answered now, if it waits."""
        with contextlib.suppress(LakebedError):  # a server that is gone has woken everybody
            self._connection.call_once("wake", waiter=name)

    def wake_all(self) -> None:
        """Have every request answered now."""
        with self._guard:
            names = list(self._names)
        for name in names:
            self.wake(name)

    def after_fork(self) -> None:
        """Forget requests that wait: they are the parent's."""
        self._guard = threading.Lock()
        self._names = set()


class RemoteReading:
    """Everything that reads, over a connection. Any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.waiting = Waiting(connection)
        self.closed = False

    def read(
        self,
        topic: str,
        partition: Any,
        offset: Any,
        bounds: Bounds,
        columns: Sequence[str] | None,
        seconds: float | None,
    ) -> pa.Table:
        """Return records from `offset` on, waiting for them if there are none."""
        check_named(topic)
        deadline = None if seconds is None else time.monotonic() + seconds
        with self.waiting.under_a_name() as name:
            while True:
                if self.closed:
                    raise ClosedError("the log is closed")
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                wait_ms = _WAIT_MS_MAX if left is None else min(_WAIT_MS_MAX, int(left * 1000))
                table, said = self._connection.get(
                    {
                        "call": "read",
                        "topic": topic,
                        "partition": partition,
                        "offset": offset,
                        "max_records": bounds.records,
                        "max_bytes": bounds.bytes,
                        "columns": listed(columns),
                        "wait_ms": wait_ms,
                        "waiter": name,
                    }
                )
                if table.num_rows or (left is not None and left * 1000 <= wait_ms):
                    return table
                offset = said["following"]

    # What a consumer looks up

    def topic(self, name: str) -> Topic:
        """Find a topic, or raise `TopicNotFoundError`."""
        return self.described(name)[0]

    def described(self, name: str) -> tuple[Topic, dict[int, tuple[int, int]]]:
        """Return a topic, and the earliest offset and the end of each partition."""
        check_named(name)
        info = self._connection.call("describe_topic", name=name)
        topic = Topic(info.id, info.name, len(info.partitions), (), (), info.created_us)
        return topic, {each.partition: (each.earliest, each.end) for each in info.partitions}

    def key(self, topic: Topic, partition: int) -> Key:
        """Find a partition, or raise `PartitionNotFoundError`."""
        if type(partition) is not int or not 0 <= partition < topic.partitions:
            raise no_partition(topic, partition)
        return (topic.id, partition)

    def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """Return a partition's low watermark and its end."""
        self.key(topic, partition)
        return self.offsets(topic.name)[partition]

    def start(self, topic: Topic, partition: int, offset: int | str) -> int:
        """Return the offset that `earliest`, `latest` or a number means."""
        return Reading.start(self, topic, partition, offset)  # type: ignore[arg-type]

    def names(self) -> Collection[str]:
        """Return the names of the topics there are."""
        return list(self._connection.call("topics"))

    def ids(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the id of each of these topics that is there."""
        found: dict[str, int] = {}
        for name in names:
            with contextlib.suppress(LakebedError):
                found[name] = self.topic(name).id
        return found

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end of each partition."""
        return {
            number: (low, end)
            for number, (low, end) in self._connection.call("offsets", topic=topic).items()
        }

    def server(self) -> str:
        """Return which server answers: another one each time that it is started."""
        return str(self._connection.call("hello").get("server"))

    def check_may_wait(self) -> None:
        """Let anyone wait: no callback holds up what others write."""


class RemoteConsumer(Consumer):
    """Reads what a group of a served log has not read yet; for the rest see `Consumer`."""

    _reading: Any
    _groups: Any

    def __init__(self, reading: RemoteReading, *args: Any, **kwargs: Any) -> None:
        self._waiter = ""
        self._empty_table: pa.Table | None = None
        self._strategy: str = kwargs["strategy"]
        self._server = reading.server()
        super().__init__(reading, *args, **kwargs)  # type: ignore[arg-type]  # what it uses of it
        self._ring = self._wake_request

    def poll(self, wait_ms: int | None = 0) -> pa.Table:
        """Return the next records, waiting for them at most so long (None: forever)."""
        self._check_open()
        check_wait(wait_ms)
        deadline = None if wait_ms is None else time.monotonic() + wait_ms / 1000
        while True:
            try:
                return self._poll(deadline)
            except FencedError:
                if not self._rejoined():
                    raise

    def _check_open(self) -> None:
        super()._check_open()
        self._reading._connection.check_process()

    def _rejoined(self) -> bool:
        """Join the group again if it was only lost because the server was started again."""
        server = self._reading.server()
        if not self.member or server == self._server:
            return False
        held = self.assignment()
        if held and self._on_revoke is not None:
            self._on_revoke(held)
        self._give_up(held)
        self._server = server
        self.member = self._groups.join(
            str(self.group), self._topics, self._session_seconds, self._strategy
        )
        return True

    def _poll(self, deadline: float | None) -> pa.Table:
        if self.member and not self._positions:
            self.heartbeat()
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            fetched, allowed = self._request(0.0 if self._stopping else left)
            if allowed is not None and allowed != frozenset(self._positions):
                self.heartbeat()
                if fetched.table is None:  # it was not looked what others' partitions hold
                    fetched, _ = self._request(0.0)
            table = self._give(fetched)
            if table is not None:
                return table
            if self._stopping or (deadline is not None and time.monotonic() >= deadline):
                self._stopping = False
                return self._empty()
            self._check_open()

    def _request(self, left: float | None) -> tuple[Fetched, frozenset[TopicPartition] | None]:
        """Ask for the next records of every partition that this consumer reads."""
        left = self._at_most_a_beat(left)
        wait_ms = _WAIT_MS_MAX if left is None else min(_WAIT_MS_MAX, int(left * 1000))
        if not self._positions:
            self._nothing_to_read(wait_ms / 1000)
            return Fetched(None, {}, {}), frozenset() if not self.member else self._beat()
        with self._reading.waiting.under_a_name() as name:
            self._waiter = name
            table, said = self._reading._connection.get(
                {
                    "call": "fetch",
                    "places": [(*place, at) for place, at in self._positions.items()],
                    "ids": self._ids,
                    "turn": self._turn,
                    "max_records": self._bounds.records,
                    "max_bytes": self._bounds.bytes,
                    "columns": self._columns,
                    "wait_ms": 0 if self._stopping else wait_ms,
                    "waiter": name,
                    "group": self.group,
                    "member": self.member,
                }
            )
        self._ids = dict(said["ids"])
        self._turn = said["turn"]
        self.skipped_records += said["skipped"]
        self._positions.update(_places(said["positions"]))
        if said["empty"]:
            self._empty_table = table
        allowed = said["allowed"]
        return (
            Fetched(
                None if said["empty"] else table,
                _places(said["following"]),
                _places(said["given"]),
            ),
            None if allowed is None else frozenset(TopicPartition(*each) for each in allowed),
        )

    def _fetch(self) -> Fetched:
        """Fetch without waiting."""
        return self._request(0.0)[0]

    def _nothing_to_read(self, seconds: float) -> None:
        """Wait for partitions: others hold them all."""
        self._woken.wait(min(seconds, 0.05))
        self._woken.clear()

    def _wake_request(self) -> None:
        self._woken.set()
        if self._waiter:
            self._reading.waiting.wake(self._waiter)

    def _empty(self) -> pa.Table:
        if self._empty_table is not None:
            return self._empty_table
        names = self._topics or [place.topic for place in self._positions]
        known = self._reading.names()
        left = [name for name in names if name in known] or list(names)
        table, _ = self._reading._connection.get(
            {
                "call": "read",
                "topic": left[0],
                "partition": 0,
                "offset": "latest",
                "max_records": 1,
                "max_bytes": 1,
                "columns": self._columns,
            }
        )
        return table.slice(0, 0)

    # Positions

    def _starts(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where to begin in each of these partitions, and remember it."""
        starts: dict[TopicPartition, int] = {}
        committed = self._groups.committed(self.group) if self.group else {}
        for name in sorted({place.topic for place in places}):
            topic, bounds = self._reading.described(name)
            self._ids.setdefault(name, topic.id)
            for place in [each for each in places if each.topic == name]:
                self._reading.key(topic, place.partition)
                low, end = bounds[place.partition]
                position = committed.get(place)
                if position is None:
                    position = low if self._start == EARLIEST else end
                elif not low <= position <= end:
                    position = self._skip(place, position)
                starts[place] = position
        self._began.update(starts)
        return starts

    def lag(self) -> dict[TopicPartition, int]:
        """Count the records of each partition that this consumer has not been given yet."""
        names = {place.topic for place in self._positions}
        ends = {name: self._reading.offsets(name) for name in names}
        return {
            place: ends[place.topic][place.partition][1] - at
            for place, at in self._positions.items()
        }

    def given(self) -> dict[TopicPartition, int]:
        """Return the offsets behind everything that was given out so far."""
        ids = self._reading.ids({place.topic for place in self._given})
        return {
            place: offset
            for place, offset in self._given.items()
            if ids.get(place.topic) == self._ids.get(place.topic)
        }


def check_named(topic: object) -> None:
    """Refuse what cannot be the name of a topic, as the engine does."""
    if not isinstance(topic, str):
        raise no_topic(topic)


def listed(given: Any) -> Any:
    """Return a list as it travels; the server says what is wrong with anything else."""
    if isinstance(given, Collection) and not isinstance(given, str | bytes | Mapping):
        return list(given)
    return given


def _places(given: Any) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): offset for topic, partition, offset in given}
