"""Group commit: everything that waits goes to disk with one write and one sync.

Callers put encoded requests into a queue. One thread at a time *leads*: it takes the queue as a
group, commits it and wakes the waiters; what arrives in the meantime is the next group. A caller
that finds no leader leads its own commit, which saves two thread switches where there is one
writer. When more is waiting after that, the committer thread takes over. So no caller waits for a
timer, and a caller leads at most one group.

The main thread can be struck by an exception at any point (Ctrl-C, a signal handler that raises). A
group that was cut short that way is committed again from the start by the committer thread. That is
safe because committing changes nothing but the same bytes at the same place, until its last step:
one assignment that replaces the tail and takes the group off.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from lakebed import limits
from lakebed.errors import InvalidArgumentError
from lakebed.wal.appender import Tail
from lakebed.wal.request import Request, Waiter, finish
from lakebed.wal.writer import Writer

Applied = Callable[[list[Request]], None]
"""Applies a group that is on disk, before anyone is told of it; doing it twice does no harm."""

_log = logging.getLogger("lakebed.wal")

_HANDED_OVER: Final = object()
_THREAD: Final = object()

_GATHER_PAUSE_SECONDS: Final = 0.0003
"""How long no new caller may come before a leader stops waiting for those of the last group."""

_GATHER_SECONDS_MAX: Final = 0.005
"""The longest a leader waits for them in all."""

_PAUSE_SECONDS: Final = 0.05
"""How long the committer pauses after something unexpected, before it does it again."""

_GATHER_PASS_MAX: Final = 127
"""The most groups that go without waiting after waiting was in vain."""


class GroupCommit:
    """The queue, the tail, and who leads. `Writer` is what a commit means on disk."""

    def __init__(
        self, *, tail: Tail, writer: Writer, threaded: bool, applied: Applied | None = None
    ) -> None:
        self.tail = tail
        self._writer = writer
        self._applied = applied
        self._threaded = threaded
        self._mutex = threading.Lock()
        self._work = threading.Condition(self._mutex)
        self._changed = threading.Condition(self._mutex)
        self._leader: object | None = None
        self._queue: list[Request] = []
        self._queued_bytes = 0
        self._group: list[Request] = []
        self._finished: list[Request] = []
        self._tick_at: float | None = None
        self._watchers = 0
        self._callers = 0
        self._committing = 0
        self._crowd = 0
        self._pass = 0
        self._passed = 0
        self._finishing = 0
        self._arrived = threading.Lock()
        self._arrived.acquire()
        self._stopping = False
        self._refusal: Callable[[], Exception] | None = None
        self.gather_pause_seconds = _GATHER_PAUSE_SECONDS
        self.gather_seconds_max = _GATHER_SECONDS_MAX
        self._thread: threading.Thread | None = None

    def call(self, *requests: Request) -> int:
        """Commit requests in one group and wait for them; return the last one's index."""
        self.check_may_wait()
        lead: object | None = None
        request = requests[-1]
        try:
            with self._mutex:
                self._admit(requests)
                self._callers += 1
                if self._leader is None:
                    self._leader = lead = request
                else:
                    request.make_gate()
                    if self._callers == self._crowd:
                        self._end_gathering()
            if lead is not None:
                self._lead()
            self._join(request)
        except BaseException:
            request.abandon()  # it may have been struck before it waited
            self._give_up(lead)
            raise
        if request.error is not None:
            raise request.error
        return request.index

    def ride(self, rider: Waiter) -> None:
        """Wait for another caller's entry that holds records of this caller too.

        The rider has its gate, and was added to the request before that was sealed.
        """
        self.check_may_wait()
        with self._mutex:
            self._callers += 1
            if self._callers == self._crowd:
                self._end_gathering()
        rider.join()
        if rider.error is not None:
            raise rider.error

    def holds(self, request: Request) -> bool:
        """Return whether a request was queued, for a caller interrupted while queueing it."""
        with self._mutex:
            taken = (*self._queue, *self._group, *self._finished)
            return request.done or any(other is request for other in taken)

    def post(self, request: Request) -> None:
        """Queue a request for the committer thread and return."""
        with self._mutex:
            self._admit((request,))
            if self._leader is None and self._threaded:
                self._leader = _HANDED_OVER
                self._wake_thread()
        if not self._threaded:
            self.flush()

    def flush(self) -> None:
        """Return when everything queued before is finished, in whatever way."""
        self.check_may_wait()
        lead: object | None = None
        try:
            with self._mutex:
                waiting = self._queue or self._group
                last = waiting[-1] if waiting else None
                if last is not None and self._leader is None:
                    self._leader = lead = last
            if lead is not None:
                self._lead()
        except BaseException:
            self._give_up(lead)
            raise
        if last is not None:
            self._join(last)

    def _join(self, request: Request) -> None:
        """Wait until a request is finished, in whatever way."""
        if request.gate is None:
            if request.done:
                return
            with self._mutex:
                if request.gate is None:
                    request.make_gate()
            if request.done:
                # Finished as it got its gate: whether or not that was seen, it is open now.
                request.wake()
                request.pass_on()
                return
        request.join()

    def wait_for(self, index: int, timeout: float | None) -> bool:
        """Wait until the log has reached `index`, or was closed; return whether it has."""
        self.check_may_wait()
        with self._mutex:
            self._watchers += 1
            try:
                self._changed.wait_for(
                    lambda: self.tail.last_index >= index or self._refusal is not None, timeout
                )
            finally:
                self._watchers -= 1
        return self.tail.last_index >= index

    def _refuse_if_poisoned(self) -> None:
        if self._writer.poison is not None and self._refusal is None:
            self.refuse(self._writer.poison_error)

    def refuse(self, refusal: Callable[[], Exception]) -> None:
        """Refuse every request from now on; wake the threads that wait for entries."""
        with self._mutex:
            self._refusal = refusal
            self._changed.notify_all()

    def close(self) -> None:
        """Finish what is queued and stop the thread. Requests must be refused already."""
        self.flush()
        with self._mutex:
            self._stopping = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def mark_end(self) -> None:
        """Mark the end of a log that is being opened or closed, while no other thread writes."""
        writer, tail = self._writer, self.tail
        if writer.poison is not None:
            if tail.synced < tail.position:
                raise writer.poison_error()  # a weaker mode acknowledged what was never synced
            return
        try:
            self.tail = writer.mark_idle(tail)
        except OSError as error:
            self.tail = writer.fail(tail, [], error)
            self._refuse_if_poisoned()
            raise writer.poison_error() from error

    @property
    def queue_is_full(self) -> bool:
        """Return whether the next request waits for space."""
        return self._queued_bytes > limits.QUEUE_BYTES_MAX and self._refusal is None

    def _admit(self, requests: tuple[Request, ...]) -> None:
        while self.queue_is_full:
            if self.in_callback:
                break  # a callback runs in the thread that makes space
            self._wait_for_space()
        if self._refusal is not None:
            raise self._refusal()
        # One step each: a signal handler cannot leave half of the requests behind.
        self._queue += requests
        for request in requests:
            self._queued_bytes += request.span

    @property
    def in_callback(self) -> bool:
        """Return whether this thread is running a future's callback within a commit."""
        return self._finishing == threading.get_ident()

    def check_may_wait(self) -> None:
        """Refuse to wait, in a callback of a future, for the commit that runs the callback."""
        if self.in_callback:
            raise InvalidArgumentError(
                "a future's callback cannot wait for the log; use append_async there"
            )

    def _end_gathering(self) -> None:
        if self._arrived.locked():
            self._arrived.release()

    def _wait_for_space(self) -> None:
        if self._leader is None:
            self._leader = _HANDED_OVER
            self._wake_thread()
        self._watchers += 1
        try:
            self._changed.wait()
        finally:
            self._watchers -= 1

    def _lead(self) -> None:
        """Commit one group, then step down or hand over."""
        if self._callers < self._crowd:
            self._gather()
        self._round()
        while not self._step_down():
            self._round()

    def _gather(self) -> None:
        """Wait for the callers of the last group to come back, as long as they keep coming.

        With one caller at a time this is never entered. With many that append in a loop it makes
        one sync out of several. Where callers do not come back at once, waiting was in vain, and
        it is tried again only after some groups, twice as many each time.
        """
        if self._pass > 0:
            self._pass -= 1
            return
        deadline = time.monotonic() + self.gather_seconds_max
        while (count := self._callers) < self._crowd:
            self._arrived.acquire(timeout=self.gather_pause_seconds)
            if self._callers == count or time.monotonic() > deadline:
                self._passed = min(2 * self._passed + 1, _GATHER_PASS_MAX)
                self._pass = self._passed
                return
        self._passed = 0

    def _step_down(self) -> bool:
        """Pass the lead on; False if this thread must go on because there is no other."""
        with self._mutex:
            now = time.monotonic()
            if self._tick_at is None and not self.tail.idle:
                self._tick_at = now + self._writer.tick_seconds
                self._wake_thread()
            if not self._queue and not self._due(now):
                self._leader = None
            elif self._threaded:
                self._leader = _HANDED_OVER
                self._wake_thread()
            else:
                return False
        return True

    def _due(self, now: float) -> bool:
        return self._threaded and self._tick_at is not None and now >= self._tick_at

    def _give_up(self, lead: object | None) -> None:
        """Leave a commit that an exception cut short to the committer thread."""
        with self._mutex:
            if lead is not None and self._leader is lead:
                self._leader = _HANDED_OVER
                self._wake_thread()

    def _round(self) -> None:
        self._finish()  # of a round that an exception cut short
        with self._mutex:
            if not self._group:
                if len(self._queue) > 1:
                    group, rest, rest_bytes = self._split()
                else:
                    group, rest, rest_bytes = self._queue, [], 0
                self._group, self._queue, self._queued_bytes = group, rest, rest_bytes
                self._committing, self._callers = self._callers, 0
        group = self._group
        if group:
            group = self._seal(group)
        if group:
            tail = self._writer.commit(self.tail, group)
            # One step: no signal handler runs between these assignments.
            self.tail, self._group, self._finished = tail, [], group
            # Those who are about to be woken, and those who came during the commit.
            self._crowd = self._committing + self._callers
        self._finish()
        if self._watchers:
            with self._mutex:
                self._changed.notify_all()

    def _seal(self, group: list[Request]) -> list[Request]:
        """Encode what was still growing; what cannot be encoded is refused and left out."""
        failed: list[Request] = []
        for request in group:
            try:
                request.seal()
            except Exception as error:
                _log.exception("an entry could not be encoded; it is refused")
                request.error = error
                failed.append(request)
        if failed:
            # First: whatever strikes now, they are found to fail again and told again.
            finish(failed)
            self._group = group = [request for request in group if request not in failed]
        return group

    def _finish(self) -> None:
        """Apply what is published, then wake the callers."""
        if self._finished:
            self._refuse_if_poisoned()
            try:
                self._finishing = threading.get_ident()
                if self._applied is not None:
                    self._applied(self._finished)
                finish(self._finished)
                self._finished = []
            finally:
                self._finishing = 0

    def _split(self) -> tuple[list[Request], list[Request], int]:
        """Return the next group, what stays queued, and its bytes."""
        queue = self._queue
        if self._queued_bytes <= limits.GROUP_BYTES_MAX and len(queue) <= limits.GROUP_FRAMES_MAX:
            return queue, [], 0
        taken, size_bytes = 0, 0
        while taken < min(len(queue), limits.GROUP_FRAMES_MAX):
            size_bytes += queue[taken].span
            if taken and size_bytes > limits.GROUP_BYTES_MAX:
                break
            taken += 1
        rest = queue[taken:]
        return queue[:taken], rest, sum(request.span for request in rest)

    def _wake_thread(self) -> None:
        if not self._threaded:
            return
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="lakebed-wal-committer", daemon=True
            )
            self._thread.start()
        self._work.notify()

    def _run(self) -> None:
        while self._await_lead():
            try:
                self._lead_as_thread()
            except BaseException:
                # A callback that raised SystemExit, say. What it cut short is done again.
                _log.exception("the committer was interrupted; it continues")
                time.sleep(_PAUSE_SECONDS)
                self._give_up(_THREAD)

    def _lead_as_thread(self) -> None:
        # A group that was cut short comes first: it must be written again exactly as it was.
        if not self._group and self._due(time.monotonic()):
            tail, again = self._writer.tick(self.tail)
            with self._mutex:
                self.tail = tail
                self._tick_at = None if again is None else time.monotonic() + again
            self._refuse_if_poisoned()
        self._lead()

    def _await_lead(self) -> bool:
        """Wait until the lead is handed over or a tick is due, and take it; False when stopping."""
        with self._mutex:
            while self._leader is not _HANDED_OVER:
                if self._stopping:
                    return False
                now = time.monotonic()
                if self._leader is None and self._due(now):
                    break
                # Once a tick is due, a leader sees that itself when it steps down, and hands over.
                waiting = self._tick_at is not None and self._tick_at > now
                self._work.wait((self._tick_at or now) - now if waiting else None)
            self._leader = _THREAD
            return True
