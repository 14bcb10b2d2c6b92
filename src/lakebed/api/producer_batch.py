"""The batches of a producer: records that were sent one by one, until they are settled."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lakebed.api.acks import Ack, Acks
from lakebed.api.encoding import WriteTarget
from lakebed.errors import LakebedError

_log = logging.getLogger("lakebed.engine")

ITEMS: Final = 4
"""Items of a batch's list that make one record."""


class Sent:
    """The outcome of a record that was sent."""

    __slots__ = ("_batch", "_ticket")
    _batch: ProducerBatch
    _ticket: int

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._batch.settled

    def result(self, timeout: float | None = None) -> Ack:
        """Wait until the record is durable; return its position, or raise the error.

        Args:
            timeout: seconds; default: no limit.
        """
        return self._batch.wait(timeout)[self._batch.row_of(self._ticket)]

    def exception(self, timeout: float | None = None) -> LakebedError | None:
        """Wait for the outcome; return the error, or None."""
        try:
            self._batch.wait(timeout)
        except LakebedError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[Sent], None]) -> None:
        """Call `callback` with this object once the outcome is known."""
        self._batch.call_when_settled(lambda: callback(self))


class _Extra(NamedTuple):
    """What only some records have."""

    headers: Mapping[str, Any] | None
    partition: int | None


class ProducerBatch:
    """Records of one topic in flight.

    A record is four items of one list (value, key, time in nanoseconds, ticket), added in one step:
    any thread may add without a lock. The thread that closes the batch says so first (`closing`),
    then counts what is in it. A thread that adds a record looks at `closing` afterwards, and if it
    is set finds out under the lock whether the record was counted. A `Sent` knows its ticket; that
    the batch does not know the `Sent` lets those without a reference vanish at once, which spares
    the garbage collector most of its work.
    """

    __slots__ = (
        "_acks",
        "_callbacks",
        "_error",
        "_guard",
        "_rows",
        "_settled",
        "closing",
        "extend",
        "extras",
        "items",
        "opened_at",
        "record_bytes_max",
        "settled",
        "size",
        "taken",
        "target",
        "ticket",
        "tickets",
    )

    def __init__(self, target: WriteTarget, opened_at: float, large_bytes: int) -> None:
        self.target = target
        self.opened_at = opened_at
        self.record_bytes_max = (
            min(target.config.record_bytes_max, large_bytes) if target.raw else -1
        )
        """The largest record that may be added without a further look."""
        self.items: list[Any] = []
        self.extend = self.items.extend
        self.extras: dict[int, _Extra] = {}
        self.size = 0
        """About how many bytes; threads that add at once may each miss the other's."""
        self.closing = False
        self.taken = 0
        """How many records it has; known once it is closed."""
        self.ticket = itertools.count().__next__
        self.tickets: list[int] = []
        """The ticket of each row; known once it is closed."""
        self.settled = False
        self._rows: dict[int, int] | None = None
        self._acks: Acks | None = None
        self._error: LakebedError | None = None
        self._guard = threading.Lock()
        self._settled = threading.Condition(self._guard)
        self._callbacks: list[Callable[[], None]] = []

    def close(self) -> None:
        """Take no further records."""
        self.closing = True
        self.taken = len(self.items) // ITEMS
        self.tickets = self.items[3 : self.taken * ITEMS : ITEMS]

    def columns(self) -> tuple[list[Any], list[bytes | None], list[int]]:
        """Return values, keys and times in nanoseconds, and keep nothing but the tickets."""
        items, count = self.items, self.taken * ITEMS
        columns = items[0:count:ITEMS], items[1:count:ITEMS], items[2:count:ITEMS]
        items.clear()
        return columns

    def row_of(self, ticket: int) -> int:
        """Return the row of a record: its ticket's number, unless threads overtook each other."""
        if self.tickets[ticket : ticket + 1] == [ticket]:
            return ticket
        if self._rows is None:
            self._rows = {ticket: row for row, ticket in enumerate(self.tickets)}
        return self._rows[ticket]

    def settle(self, acks: Acks | None, error: LakebedError | None) -> None:
        """Return what became of it."""
        with self._guard:
            self._acks, self._error = acks, error
            self.settled = True
            callbacks, self._callbacks = self._callbacks, []
            self._settled.notify_all()
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the caller's own; others still have to be told
                _log.exception("a callback of a sent record failed")

    def abandon(self, error: LakebedError) -> None:
        """Settle it in a forked process, where no thread can; callbacks are the parent's."""
        self._guard = threading.Lock()
        self._settled = threading.Condition(self._guard)
        if not self.settled:
            self._error, self.settled = error, True

    def wait(self, timeout: float | None) -> Acks:
        """Wait for the outcome."""
        if not self.settled:
            with self._guard:
                if not self._settled.wait_for(lambda: self.settled, timeout):
                    raise TimeoutError("the record is not on disk yet")
        if self._error is not None:
            raise self._error
        if self._acks is None:
            raise AssertionError("a settled batch has acks or an error")
        return self._acks

    def call_when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once the outcome is known."""
        with self._guard:
            if not self.settled:
                self._callbacks.append(callback)
                return
        callback()


def microseconds_of(times_ns: list[int]) -> npt.NDArray[np.int64]:
    """Return times in nanoseconds as microseconds; those after 2262 exceed 64 bits before that."""
    try:
        return np.array(times_ns, np.int64) // 1000
    except OverflowError:
        return np.array([time_ns // 1000 for time_ns in times_ns], np.int64)
