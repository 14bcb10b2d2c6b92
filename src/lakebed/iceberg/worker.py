"""The thread that brings tables and object store up to date, and the lock that its work needs.

It works when a checkpoint or a cleanup has changed segments, and at least once in
`sync_interval_ms`. A failure is counted, logged and tried again, after a pause that doubles up to
that interval. Records are safe in the log before: writers and readers continue whatever happens to
a catalog or a store.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lakebed.errors import ClosedError, InvalidArgumentError, LakebedError
from lakebed.host.retry import Backoff
from lakebed.iceberg.catalog import Catalog
from lakebed.iceberg.parts import LakeParts

_log = logging.getLogger("lakebed.lake")

_LOGGED_MAX: Final = 100

_STOP_SECONDS: Final = 10.0
"""How long, three times in all, closing waits for a catalog and a store."""

Job = Callable[[], None]


class Worker:
    """A thread and a lock: one thread at a time works on the tables. Any thread."""

    def __init__(self, parts: LakeParts, catalog: Catalog) -> None:
        self._log = parts.log
        self._store = parts.store
        self._catalog = catalog
        self._interval_seconds = parts.config.sync_interval_ms / 1000
        self._lock = threading.Lock()
        self._owner: int | None = None
        """The thread that holds the lock."""
        self._wake = threading.Event()
        self._pending = False
        self.stopping = False
        self._abandoned = False
        """The thread did not end in time, and must not touch a file any more."""
        self._thread: threading.Thread | None = None
        self.failures = 0
        self.last_failure: str | None = None
        self._logged: deque[str] = deque(maxlen=_LOGGED_MAX)
        """Failures since the last run without one; each is logged as an error once."""

    @property
    def is_busy(self) -> bool:
        """Return whether a thread is working on the tables."""
        return self._lock.locked()

    @contextlib.contextmanager
    def exclusive(self, *, last: bool = False) -> Iterator[None]:
        """Hold the lock. Once the log is being closed, only the `last` run may."""
        if not last:
            self._log.check_may_wait()
        if self._owner == threading.get_ident():
            raise InvalidArgumentError("a callback of the lake cannot call the lake")
        with self._lock:
            if not last:
                self.check_open()
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None
                self._catalog.release()

    def check_open(self) -> None:
        """Refuse new work once the log is being closed."""
        if self.stopping:
            raise ClosedError("the log is closed")

    def check_not_abandoned(self) -> None:
        """Refuse to delete a file after the log was closed: another process may own its folder."""
        if self._abandoned:
            raise ClosedError("the log is closed")

    # The thread

    def start(self, jobs: Sequence[Job]) -> None:
        """Begin to run jobs in a thread."""
        self._thread = threading.Thread(
            target=self._loop, args=(jobs,), name="lakebed-lake", daemon=True
        )
        self._thread.start()

    def nudge(self) -> None:
        """Run the jobs soon: segments were added or removed."""
        self._pending = True
        self._wake.set()

    def stop(self) -> None:
        """Finish the jobs that are running and those that were asked for, and end."""
        self.stopping = True
        self._wake.set()
        self._join()
        if self._store is not None:
            self._store.close()  # ends every pause before another attempt
        self._catalog.stop()
        self._join()
        if not self._lock.acquire(timeout=_STOP_SECONDS):
            self._abandoned = True
            _log.error("the catalog or the store does not answer: the log is closed without it")
            return
        try:
            self._catalog.close()
        finally:
            self._lock.release()

    def _join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _loop(self, jobs: Sequence[Job]) -> None:
        pause = self._interval_seconds
        backoff = Backoff(1.0, self._interval_seconds)
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self.stopping and not self._pending:
                return
            self._pending = False
            succeeded = self.run(jobs)
            if self.stopping:
                return
            if succeeded:
                backoff.reset()
                pause = self._interval_seconds
            else:
                pause = backoff.next()

    def run(self, jobs: Sequence[Job]) -> bool:
        """Run every job once; return whether all succeeded.

        Each is attempted: a catalog that fails does not keep the local disk full.
        """
        with self.exclusive(last=True):
            succeeded = [self._attempt(job) for job in jobs]
        return all(succeeded)

    def _attempt(self, job: Job) -> bool:
        try:
            job()
        except ClosedError:
            return True
        except LakebedError as error:
            self.record_failure(error)
            return False
        except Exception as error:
            _log.exception("the lake could not be synced")
            self.record_failure(LakebedError(f"the lake failed: {type(error).__name__}: {error}"))
            return False
        return True

    # Failures

    def record_failure(self, error: LakebedError) -> None:
        """Count a failure, and log it; as an error only the first time."""
        self.failures += 1
        self.last_failure = str(error)
        level = logging.DEBUG if self.last_failure in self._logged else logging.ERROR
        self._logged.append(self.last_failure)
        _log.log(level, "the lake could not be synced, and is tried again: %s", error)

    def forget_logged(self) -> None:
        """Log the next failure as an error again: everything succeeded."""
        self._logged.clear()
