"""Reading a served log: one ticket for each answer."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from lakebed.api.lookup import no_topic
from lakebed.api.reads import Bounds
from lakebed.client.connection import Connection
from lakebed.errors import ClosedError, LakebedError
from lakebed.host.forks import watch_forks
from lakebed.state.values import Topic

WAIT_MS_MAX: Final = 10_000
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
                most = self._connection.wait_ms_max(WAIT_MS_MAX)
                wait_ms = most if left is None else min(most, int(left * 1000))
                table, said = self._connection.get(
                    {
                        "call": "read",
                        "topic": topic,
                        "partition": partition,
                        "offset": offset,
                        "max_records": bounds.records,
                        "max_bytes": bounds.bytes,
                        "columns": as_list(columns),
                        "wait_ms": wait_ms,
                        "waiter": name,
                    }
                )
                if table.num_rows or (left is not None and left * 1000 <= wait_ms):
                    return table
                offset = said["following"]

    # What a consumer looks up

    def describe(self, name: str) -> tuple[Topic, dict[int, tuple[int, int]]]:
        """Return a topic, and the earliest offset and the end of each partition."""
        check_named(name)
        info = self._connection.call("describe_topic", name=name)
        topic = Topic(info.id, info.name, len(info.partitions), (), (), info.created_us)
        return topic, {
            partition.partition: (partition.earliest, partition.end)
            for partition in info.partitions
        }

    def topic(self, name: str) -> Topic:
        """Find a topic, or raise `TopicNotFoundError`."""
        return self.describe(name)[0]

    def ids(self, names: Collection[str]) -> dict[str, int]:
        """Return the id of each of these topics that exists."""
        topic_ids: dict[str, int] = {}
        for name in names:
            with contextlib.suppress(LakebedError):
                topic_ids[name] = self.topic(name).id
        return topic_ids

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return earliest offset and end of each partition."""
        return {
            partition: (low, end)
            for partition, (low, end) in self._connection.call("offsets", topic=topic).items()
        }

    def empty(self, topics: Sequence[str], columns: Sequence[str] | None) -> pa.Table:
        """Return a table without records in the columns of the first of the topics that exists."""
        existing = self._connection.call("topics")
        left = [name for name in topics if name in existing] or list(topics)
        table, _ = self._connection.get(
            {
                "call": "read",
                "topic": left[0],
                "partition": 0,
                "offset": "latest",
                "max_records": 1,
                "max_bytes": 1,
                "columns": columns,
            }
        )
        return table.slice(0, 0)

    def server(self) -> str:
        """Return which server answers: another one each time that it is started."""
        return str(self._connection.call("hello").get("server"))


def check_named(topic: object) -> None:
    """Refuse what cannot be the name of a topic, as the engine does."""
    if not isinstance(topic, str):
        raise no_topic(topic)


def as_list(columns: Any) -> Any:
    """Return a list as it travels; the server says what is wrong with anything else."""
    if isinstance(columns, Collection) and not isinstance(columns, str | bytes | Mapping):
        return list(columns)
    return columns
