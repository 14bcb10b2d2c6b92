"""Background work of a log: checkpoints, timeouts, retention. One thread, woken when needed.

A failure is logged, counted, shown by `stats()` and tried again; writers go on as long as there is
room, and are told the reason when there is none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lakebed.config import LogConfig, stored_config
from lakebed.engine.budget import Budget
from lakebed.engine.checkpoint import Checkpointer
from lakebed.engine.cleanup import Cleanup
from lakebed.engine.core import Core
from lakebed.engine.groups import Groups
from lakebed.engine.idle_memory import IdleMemory
from lakebed.engine.idleness import Idleness
from lakebed.errors import ClosedError, LakebedError
from lakebed.reports.maintenance import CleanupReport
from lakebed.state.commands import AbortTransaction, Command, ExpireProducers
from lakebed.state.decision import TIMED_OUT
from lakebed.state.image import State
from lakebed.state.values import Topic

_log = logging.getLogger("lakebed.engine")

Result = TypeVar("Result")

_RETRY_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 1.0
"""How often timeouts are looked at."""


class Maintenance:
    """The schedule. `tick` does what is due; `start` has a thread do it."""

    def __init__(
        self,
        *,
        core: Core,
        config: LogConfig,
        budget: Budget,
        checkpointer: Checkpointer,
        cleanup: Cleanup,
        groups: Groups,
        submit: Callable[[Command], Any],
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._config = config
        self._budget = budget
        self._checkpointer = checkpointer
        self._cleanup = cleanup
        self._groups = groups
        self._submit = submit
        self._changed = changed
        """Told when segments came or went."""
        self._working = threading.Lock()
        self._cleaning = threading.Lock()
        """Held by whoever removes or rewrites segments; taken before the other one, or not waited
        for.
        """
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        now = core.clock.monotonic()
        self._cleaned_at = now
        self._memory = IdleMemory(core)
        self._idleness = Idleness(core, config.producer_expiry_ms)
        self.failures = 0
        self.last_failure: LakebedError | None = None
        self.transactions_timed_out = 0
        self.members_expelled = 0

    def start(self) -> None:
        """Begin to work in a thread."""
        self._thread = threading.Thread(target=self._run, name="lakebed-maintenance", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Have a look now, if a checkpoint is due."""
        if not self._wake.is_set() and self._budget.checkpoint_due():
            self._wake.set()

    def stop(self) -> None:
        """Finish what is being done, and end."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._seconds())
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.tick()
                self._budget.failure = None
                self._memory.look()
            except ClosedError:
                return
            except LakebedError as error:
                self._note_failure(error)
            except Exception as error:
                self._note_failure(
                    LakebedError(f"maintenance failed: {type(error).__name__}: {error}")
                )
                _log.exception("maintenance failed")

    def _note_failure(self, error: LakebedError) -> None:
        self.failures += 1
        self.last_failure = self._budget.failure = error
        _log.error("maintenance failed, and is tried again: %s", error)
        self._budget.notify()
        time.sleep(0 if self._stopping else _RETRY_SECONDS)

    def _seconds(self) -> float:
        config = self._config
        least = min(config.checkpoint_interval_ms, config.retention_interval_ms) / 1000
        return min(_LOOK_SECONDS, least)

    def tick(self) -> None:
        """Do everything that is due."""
        self._core.check_may_wait()
        with self._working:
            self._time_out()
            self.members_expelled += len(self._groups.expire())
            if self._budget.checkpoint_due() or self._too_old():
                self._checkpointer.run()
                self._budget.notify()
                self._changed()
            now = self._core.clock.monotonic()
            if now - self._cleaned_at >= self._config.retention_interval_ms / 1000:
                self._clean_if_free(now)

    def clean(self, topics: list[Topic]) -> CleanupReport:
        """Do retention, merging and compaction for topics, now.

        The error of a single topic is raised; of several, each is in the report.
        """
        self._core.check_may_wait()
        with self._cleaning, self._working:
            report = self._clean(topics)
            if len(topics) == 1 and report.errors:
                raise next(iter(report.errors.values()))
            return report

    def rewrite(self, act: Callable[[], Result]) -> Result:
        """Let somebody rewrite segments while no cleanup does, however long that takes.

        Checkpoints and timeouts go on meanwhile, so that no writer waits for it.
        """
        self._core.check_may_wait()
        with self._cleaning:
            result = act()
            self._changed()
            return result

    def checkpoint(self) -> Any:
        """Take a checkpoint now."""
        self._core.check_may_wait()
        with self._working:
            report = self._checkpointer.run()
            self._budget.notify()
            if report.segments:
                self._changed()
            return report

    def picture(self) -> State:
        """Take a checkpoint now, and return what its snapshot holds."""
        self._core.check_may_wait()
        with self._working:
            state = self._checkpointer.picture()
            self._budget.notify()
            self._changed()
            return state

    def _clean_if_free(self, now: float) -> None:
        """Clean up, unless segments are being rewritten: then it is due at the next look."""
        if not self._cleaning.acquire(blocking=False):
            return
        try:
            self._cleaned_at = now
            self._clean_all()
        finally:
            self._cleaning.release()

    def _clean(self, topics: list[Topic]) -> CleanupReport:
        report = self._cleanup.run(topics)
        if report.changed:
            self._changed()
        for error in report.errors.values():
            self.failures += 1
            self.last_failure = error
        return report

    def _clean_all(self) -> None:
        self._clean(list(self._core.state.topics.values()))
        before_us = self._idleness.expiry_us()
        if before_us is not None:
            self._submit(ExpireProducers(before_us))

    def _time_out(self) -> None:
        """Abort transactions that are open for too long."""
        now_us = self._core.clock.time_us()
        for transaction in list(self._core.state.transactions.values()):
            if now_us > transaction.started_us + transaction.timeout_us:
                self._submit(AbortTransaction(transaction.producer, transaction.epoch, TIMED_OUT))
                self.transactions_timed_out += 1
                _log.warning(
                    "transaction of producer %d timed out and was aborted", transaction.producer
                )

    def _too_old(self) -> bool:
        """Return whether a memtable holds its records for longer than it should."""
        now = self._core.clock.monotonic()
        longest = self._config.checkpoint_interval_ms / 1000
        for (topic_id, _), memtable in list(self._core.memtables.items()):
            topic = self._core.state.topics.get(topic_id)
            if topic is None:
                continue
            allowed = min(longest, stored_config(topic.config).segment_ms / 1000)
            if now - memtable.since >= allowed:
                return True
        return False
