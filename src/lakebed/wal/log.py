"""The write-ahead log as its users see it: append, truncate, release, close; `reading.py` reads."""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from lakebed import limits
from lakebed.config import WalConfig
from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    LakebedError,
    UnknownOutcomeError,
    from_os_error,
    translate_os_errors,
)
from lakebed.host import Clock, Disk, OsDisk, SystemClock, failpoints
from lakebed.reports.wal import WalStats
from lakebed.types import Closing, EntryKind, HardState
from lakebed.wal.appender import Tail, hard_state_request, mark_request, release_request
from lakebed.wal.arguments import check_index, check_number
from lakebed.wal.folder import owner_text
from lakebed.wal.frame import FLAG_CONFIGURATION, FrameKind, salt_of
from lakebed.wal.group_commit import Applied, GroupCommit
from lakebed.wal.opening import Opened, open_log
from lakebed.wal.reader import Maps, Reader
from lakebed.wal.reading import WalReading
from lakebed.wal.reclaim import Reclaimer
from lakebed.wal.recovery import Mark, Progress
from lakebed.wal.request import OpenRequest, Request, entry_request
from lakebed.wal.writer import Replicate, Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SLOW_PAUSE_SECONDS: Final = 0.002
_SLOW_SECONDS_MAX: Final = 0.010
"""How long a leader waits for callers where each group takes tens of milliseconds."""

_open_logs: weakref.WeakSet[Wal] = weakref.WeakSet()


