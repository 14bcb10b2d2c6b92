"""What a log provides to producers, transactions and consumers.

Those keep the rules of sending, committing and positions; they are the same for a log in this
process and for a served one. A backend carries out what they decide: the engine's on its WAL,
memtables and segments, the client's over a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from lakebed.api.cursor import Cursor, Fetched
from lakebed.api.offsets import Offsets
from lakebed.api.reads import Bounds
from lakebed.api.writing import LogWriter
from lakebed.errors import LakebedError
from lakebed.host.clock import Clock
from lakebed.host.forks import Forkable
from lakebed.reports.groups import GroupInfo
from lakebed.state.values import Topic
from lakebed.types import TopicPartition


class GroupsApi(Protocol):
    """The consumer groups of a log. Any thread."""

    def join(
        self, group: str, topics: Collection[str], session_seconds: float, strategy: str
    ) -> str:
        """Add a member to a group; return its id."""
        ...

    def heartbeat(
        self, group: str, member: str, held: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Report that a member lives and what it holds; return what it may hold.

        Raises `FencedError` if it is no member any more.
        """
        ...

    def leave(self, group: str, member: str) -> None:
        """Remove a member; one that is gone already is no error."""
        ...

    def watch(self, group: str, callback: Callable[[], None]) -> None:
        """Call `callback` when the members of a group change, if that is known here."""
        ...

    def unwatch(self, group: str, callback: Callable[[], None]) -> None:
        """End `watch`."""
        ...

    def commit(self, group: str, member: str, offsets: Offsets) -> None:
        """Commit offsets of a group; durable when this returns."""
        ...

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        ...

    def places(self, offsets: Offsets) -> tuple[tuple[int, int, int], ...]:
        """Check offsets and return them as (topic id, partition, offset)."""
        ...

    def names(self) -> list[str]:
        """List the groups, sorted."""
        ...

    def describe(self, group: str) -> GroupInfo:
        """Return members, committed offsets and lag of a group."""
        ...

    def reset(self, group: str, offsets: Offsets) -> None:
        """Set the offsets of a group without members."""
        ...

    def delete(self, group: str) -> None:
        """Delete a group that has no members."""
        ...


class FetchRequest(NamedTuple):
    """What a consumer fetches, beside its cursor."""

    member: str
    """Its id in the group, which a fetch reports to be alive; empty for none."""
    bounds: Bounds
    columns: Sequence[str] | None


class Fetcher(Protocol):
    """Fetches for one consumer. One thread at a time; `wake` from any thread."""

    def fetch(self, cursor: Cursor, request: FetchRequest, seconds: float | None) -> Fetched:
        """Return the next records behind a cursor, and wait for them at most so long.

        It moves the cursor only where records were removed or a topic was recreated. It may return
        earlier without records: when it is woken, or when the group changed.
        """
        ...

    def wake(self) -> None:
        """End the current wait, or the next one."""
        ...


class Backend(Protocol):
    """A log as producers, transactions and consumers use it. Any thread."""

    @property
    def clock(self) -> Clock:
        """The clock of this process, or the one of a test."""
        ...

    @property
    def writing(self) -> LogWriter:
        """Appends records and carries out commands."""
        ...

    @property
    def groups(self) -> GroupsApi:
        """The consumer groups."""
        ...

    def admit(self) -> None:
        """Wait until the log has memory for a write, or raise `OverloadedError`."""
        ...

    def check_may_wait(self) -> None:
        """Raise in a callback of the thread that would have to end the wait."""
        ...

    # Forked processes

    @property
    def forked(self) -> bool:
        """Return whether this process was forked from the one that opened a served log."""
        ...

    def check_process(self) -> None:
        """Raise `ClosedError` if `forked`."""
        ...

    def fork_error(self) -> LakebedError:
        """Return the error of what a forked process tries."""
        ...

    def adopt(self, session: Forkable) -> None:
        """Call the `after_fork` of a producer or transaction in a forked process, if it must be."""
        ...

    # Reading

    def describe(self, topic: str) -> tuple[Topic, Mapping[int, tuple[int, int]]]:
        """Return a topic, and the earliest offset and the end of each partition."""
        ...

    def offsets(self, topic: str) -> Mapping[int, tuple[int, int]]:
        """Return the earliest offset and the end of each partition."""
        ...

    def topic_ids(self, names: Collection[str]) -> Mapping[str, int]:
        """Return the ids of those of these topics that exist, and perhaps of others."""
        ...

    def empty(self, topics: Sequence[str], columns: Sequence[str] | None) -> pa.Table:
        """Return a table without records in the columns of the first of the topics that exists."""
        ...

    def fetcher(self) -> Fetcher:
        """Return what fetches the records of a new consumer."""
        ...

    def incarnation(self) -> str:
        """Identify the process that knows the members of groups: a restart forgets them."""
        ...
