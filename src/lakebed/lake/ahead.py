"""Decodes the row group that a consumer will want next, while it takes the one before.

A row group's largest column is decoded by one core. Two row groups at a time use a second one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

_PENDING_MAX: Final = 4
"""Beyond this many, whoever wants a row group decodes it when it comes to it."""

_THREADS: Final = 2


class ReadAhead:
    """Runs a few tasks in the background. Any thread; its threads start with the first task."""

    def __init__(self) -> None:
        self._room = threading.Semaphore(_PENDING_MAX)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lakebed-read-ahead")

    def start(self, task: Callable[[], object]) -> None:
        """Run a task soon, or not at all if too many are waiting.

        What it raises is dropped: the reader that comes to this row group meets it again.
        """
        if not self._room.acquire(blocking=False):
            return
        try:
            self._pool.submit(task).add_done_callback(self._done)
        except RuntimeError:  # closed
            self._room.release()

    def close(self) -> None:
        """Wait for what runs; drop what waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _done(self, future: Future[object]) -> None:
        del future
        self._room.release()
