"""Entries on their way to the WAL: visible to readers, written in groups, dropped together.

An entry must get exactly the index its caller gave it. So everything appended waits here, and one
thread at a time *leads*: it hands all that waits to the WAL as one group, while what arrives
meanwhile is the next. Only when the WAL has taken a group does another follow; if it refuses one,
what waits behind it has no place any more and is dropped as well, each caller with its error.

A leader can be struck by an exception that is not ours (Ctrl-C). Its group then stays what it is,
under way, and the next thread that waits or comes leads it again: writing skips what the WAL has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lakebed.errors import LakebedError, PoisonedError, UnknownOutcomeError
from lakebed.raft.values import LogEntry


class ProposalGroup:
    """Entries that go to disk together, and what became of them."""

    def __init__(self, guard: threading.Lock) -> None:
        self.entries: list[LogEntry] = []
        self.last_index = 0
        self.payload_bytes = 0
        self.settled = False
        self.error: LakebedError | None = None
        self.durable_index = 0
        """Once settled: entries up to here are durable."""
        self.changed = threading.Condition(guard)

    def check(self, index: int) -> None:
        """Raise what became of the entry at `index`, if it is not durable. Once settled."""
        if self.error is not None and index > self.durable_index:
            raise _copy(self.error) from self.error


def _copy(error: LakebedError) -> LakebedError:
    """Return each waiter an error of its own: a traceback belongs to one thread."""
    return type(error)(error.message, **error.facts)


class ProposalStaging:
    """The group under way, the group that is open, and who leads.

    `write` hands entries to the WAL and returns when they are durable. `rewound` is called, with
    the guard held, when staged entries were dropped; it gives the last index that is durable. Of
    the methods, those that say so need the guard.
    """

    def __init__(
        self, write: Callable[[Sequence[LogEntry]], None], rewound: Callable[[], int]
    ) -> None:
        self.guard = threading.Lock()
        self._write = write
        self._rewound = rewound
        self._under_way: ProposalGroup | None = None
        self._open = ProposalGroup(self.guard)
        self._leader: object | None = None
        self._alone_wanted = 0
        self._idle = threading.Condition(self.guard)

    def add(self, entries: Sequence[LogEntry]) -> ProposalGroup:
        """Stage entries, at least one, that follow the last one. With the guard."""
        self._open.entries += entries
        self._open.last_index = entries[-1].index
        self._open.payload_bytes += sum(entry.payload_bytes for entry in entries)
        return self._open

    def last(self) -> ProposalGroup | None:
        """Return the group that holds the last staged entry. With the guard."""
        return self._open if self._open.entries else self._under_way

    @property
    def first_index(self) -> int | None:
        """The first staged entry's index. With the guard."""
        for group in (self._under_way, self._open):
            if group is not None and group.entries:
                return group.entries[0].index
        return None

    def find(self, first: int, last: int) -> list[LogEntry]:
        """Return what is staged of entries `first` to `last`. With the guard."""
        found: list[LogEntry] = []
        for group in (self._under_way, self._open):
            if group is not None and group.entries:
                start = group.entries[0].index
                found += group.entries[max(0, first - start) : max(0, last + 1 - start)]
        return found

    def wait(self, group: ProposalGroup) -> None:
        """Return when a group is settled, leading if nobody else does."""
        me = object()
        try:
            while self._must_lead(group, me):
                self._lead()
        finally:
            self._step_down(me)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other thread from writing, for changes that are not entries."""
        me = object()
        with self.guard:
            self._alone_wanted += 1
        try:
            with self.guard:
                while self._leader is not None:
                    self._idle.wait()
                self._leader = me
            yield
        finally:
            with self.guard:
                self._alone_wanted -= 1
            self._step_down(me)

    def drain(self) -> None:
        """Write everything staged until now; raise what became of it. Only when alone."""
        with self.guard:
            last = self.last()
            index = last.last_index if last is not None else 0
        if last is not None:
            while not last.settled:
                self._lead()
            last.check(index)

    def drop(self, error: LakebedError) -> None:
        """Drop what is staged and not under way. With the guard."""
        if self._open.entries:
            dropped, self._open = self._open, ProposalGroup(self.guard)
            self._settle(dropped, error)

    def _must_lead(self, group: ProposalGroup, me: object) -> bool:
        """Wait for the group to be settled; True if this thread is to write instead."""
        with self.guard:
            while not group.settled:
                free = self._leader is None and not self._alone_wanted
                if free or self._leader is me:
                    self._leader = me
                    return True
                group.changed.wait()
        return False

    def _lead(self) -> None:
        """Write the group under way, or the open one."""
        with self.guard:
            if self._under_way is None:
                self._under_way, self._open = self._open, ProposalGroup(self.guard)
            group = self._under_way
        error = None
        try:
            self._write(group.entries)
        except LakebedError as failure:
            error = failure
        with self.guard:
            self._under_way = None
            self._settle(group, error)
            if error is not None:
                self.drop(_of_those_behind(error))

    def _settle(self, group: ProposalGroup, error: LakebedError | None) -> None:
        group.error = error
        group.durable_index = group.last_index if error is None else self._rewound()
        group.settled = True
        group.entries = []  # whoever keeps the group does not keep the payloads
        group.changed.notify_all()

    def _step_down(self, me: object) -> None:
        """Stop leading, if this thread did, and wake one that can."""
        with self.guard:
            if self._leader is me:
                self._leader = None
            if self._leader is not None:
                return
            if self._alone_wanted:
                self._idle.notify()
                return
            for group in (self._under_way, self._open):
                if group is not None:
                    group.changed.notify()


def _of_those_behind(error: LakebedError) -> LakebedError:
    """Return the error of entries that were never handed over: they did not happen."""
    if isinstance(error, UnknownOutcomeError):
        return PoisonedError("an earlier write or sync failed", cause=error)
    return error
