"""From threads to an event loop: an event that any thread can set, and a completion queue."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class AsyncEvent:
    """An event that any thread can set. Setting it again before it was cleared costs little."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._is_set = False

    def set(self) -> None:
        """Wake the tasks that wait, or the next one that does. Any thread."""
        if not self._is_set:
            self._is_set = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
                self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False
        self._event.clear()

    async def wait(self, seconds: float | None) -> bool:
        """Wait until the event is set; return False if it was not set in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class CompletionQueue:
    """Runs callbacks of other threads in an event loop; many of them for one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._completions: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_scheduled = False

    def put(self, callback: Callable[..., None], *args: Any) -> None:
        """Schedule a callback in the loop. Any thread."""
        self._completions.append((callback, args))
        if not self._is_scheduled:
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
                self._loop.call_soon_threadsafe(self._run)

    def settle(self, future: asyncio.Future[Any], outcome: Callable[[], Any]) -> None:
        """Complete a future with what `outcome` returns or raises in the loop. Any thread.

        `outcome` is not called if the future was cancelled.
        """
        self.put(_settle, future, outcome)

    def _run(self) -> None:
        self._is_scheduled = False  # first: a callback put from here on schedules another run
        for _ in range(len(self._completions)):
            callback, args = self._completions.popleft()
            try:
                callback(*args)
            except Exception as error:  # the completions behind it belong to other callers
                context = {"message": "a completion failed", "exception": error}
                self._loop.call_exception_handler(context)


def _settle(future: asyncio.Future[Any], outcome: Callable[[], Any]) -> None:
    if future.done():
        return  # cancelled
    try:
        future.set_result(outcome())
    except Exception as error:
        future.set_exception(error)


class Reply(Future[Any], abc.ABC):
    """The end of a call at which the log's threads put its outcome; the queue carries it on.

    A future's lock and list of callbacks would cost more than all the rest, so they are not made:
    the log's threads call nothing but the methods below.
    """

    def __init__(self, queue: CompletionQueue) -> None:
        self._queue = queue

    @abc.abstractmethod
    def deliver(self, result: Any, error: BaseException | None) -> None:
        """Handle the outcome, in the loop; `result` is valid if `error` is None."""

    def done(self) -> bool:
        """Return False: the log's threads complete it once."""
        return False

    def set_result(self, result: Any) -> None:
        """Deliver the result."""
        self._queue.put(self.deliver, result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """Deliver the exception."""
        if exception is None:
            raise AssertionError("a reply that failed must have an exception")
        self._queue.put(self.deliver, None, exception)


class FutureReply(Reply):
    """A reply that completes a future of the loop."""

    def __init__(self, queue: CompletionQueue, future: asyncio.Future[Any]) -> None:
        super().__init__(queue)
        self._future = future

    def deliver(self, result: Any, error: BaseException | None) -> None:
        """Complete the future, unless it was cancelled."""
        if self._future.done():
            return
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)