class Wal(WalReading, Closing):
    """A durable, ordered list of entries in a folder that this process owns.

    `append` returns when its entry is on disk. Any thread may call any method. Use it as a context
    manager, or call `close`: what was acknowledged is safe without, but the next opening is quicker
    with.
    """

    def __init__(
        self,
        *,
        opened: Opened,
        tail: Tail,
        config: WalConfig,
        disk: Disk,
        threaded: bool,
        applied: Applied | None,
    ) -> None:
        self.config = config
        self.folder = opened.layout.root
        self.log_id: uuid.UUID = opened.log_id
        self._opened = opened
        self._entries = opened.entries
        self._guard = threading.Lock()
        self._marking = threading.Lock()
        self._maps = Maps(disk, opened.layout)
        self._reclaimer = Reclaimer(
            disk=disk,
            layout=opened.layout,
            spares=opened.spares,
            maps=self._maps,
            counters=opened.counters,
            sealed=opened.sealed,
        )
        self._writer = Writer(
            appender=opened.appender,
            synced_index=tail.last_index,
            entries=opened.entries,
            guard=self._guard,
            reclaimer=self._reclaimer,
            spares=opened.spares,
            counters=opened.counters,
            config=config,
        )
        self.commits = commits = GroupCommit(
            tail=tail, writer=self._writer, threaded=threaded, applied=applied
        )
        self._reader = Reader(
            maps=self._maps,
            entries=opened.entries,
            guard=self._guard,
            salt=salt_of(opened.log_id),
            tail=lambda: commits.tail,
        )
        self._closed = False
        self._forked = False
        self.refusal: Callable[[], LakebedError] | None = None
        """Returns why commands are refused; None if they are not. A replica's log has one."""
        _open_logs.add(self)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        config: WalConfig | None = None,
        *,
        progress: Progress | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        threaded: bool = True,
        applied: Applied | None = None,
        kind: str | None = None,
        log_id: uuid.UUID | None = None,
    ) -> Self:
        """Open the log in `folder`, making it if the folder is new or empty.

        `progress` is called with bytes scanned and bytes in all. `applied` is called with each
        group of requests once it is on disk, in the order of the log and before its writers are
        told. `kind` is what the entries are of, for the layer that opens its WAL: a folder that
        says that it is of another kind is refused; without it, any folder is opened. A log that is
        created gets `log_id`, or a new identity without it. `disk`, `clock` and `threaded=False`
        (everything in the calling thread) are for tests.
        """
        if not isinstance(folder, (str, os.PathLike)) or "\0" in os.fspath(folder):
            raise InvalidArgumentError("the folder is not a path", got=repr(folder))
        if config is not None and not isinstance(config, WalConfig):
            raise InvalidArgumentError("the settings are not a WalConfig", got=repr(config))
        failpoints.arm_from_environment()
        config, disk, clock = config or WalConfig(), disk or OsDisk(), clock or SystemClock()
        opened, tail = open_log(
            Path(folder), config, disk, clock, progress, threaded=threaded, kind=kind, log_id=log_id
        )
        log = cls(
            opened=opened,
            tail=tail,
            config=config,
            disk=disk,
            threaded=threaded,
            applied=applied,
        )
        try:
            # What was recovered is synced; from here on damage to it is told from a torn write.
            log.commits.mark_end()
            log._reclaim()
        except BaseException:
            log.close()
            raise
        return log

    def replicate_with(self, replicate: Replicate, *, slow: bool) -> None:
        """Acknowledge groups from now on only after `replicate` has returned for them.

        If it is `slow`, a leader waits longer for callers that may share its group.
        """
        if slow:
            self.commits.gather_pause_seconds = _SLOW_PAUSE_SECONDS
            self.commits.gather_seconds_max = _SLOW_SECONDS_MAX
        self._writer.replicate = replicate

    # Writing

    def append(
        self,
        payload: Buffer | Sequence[Buffer],
        *,
        term: int | None = None,
        kind: EntryKind = EntryKind.NORMAL,
    ) -> int:
        """Append an entry and return its index when it is durable.

        `payload` is bytes, any contiguous buffer (an Arrow buffer, say), or a list of them, which
        are written one after another without being joined. They must not change until this
        returns; if a signal handler's exception (Ctrl-C) cuts it short, until the next call does.
        """
        return self.commits.call(self._entry(payload, term, kind))

    def append_async(
        self,
        payload: Buffer | Sequence[Buffer],
        *,
        term: int | None = None,
        kind: EntryKind = EntryKind.NORMAL,
    ) -> Future[int]:
        """Append an entry.

        The future gives its index when it is durable. The buffers must not change until then.
        """
        request = self._entry(payload, term, kind)
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        request.future = future
        self.commits.post(request)
        return future

    def request(
        self,
        payload: Buffer | Sequence[Buffer] | Callable[[], Sequence[Buffer]],
        command: object = None,
    ) -> Request:
        """Prepare an entry for `commits.call` or `commits.post`.

        A function instead of a payload is called when the entry's turn has come.
        """
        if self._closed or self._forked:
            raise self._build_closed_error()
        self.check_writable()
        request: Request
        if callable(payload):
            request = OpenRequest(payload, term=self.commits.tail.hard_state.term)
        else:
            request = self._entry(payload, None, EntryKind.NORMAL)
        request.command = command
        return request

    def check_writable(self) -> None:
        """Raise if commands are refused."""
        if self.refusal is not None:
            raise self.refusal()

    def append_many(
        self, payloads: Sequence[Buffer | Sequence[Buffer]], *, term: int | None = None
    ) -> range:
        """Append several entries with one sync.

        Return their indexes. They are separate entries, but follow each other.
        """
        self._check_usable()
        if not isinstance(payloads, (list, tuple)):
            raise InvalidArgumentError("payloads must be a list", got=type(payloads).__name__)
        if not payloads:
            end = self.last_index + 1
            return range(end, end)
        requests = [self._entry(payload, term, EntryKind.NORMAL) for payload in payloads]
        failure: LakebedError | None = None
        try:
            self.commits.call(*requests)
        except LakebedError as error:
            failure = error
        done = [request.index for request in requests if request.done and request.error is None]
        if failure is not None and not done:
            raise failure
        if len(done) < len(requests):
            # They were too many for one group, and the disk was full for some of the groups.
            raise UnknownOutcomeError(
                "only some entries were appended", first=done[0], last=done[-1], cause=failure
            )
        return range(requests[0].index, requests[-1].index + 1)

    def flush(self) -> None:
        """Return when everything acknowledged before is synced, whatever the sync mode.

        What was appended asynchronously is settled then; its futures say how.
        """
        self._check_usable()
        self.commits.flush()
        if self._writer.poison is not None:
            raise self._writer.poison_error()
        if self.commits.tail.synced < self.commits.tail.position:
            self.commits.call(mark_request(FrameKind.IDLE))

    def set_hard_state(self, state: HardState) -> None:
        """Set the term of later entries, and a vote; durable when this returns."""
        self._check_usable()
        if not isinstance(state, HardState):
            raise InvalidArgumentError("state must be a HardState", got=type(state).__name__)
        check_number("term", state.term)
        check_number("vote", state.vote or 0)
        self.commits.call(hard_state_request(state))

    def truncate(self, last: int) -> None:
        """Void every entry above `last`; durable when this returns."""
        self._check_usable()
        check_index(last)
        with self._marking:
            self.commits.flush()
            if not self.mark.index <= last <= self.last_index:
                raise InvalidArgumentError(
                    "cannot truncate there", last=last, first=self.mark.index, end=self.last_index
                )
            term = self.term_at(last)
            self.commits.call(mark_request(FrameKind.TRUNCATE, index=last, term=term))

    def release(
        self, index: int, note: bytes = b"", *, term: int | None = None, reset: bool = False
    ) -> None:
        """Report that everything up to `index` is held elsewhere, so that whole files can be freed.

        `note` (say, where it is held) comes back as `mark.note` after a restart. With `reset` all
        entries are void and the log continues after `index`, which may lie beyond its end. The mark
        is durable before a file is freed; a file that cannot be freed is tried again next time.
        """
        self._check_usable()
        check_number("index", index, limits.INDEX_MAX // 2)
        check_number("term", term or 0)
        if not isinstance(note, bytes):
            raise InvalidArgumentError("note must be bytes", got=type(note).__name__)
        if len(note) > limits.MARK_BYTES_MAX:
            raise InvalidArgumentError(
                "the note is too large", bytes=len(note), bytes_max=limits.MARK_BYTES_MAX
            )
        with self._marking:
            self.commits.flush()
            if index < self.mark.index or (index > self.last_index and not reset):
                raise InvalidArgumentError(
                    "cannot release there",
                    index=index,
                    released=self.mark.index,
                    end=self.last_index,
                )
            if term is None and index > self.last_index:
                raise InvalidArgumentError("a reset beyond the end needs its term", index=index)
            mark = Mark(index, self.term_at(index) if term is None else term, bytes(note))
            self.commits.call(release_request(mark, reset=reset))
        self._reclaim()

    # Life

    def stats(self) -> WalStats:
        """Return counters and a picture of the log."""
        tail, counters = self.commits.tail, self._opened.counters
        count, size_bytes = self._reclaimer.totals()
        return WalStats(
            log_id=str(self.log_id),
            sync=self.config.sync.value,
            first_index=tail.mark.index + 1,
            last_index=tail.last_index,
            durable_index=min(self._writer.synced_index, tail.last_index),
            term=tail.hard_state.term,
            files=count + 1,
            size_bytes=size_bytes + tail.size,
            poisoned=str(self._writer.poison) if self._writer.poison else None,
            counters=replace(counters, entries_per_sync=list(counters.entries_per_sync)),
            recovery=self._opened.recovery,
        )

    def room_failure(self) -> LakebedError | None:
        """Return why no further file can be had, None if one can; after a failure it looks again.

        Entries that the current file has no room for are refused meanwhile.
        """
        error = self._opened.spares.look_again()
        if error is None:
            return None
        return from_os_error(error, "making the next WAL file", self._opened.layout.wal)

    def announce(self, url: str) -> None:
        """Report in the lock where this log is served: others who open the folder connect there."""
        with translate_os_errors("writing the lock", self._opened.layout.lock):
            self._opened.lock.describe(owner_text(url))

    def close(self) -> None:
        """Finish what was appended, mark the end, release the folder.

        A second call does nothing.
        """
        if self._forked:
            return
        self.commits.check_may_wait()
        with self._marking:
            if self._closed:
                return
            self._closed = True
        self.commits.refuse(self._build_closed_error)
        try:
            self.commits.close()
            self.commits.mark_end()
        finally:
            self._opened.spares.close()
            self._maps.close()
            self.commits.tail.file.close()
            self._opened.appender.close()
            self._opened.lock.release()
            _open_logs.discard(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.first_index} to {self.last_index}"
        return f"<Wal {str(self.folder)!r}: {state}>"

    def _entry(
        self, payload: Buffer | Sequence[Buffer], term: int | None, kind: EntryKind
    ) -> Request:
        if self._closed or self._forked:
            raise self._build_closed_error()
        if term is None:
            term = self.commits.tail.hard_state.term
        elif not isinstance(term, int) or term < 0 or term >> 64:
            check_number("term", term)
        if not isinstance(kind, EntryKind):
            raise InvalidArgumentError("kind must be an EntryKind", got=repr(kind))
        flags = FLAG_CONFIGURATION if kind is EntryKind.CONFIGURATION else 0
        return entry_request(payload, flags=flags, term=term, bytes_max=self.config.entry_bytes_max)

    def _reclaim(self) -> None:
        remaining = self._reclaimer.free(self.mark.index)
        if remaining is not None:
            with self._guard:
                self._entries.drop_files_below(min(remaining, self.commits.tail.number))

    def _check_usable(self) -> None:
        if self._closed or self._forked:
            raise self._build_closed_error()

    def _build_closed_error(self) -> ClosedError:
        if self._forked:
            return ClosedError("the log belongs to the parent process", path=self.folder)
        return ClosedError("the log is closed", path=self.folder)

    def _leave_to_parent(self) -> None:
        """In a forked child.

        The log is the parent's. The child's copy of the lock must not outlive it.
        """
        self._forked = True
        self._opened.lock.release()


def _after_fork() -> None:
    for log in list(_open_logs):
        log._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
