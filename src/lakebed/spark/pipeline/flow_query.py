"""The streaming query of one flow: its progress, its failure, and when it starts again.

A query that fails for a reason that may pass is started again from its checkpoint: after a back-off
that doubles with each failure, up to a limit of failures in succession. Progress resets the count:
a batch that is done, or a query that has caught up and waits for records.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import FlowFailedError, LakebedError
from lakebed.spark.pipeline.failures import failure_of, first_line, may_pass
from lakebed.spark.pipeline.spec import Restart
from lakebed.spark.pipeline.status import RESTARTING, RUNNING, FlowStatus, advance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger("lakebed.spark")

POLL_SECONDS: Final = 0.25
"""How often Spark is asked what it has done."""
_LOOK_SECONDS: Final = 0.02
_OPENING: Final = "Initializing"
"""How Spark's status of a query begins whose sources are not open yet."""
_CAUGHT_UP: Final = "Waiting"
"""How Spark's status of a query begins that waits for records or for its next trigger."""
_NOT_UP: Final = "Python worker failed to connect back"
_STARTS: Final = 5


class FlowQuery:
    """A query that runs or waits for its restart. One thread owns it; `guard` is for Spark's."""

    def __init__(self, status: FlowStatus, restart: Restart, stopping: Event) -> None:
        self.status = status
        self.failure: str | None = None
        """Spark's message about the failure that ended the query, unless it will be restarted."""
        self._restart = restart
        self._stopping = stopping
        self._query: StreamingQuery = None  # type: ignore[assignment]  # given when it is started
        self._writing: DataStreamWriter = None  # type: ignore[assignment]  # likewise
        self._raised: LakebedError | None = None
        self._said: str | None = None
        self._seen = ""
        """The time of the last trigger that was looked at."""
        self._stopped = False
        self._attempts = 0
        """Restarts since the last progress."""
        self._due: float | None = None
        """When to restart it, by the monotonic clock; None if it does not wait for that."""
        self._gave_up: LakebedError | None = None

    def guard(self, write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Wrap `write` to keep an error of Lakebed that a batch raises, before Spark wraps it."""

        def guard_write(frame: DataFrame, batch: int) -> None:
            try:
                write(frame, batch)
            except LakebedError as error:
                self._raised = error
                raise
            except Exception as error:  # anything that Spark or a function raises in a batch
                self._said = str(error)
                # Spark searches the text for what may be an interruption, in a way that does not
                # survive traces as long as its own.
                raise FlowFailedError("a batch failed", cause=first_line(self._said)) from None

        return guard_write

    # Starting

    def start(self, writing: DataStreamWriter, await_quiet: Callable[[], None]) -> None:
        """Start the query, and wait until Spark has opened its sources.

        Spark gives up on a source whose process is not up in ten seconds, and each flow has one.
        A busy machine manages that for one flow after another, and sometimes only when the flows
        before it have done their first batches.
        """
        self._writing = writing
        for _ in range(_STARTS):
            self._query = writing.start()
            self._await_sources()
            failure = None if self._query.isActive else self._query.exception()
            if failure is None or _NOT_UP not in str(failure) or self._stopping.is_set():
                return
            _log.warning("a source was not up in time, and is started again: %s", self.status.flow)
            await_quiet()

    def _await_sources(self) -> None:
        pause = Event()
        while self._query.isActive and self._query.status["message"].startswith(_OPENING):
            pause.wait(_LOOK_SECONDS)

    # Watching

    def advance(self) -> bool:
        """Update the status with the query's progress; return True if there was any."""
        changed, batch = False, self.status.batch
        for update in self._query.recentProgress:
            progress = _values(update)
            if progress["timestamp"] > self._seen:
                self._seen = progress["timestamp"]
                self.status = advance(self.status, progress)
                changed = True
        if self._attempts and (self.status.batch != batch or self._has_caught_up()):
            self._attempts = 0
        if self.failure is None and self._due is None and not self._stopped:
            failure = self._query.exception()
            self.failure = None if failure is None else str(failure)
        return changed

    def _has_caught_up(self) -> bool:
        return self._query.isActive and self._query.status["message"].startswith(_CAUGHT_UP)

    def works(self) -> bool:
        """Return True if the query works on a batch."""
        return self._query.isActive and bool(self._query.status["isTriggerActive"])

    def has_ended(self) -> bool:
        """Return True if the query has ended for good, and `advance` has seen why."""
        if self._due is not None or self._query.isActive:
            return False
        return self.failure is not None or self._query.exception() is None

    def error(self) -> LakebedError:
        """Return the error that the query failed with."""
        return self._gave_up or self._last_error()

    def _last_error(self) -> LakebedError:
        flow = self.status.flow
        if self._raised is not None:
            kind = type(self._raised)
            return kind(self._raised.message, **{**self._raised.facts, "flow": flow})
        return failure_of(flow, self._said or self.failure or "")

    # Restarting

    def recover(self) -> bool:
        """Schedule the restart of a query that has failed, or restart it if that is due.

        Returns True if the status has changed. A failure that cannot pass, or has occurred too
        often in succession, is left in `failure`.
        """
        if self.failure is not None and self._gave_up is None:
            return self._back_off(self._last_error())
        if self._due is None or time.monotonic() < self._due or self._query.isActive:
            return False
        self._start_again()
        return True

    def _back_off(self, error: LakebedError) -> bool:
        limit = self._restart.attempts_max
        if limit == 0 or not may_pass(error, self._said or self.failure or ""):
            return False
        if self._attempts >= limit:
            self._gave_up = FlowFailedError(
                "a flow failed, and restarting it did not help",
                flow=self.status.flow,
                attempts=self._attempts,
                cause=error,
            )
            return False
        self._attempts += 1
        delay_ms = self._restart.delay_ms(self._attempts)
        _log.warning(
            "a flow failed and is restarted in %d ms, attempt %d of %d: %s",
            *(delay_ms, self._attempts, limit, error),
        )
        self._due = time.monotonic() + delay_ms / 1000
        self.failure = self._raised = self._said = None
        self.status = replace(
            self.status,
            state=RESTARTING,
            rows_per_second=0.0,
            last_error=str(error),
            next_attempt=_time_in(delay_ms),
        )
        return True

    def _start_again(self) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        self._due = None
        restarts = self.status.restarts + 1
        self.status = replace(self.status, state=RUNNING, restarts=restarts, next_attempt=None)
        try:
            self._query = self._writing.start()
        except (PySparkException, Py4JError) as error:
            self.failure = str(error)

    # Stopping

    def finish(self, *, hurried: bool) -> None:
        """Stop the query: after the running batch, or at once if `hurried` or failed."""
        if self.failure is None and not hurried:
            self._await_batch()
        self.advance()
        self._stopped = True
        self._query.stop()

    def _await_batch(self) -> None:
        pause = Event()
        before = self._seen
        while self.works():
            pause.wait(POLL_SECONDS)
            self.advance()
            if self._seen != before:
                return


def _time_in(delay_ms: int) -> str:
    """Return the time after a delay, as Spark writes times."""
    moment = datetime.now(UTC) + timedelta(milliseconds=delay_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _values(progress: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(progress.json)
    return values
