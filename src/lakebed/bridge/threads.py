"""Threads for calls that would block an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from lakebed.errors import ClosedError, LakebedError
from lakebed.host.forks import watch_forks

_QUICK_THREADS: Final = 8
"""For reads and single commands, which take milliseconds."""

Result = TypeVar("Result")


def _make_closed_error() -> LakebedError:
    return ClosedError("the log is closed")


class Threads:
    """Two thread pools for the blocking calls of one log: quick ones, and ones that take long.

    `name` begins the names of the threads; `closed` makes the error of calls after `close`.
    """

    def __init__(
        self,
        name: str,
        *,
        slow_threads: int,
        closed: Callable[[], LakebedError] = _make_closed_error,
    ) -> None:
        self._name = name
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, name)
        self._slow = ThreadPoolExecutor(slow_threads, f"{name}-slow")
        self._closed_error = closed
        self._closed = False
        watch_forks(self)

    def after_fork(self) -> None:
        """Make calls in a forked process raise: the threads are the parent's."""
        self._quick, self._slow = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.close()

    async def run(self, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Run a call in a thread without blocking the loop."""
        return await asyncio.wrap_future(self._submit(self._quick, call, *args, **kwargs))

    async def run_slowly(self, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Run a call that may take long, so that quick ones do not queue behind it."""
        return await asyncio.wrap_future(self._submit(self._slow, call, *args, **kwargs))

    def waiting(self, call: Callable[..., Result], *args: Any) -> Future[Result]:
        """Run a call in a new thread: it may wait without a limit."""
        if self._closed:
            raise self._closed_error()
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()
        threading.Thread(
            target=_complete, args=(future, call, args), name=f"{self._name}-wait", daemon=True
        ).start()
        return future

    async def open(self, call: Callable[[], Result], undo: Callable[[Result], object]) -> Result:
        """Open something in a thread. If the task is cancelled, `undo` closes it again."""
        future = self._submit(self._quick, call)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(partial(_undo, undo))
            raise

    def close(self, *, cancel_queued: bool = False) -> None:
        """Make further calls raise; running ones finish."""
        self._closed = True
        self._quick.shutdown(wait=False, cancel_futures=cancel_queued)
        self._slow.shutdown(wait=False, cancel_futures=cancel_queued)

    def _submit(
        self, pool: ThreadPoolExecutor, call: Callable[..., Result], *args: Any, **kwargs: Any
    ) -> Future[Result]:
        try:
            return pool.submit(call, *args, **kwargs)
        except RuntimeError as error:
            raise self._closed_error() from error


def _complete(future: Future[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Make a call and complete a future with its outcome."""
    try:
        result = call(*args)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _undo(undo: Callable[[Any], object], future: Future[Any]) -> None:
    if future.exception() is None:
        undo(future.result())


def progress_in_loop(progress: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
    """Return a progress callback for other threads that runs `progress` in the running loop."""
    loop = asyncio.get_running_loop()

    def report(doing: str, done: int, total: int) -> None:
        loop.call_soon_threadsafe(progress, doing, done, total)

    return report
