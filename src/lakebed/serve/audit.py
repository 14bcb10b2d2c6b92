"""Writing the audit without making anybody wait for it.

Callers put records into a queue of bounded length; a thread writes them to the log, batch by batch.
What the queue or the log cannot take is counted, and the count is logged. Refusals are limited, for
each caller and in all, so that whoever is refused cannot fill the disk by trying: beyond the limit
they are counted, and one record says how many there were.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lakebed.errors import LakebedError
from lakebed.host import Clock
from lakebed.reports.audit import AuditRecord

_log = logging.getLogger("lakebed.serve")

REFUSALS_PER_SECOND: Final = 10
"""Refusals of one principal, call and peer that are recorded one by one."""
REFUSALS_PER_SECOND_IN_ALL: Final = 100
"""Refusals of all callers that are recorded one by one."""
_QUEUE_MAX: Final = 10_000
_BATCH_MAX: Final = 1_000
_WINDOW_SECONDS: Final = 1.0
_WARN_SECONDS: Final = 10.0
"""The shortest time between two warnings that records were lost."""

_Caller = tuple[str, str, str]
_SEVERAL: Final = ("", "", "")
"""Stands for all callers whose refusals come when there are too many in all."""


@dataclass
class _Window:
    """The refusals of one caller in one second."""

    began: float
    written: int = 0
    more: int = 0
    last: AuditRecord | None = None
    """The last one of those that are only counted."""


class Limiter:
    """Decides which refusals are recorded one by one. Guarded by whoever owns it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._written = 0
        """Of all callers, in the second that began then."""
        self._windows: dict[_Caller, _Window] = {}
        """In the order in which they began."""
        self.waiting = False
        """Whether there are refusals of which only the number will be recorded."""

    def admit(self, record: AuditRecord) -> list[AuditRecord]:
        """Return what is to be recorded on account of a refusal."""
        now = self._clock.monotonic()
        records = self.sweep(now)
        if now - self._began >= _WINDOW_SECONDS:
            self._began, self._written = now, 0
        caller = (record.principal, record.call, _host(record.peer))
        window = self._windows.get(caller)
        if window is None and self._written >= REFUSALS_PER_SECOND_IN_ALL:
            caller = _SEVERAL
            window = self._windows.get(caller)
        if window is None:
            window = self._windows[caller] = _Window(now)
        if (
            window.written < REFUSALS_PER_SECOND
            and self._written < REFUSALS_PER_SECOND_IN_ALL
            and caller != _SEVERAL
        ):
            window.written += 1
            self._written += 1
            return [*records, record]
        window.more += 1
        window.last = record
        self.waiting = True
        return records

    def sweep(self, now: float | None = None) -> list[AuditRecord]:
        """End the seconds that are over (all without a time); return what is left to report."""
        records: list[AuditRecord] = []
        while self._windows:
            caller, window = next(iter(self._windows.items()))
            if now is not None and now - window.began < _WINDOW_SECONDS:
                return records
            del self._windows[caller]
            if window.last is not None:
                records.append(_summary(window.last, window.more, several=caller == _SEVERAL))
        self.waiting = False
        return records


def _summary(last: AuditRecord, more: int, *, several: bool) -> AuditRecord:
    """Return the one record that stands for refusals that were only counted."""
    if several:
        nobody = last._replace(principal="", token="", peer="", call="", names=())
        return nobody._replace(reason=f"and {more} more, of several callers")
    return last._replace(reason=f"and {more} more, the last: {last.reason}")


class Auditor:
    """Takes records from any thread, and never makes it wait; one thread writes them."""

    def __init__(self, append: Callable[[Sequence[AuditRecord]], None], clock: Clock) -> None:
        self._append = append
        self._clock = clock
        self._limiter = Limiter(clock)
        self._changed = threading.Condition()
        self._queue: deque[AuditRecord] = deque()
        self._writing = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._warned: float | None = None
        self._told = 0
        self._reason = "the log is slower than they come"
        self.lost = 0
        """How many records could not be written."""

    def act(self, record: AuditRecord) -> None:
        """Record an administrative act."""
        with self._changed:
            self._put([record])

    def refusal(self, record: AuditRecord) -> None:
        """Record a refused call, or count it if there are many."""
        with self._changed:
            waiting = self._limiter.waiting
            self._put(self._limiter.admit(record))
            if self._limiter.waiting and not waiting:
                self._changed.notify_all()  # from now on the thread has to look at the clock

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything so far is written or lost; return whether it is."""
        with self._changed:
            self._put(self._limiter.sweep())
            return self._changed.wait_for(
                lambda: not self._queue and not self._writing, timeout_seconds
            )

    def close(self, timeout_seconds: float) -> None:
        """Write what is left, and take no more."""
        with self._changed:
            self._put(self._limiter.sweep())
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)
        with self._changed:
            self.lost += len(self._queue)
            self._queue.clear()
            self._warn(at_once=True)

    def _put(self, records: Sequence[AuditRecord]) -> None:
        for record in records:
            if self._closing or len(self._queue) >= _QUEUE_MAX:
                self.lost += 1
            else:
                self._queue.append(record)
        if records:
            self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="lakebed-audit", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            batch = self._next()
            if not batch:
                return
            lost = self._write(batch)
            with self._changed:
                self._writing = False
                self.lost += lost
                self._warn()
                self._changed.notify_all()

    def _next(self) -> list[AuditRecord]:
        """Wait for records; none when there will be no more."""
        with self._changed:
            while not self._queue:
                if self._closing:
                    return []
                # Refusals that were only counted are recorded when their second is over.
                self._changed.wait(_WINDOW_SECONDS if self._limiter.waiting else None)
                self._queue.extend(self._limiter.sweep(self._clock.monotonic()))
            count = min(_BATCH_MAX, len(self._queue))
            self._writing = True
            return [self._queue.popleft() for _ in range(count)]

    def _write(self, batch: list[AuditRecord]) -> int:
        """Write records; return how many were lost."""
        try:
            self._append(batch)
        except LakebedError as error:
            self._reason = str(error)
            return len(batch)
        except Exception as error:  # a defect, which must not end the audit for good
            _log.error("a defect: the audit could not be written", exc_info=error)
            self._reason = f"{type(error).__name__}: {error}"
            return len(batch)
        return 0

    def _warn(self, *, at_once: bool = False) -> None:
        """Log how many records were lost, now and then."""
        now = self._clock.monotonic()
        due = at_once or self._warned is None or now - self._warned >= _WARN_SECONDS
        if self.lost > self._told and due:
            self._warned, self._told = now, self.lost
            _log.warning("records of the audit are lost lost=%d reason=%s", self.lost, self._reason)


def _host(peer: str) -> str:
    """Return a peer without its port, which a caller can change at will."""
    host, colon, port = peer.rpartition(":")
    return host if colon and port.isdigit() else peer
