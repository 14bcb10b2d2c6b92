"""Batches of a put stream, before they are sent, in flight and settled."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

import pyarrow as pa

from lakebed.errors import (
    InvalidArgumentError,
    LakebedError,
    UnknownOutcomeError,
)

_settling: Final = threading.local()
"""Marks the threads of put streams, which run the callbacks of settled batches."""

Runs = Sequence[tuple[int, int, int, int, int]]
"""Where rows are: topic, partition, base offset, records, first row."""


class Item:
    """A batch in flight; `settle` passes the outcome to its caller."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        runs: Sequence[tuple[int, int]],
        settle: Callable[[Runs | None, LakebedError | None], None],
        sequences: tuple[int, ...] | None = None,
    ) -> None:
        self.batch = batch
        self.runs = runs
        """(partition, records)."""
        self.settle = settle
        self.sequences = sequences
        """The first sequence number of each run; None: the lane gives it."""
        self.deadline = 0.0
        self.sent_at = 0.0
        self.sent = False
        """It was sent on the stream that is open now."""
        self.doubtful = False
        """It was under way on a stream that broke: it may have been written."""
        self.moved = False
        """It was sent again under another producer once, because the first was not known."""

    def give_up(self, error: LakebedError, url: str) -> None:
        """Tell the callers that no more attempts are made."""
        self.settle(None, unknown_outcome(url) if self.doubtful else error)


class RecordSource(Protocol):
    """Single records that gather while batches are under way."""

    def waiting(self) -> bool:
        """Return whether there are some."""
        ...

    def take(self) -> Item | None:
        """Make a batch of them."""
        ...

    def since(self) -> float:
        """Report since when the oldest of them waits, by the monotonic clock."""
        ...

    def refuse(self, error: LakebedError) -> None:
        """Tell the callers that these will not be written."""
        ...


class NoRecords:
    """Gathers nothing."""

    def waiting(self) -> bool:
        """Report no."""
        return False

    def take(self) -> Item | None:
        """Return nothing."""
        return None

    def since(self) -> float:
        """Return the end of time."""
        return math.inf

    def refuse(self, error: LakebedError) -> None:
        """Do nothing: no caller waits."""


def mark_settling_thread() -> None:
    """Mark this thread as one that settles batches: its callbacks must not wait for others."""
    _settling.here = True


def in_callback() -> bool:
    """Return whether this is the thread of a lane, running a callback."""
    return getattr(_settling, "here", False)


def check_may_wait() -> None:
    """Refuse to wait for an acknowledgement in the thread that would bring it."""
    if in_callback():
        raise InvalidArgumentError(
            "a future's callback cannot wait for the log; use append_async there"
        )


def unknown_outcome(url: str) -> UnknownOutcomeError:
    """Return the error of a batch that may have been written."""
    return UnknownOutcomeError("the connection was lost during the call", url=url)


def future_item(
    batch: pa.RecordBatch,
    runs: Sequence[tuple[int, int]],
    answer: Callable[[Runs], Any],
    sequences: tuple[int, ...] | None = None,
) -> tuple[Item, Future[Any]]:
    """Return a batch whose outcome a future tells."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def settle(runs: Runs | None, error: LakebedError | None) -> None:
        try:
            if error is not None:
                future.set_exception(error)
            elif runs is not None:
                future.set_result(answer(runs))
        except LakebedError as refused:
            future.set_exception(refused)

    return Item(batch, runs, settle, sequences), future
