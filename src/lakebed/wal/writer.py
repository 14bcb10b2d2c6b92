"""What committing a group means: room, write, sync, publish. What a failing disk means: poison.

`GroupCommit` decides which thread commits what, and when; this is what it does on disk.

The first failed write or sync poisons the log. Nothing is retried, because after a failed sync the
kernel may have dropped what it could not write and report success the next time. Every request of
that group has an unknown outcome; everything after it is refused, and did not happen. Reading what
was durable continues. Only making the *next file* may fail without poison: nothing of the log was
touched, so a full disk is an answer and not the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lakebed.config import SyncMode, WalConfig
from lakebed.errors import (
    LakebedError,
    NotOwnerError,
    PoisonedError,
    UnknownOutcomeError,
    from_os_error,
)
from lakebed.reports.wal import Counters
from lakebed.wal.appender import Appender, NoRoomError, Tail, mark_request
from lakebed.wal.entry_map import EntryMap
from lakebed.wal.frame import ENTRY, FLAG_RESET, HEADER_BYTES, FrameKind
from lakebed.wal.reclaim import Reclaimer
from lakebed.wal.request import Request
from lakebed.wal.spares import Spares

_log = logging.getLogger("lakebed.wal")

Replicate = Callable[[list[Request]], None]
"""Makes the entries of a group survive elsewhere, after they are on this disk and before they are
published. Doing it twice gives the same result. It raises a `LakebedError` if it cannot be known
whether they do.
"""


class Writer:
    """Commits groups. Its methods run in the thread that leads."""

    def __init__(
        self,
        *,
        appender: Appender,
        synced_index: int,
        entries: EntryMap,
        guard: threading.Lock,
        reclaimer: Reclaimer,
        spares: Spares,
        counters: Counters,
        config: WalConfig,
    ) -> None:
        self.poison: LakebedError | None = None
        self.replicate: Replicate | None = None
        self._replicated_index = 0
        """The last index of the last group whose replication began."""
        self._failure: OSError | LakebedError | None = None
        self._told = False
        self._left: tuple[int, int, int] | None = None
        """Number, size and last index of the file that the log has just left."""
        self.synced_index = synced_index
        self._appender = appender
        self._entries = entries
        self._guard = guard
        self._reclaimer = reclaimer
        self._spares = spares
        self._counters = counters
        self._sync_always = config.sync is SyncMode.ALWAYS
        self._idle_seconds = config.idle_mark_ms / 1000
        self.tick_seconds = self._idle_seconds
        if config.sync is SyncMode.INTERVAL:
            self.tick_seconds = min(self._idle_seconds, config.sync_interval_ms / 1000)
        self._sync_on_tick = config.sync is SyncMode.INTERVAL
        self._last_commit = time.monotonic()

    def commit(self, tail: Tail, group: list[Request]) -> Tail:
        """Write a group behind the tail; return the new tail.

        A failure goes into the requests; an exception is one that a signal handler raised.
        """
        if self._failure is not None:
            return self._after_failure(tail, group, self._failure)
        self._note_sealed(tail)
        span_bytes, marks = 0, 0
        for request in group:
            request.error = None  # of an attempt that was cut short
            span_bytes += request.span
            marks += request.kind != ENTRY
        try:
            after = self._make_room(tail, span_bytes)
            sync = self._sync_always or marks > 0
            written = self._appender.write(after, group, sync=sync)
            if sync:
                self.synced_index = written.last_index
            if self.replicate is not None and written.last_index > after.last_index:
                self._replicated_index = written.last_index
                self.replicate(group)
            self._publish(after, written, group, only_entries=marks == 0)
        except NoRoomError as error:
            if self._replicated_index > tail.last_index:  # cut short before: it may be elsewhere
                return self.fail(tail, group, error.cause)
            _fail(group, type(error.cause), error.cause.message, error.cause.facts)
            _log.warning("an append was rejected: %s", error.cause)
            return tail
        except (OSError, LakebedError) as error:
            return self.fail(tail, group, error)
        self._counters.group(
            written.last_index - after.last_index, written.position - after.position
        )
        self._last_commit = time.monotonic()
        if written.position > after.size >> 2 >= after.position:
            self._spares.want()
        return written

    def _make_room(self, tail: Tail, span_bytes: int) -> Tail:
        # The idle mark must always fit: without it, damage to the last group would look torn.
        needed = span_bytes + HEADER_BYTES
        if self._appender.has_room(tail, needed):
            return tail
        following = self._appender.rotate(tail, needed)
        self.synced_index = tail.last_index
        self._left = (tail.number, tail.size, tail.last_index)
        return following

    def _note_sealed(self, tail: Tail) -> None:
        """Allow the previous file to be freed, once the log is sure to continue in the next one."""
        left = self._left
        if left is not None and left[0] < tail.number:
            self._reclaimer.add_sealed(*left)
            self._left = None

    def _sync(self, tail: Tail) -> Tail:
        synced = self._appender.sync(tail)
        self.synced_index = tail.last_index
        return synced

    def _publish(
        self, before: Tail, written: Tail, group: list[Request], *, only_entries: bool
    ) -> None:
        """Enter a group's entries into the map; doing it twice gives the same map."""
        file_number, position, last = before.number, before.position, before.last_index
        with self._guard:
            if only_entries and self._entries.grow(
                file_number, last + 1, written.last_index, written.position
            ):
                return
            self._entries.truncate_above(last)
            run: list[tuple[int, int]] = []
            for request in group:
                if request.kind == ENTRY:
                    run.append((request.index, position))
                else:
                    self._enter(file_number, run)
                    run = []
                    self._publish_mark(request)
                position += request.span
            self._enter(file_number, run)

    def _enter(self, file_number: int, run: list[tuple[int, int]]) -> None:
        if run:
            self._entries.add(file_number=file_number, first=run[0][0], last=run[-1][0], marks=run)

    def _publish_mark(self, request: Request) -> None:
        if request.kind == FrameKind.TRUNCATE:
            self._entries.truncate(request.index)
        elif request.kind == FrameKind.RELEASE and request.flags & FLAG_RESET:
            self._entries.truncate(0)

    def tick(self, tail: Tail) -> tuple[Tail, float | None]:
        """Sync what the interval owes, and mark the log as idle once it has been quiet.

        Returns the tail, and the seconds until something is due again, or None.
        """
        if self.poison is not None or tail.idle:
            return tail, None
        quiet = time.monotonic() - self._last_commit
        try:
            if self._sync_on_tick and tail.synced < tail.position:
                tail = self._sync(tail)
            if quiet < self._idle_seconds:
                return tail, min(self.tick_seconds, self._idle_seconds - quiet)
            return self.mark_idle(tail), None
        except OSError as error:
            return self.fail(tail, [], error), None

    def mark_idle(self, tail: Tail) -> Tail:
        """Sync everything, then write the frame that says so, and sync that."""
        if tail.synced < tail.position:
            tail = self._sync(tail)
        mark = [mark_request(FrameKind.IDLE)]
        if tail.idle or not self._appender.has_room(tail, mark[0].span):
            return tail._replace(idle=True)
        return self._appender.write(tail, mark, sync=True)

    def fail(self, tail: Tail, group: list[Request], error: OSError | LakebedError) -> Tail:
        """Poison the log after a failed write, sync or replication; return the tail it keeps."""
        self._failure = error  # first and in one step: whatever strikes now, it is known
        return self._after_failure(tail, group, error)

    def _after_failure(
        self, tail: Tail, group: list[Request], error: OSError | LakebedError
    ) -> Tail:
        """Poison the log for the group that failed; refuse every later one."""
        if self._told:
            return self._refuse(tail, group)
        tail = self._poison(tail, group, error)
        self._told = True
        return tail

    def _poison(self, tail: Tail, group: list[Request], error: OSError | LakebedError) -> Tail:
        self._counters.errors += 1
        if isinstance(error, OSError):
            self.poison = from_os_error(error, "writing the log", tail.file.path)
            story = "the disk failed while this was written"
        else:
            self.poison = error
            story = "the store did not confirm this; it may be in the log"
        _fail(group, UnknownOutcomeError, story, {"cause": self.poison})
        _log.error("the log is poisoned: %s", self.poison)
        return tail._replace(idle=True)

    def poison_error(self) -> LakebedError:
        """Build the error that a poisoned log answers with."""
        if isinstance(self.poison, NotOwnerError):
            return NotOwnerError(self.poison.message, **self.poison.facts)
        return PoisonedError("an earlier write or sync failed", cause=self.poison)

    def _refuse(self, tail: Tail, group: list[Request]) -> Tail:
        # Those that have an error were in the failed group, which was cut short and came again.
        for request in group:
            if request.error is None:
                request.error = self.poison_error()
        return tail


def _fail(
    group: list[Request], kind: type[LakebedError], message: str, facts: dict[str, object]
) -> None:
    for request in group:
        request.error = kind(message, **facts)
