"""The engine as producers, transactions and consumers of this process use it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from lakebed.api.backend import FetchRequest
from lakebed.api.cursor import Cursor, Fetched
from lakebed.engine.admission import Admission
from lakebed.engine.core import Core
from lakebed.engine.fetching import fetch, next_wanted
from lakebed.engine.groups import Groups
from lakebed.engine.reading import Reading
from lakebed.engine.writing import Writing
from lakebed.errors import ClosedError, LakebedError
from lakebed.host.clock import Clock
from lakebed.host.forks import Forkable
from lakebed.state.values import Topic


class EmbeddedFetcher:
    """Fetches for one consumer of this process."""

    def __init__(self, reading: Reading, groups: Groups) -> None:
        self._reading = reading
        self._groups = groups
        self._woken = threading.Event()

    def fetch(self, cursor: Cursor, request: FetchRequest, seconds: float | None) -> Fetched:
        """Return the next records behind a cursor, and wait for them at most so long."""
        allowed = None
        if request.member:
            held = frozenset(cursor.positions)
            allowed = self._groups.heartbeat(str(cursor.group), request.member, held)
            if allowed != held:
                return Fetched(None, {}, {}, allowed)
        fetched = fetch(self._reading, cursor, request.bounds, request.columns)
        if fetched.table is None and seconds != 0:
            self._wait(cursor, seconds)
            fetched = fetch(self._reading, cursor, request.bounds, request.columns)
        return fetched._replace(allowed=allowed)

    def _wait(self, cursor: Cursor, seconds: float | None) -> None:
        """Wait until there are records, the group changes, or the consumer is woken."""
        self._reading.check_may_wait()
        wanted = next_wanted(self._reading, cursor)
        stop = self._reading.watch(wanted, self._woken.set)
        try:
            if not self._reading.ready(wanted):
                self._woken.wait(seconds)
            self._woken.clear()
        finally:
            stop()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        self._woken.set()

    def watch(self, cursor: Cursor, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when a partition of a cursor changes; return what ends that."""
        return self._reading.watch(next_wanted(self._reading, cursor), callback)

    def ready(self, cursor: Cursor) -> bool:
        """Return whether there are records behind a cursor."""
        return self._reading.ready(next_wanted(self._reading, cursor))


class EmbeddedBackend:
    """A log in this process, as its producers, transactions and consumers use it. Any thread."""

    forked = False
    """The engine does not look for forks: a forked process must not use its parent's log."""

    def __init__(
        self,
        *,
        core: Core,
        writing: Writing,
        reading: Reading,
        groups: Groups,
        admission: Admission,
    ) -> None:
        self._core = core
        self._reading = reading
        self.writing = writing
        self.groups = groups
        self._admission = admission

    @property
    def clock(self) -> Clock:
        """The clock of this process, or the one of a test."""
        return self._core.clock

    def check_may_wait(self) -> None:
        """Raise in a callback of the committing thread, which nobody else could wait for."""
        self._core.check_may_wait()

    def check_process(self) -> None:
        """Do nothing: see `forked`."""

    def fork_error(self) -> LakebedError:
        """Return the error of what a forked process tries."""
        return ClosedError("the log belongs to the parent process")

    def adopt(self, session: Forkable) -> None:
        """Do nothing: see `forked`."""

    def admit(self) -> None:
        """Return when a write may begin: see `Admission.admit`."""
        self._admission.admit()

    # Reading

    def describe(self, topic: str) -> tuple[Topic, Mapping[int, tuple[int, int]]]:
        """Return a topic, and the earliest offset and the end of each partition."""
        topic_state = self._reading.topic(topic)
        return topic_state, self._reading.offsets(topic_state)

    def offsets(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Return the earliest offset and the end of each partition."""
        return self._reading.offsets(self._reading.topic(topic))

    def topic_ids(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the id of every topic."""
        del names  # all of them are at hand
        return self._core.state.names

    def empty(self, topics: Sequence[str], columns: Sequence[str] | None) -> pa.Table:
        """Return a table without records in the columns of the first of the topics that exists."""
        topic_ids = self._core.state.names
        left = [name for name in topics if name in topic_ids] or topics  # one may be deleted
        return self._reading.empty(self._reading.topic(left[0]), columns)

    def fetcher(self) -> EmbeddedFetcher:
        """Return what fetches the records of a new consumer."""
        return EmbeddedFetcher(self._reading, self.groups)

    def incarnation(self) -> str:
        """Return the same text always: the members of groups are forgotten with this object."""
        return ""
