"""Between threads and an event loop: bells, a mailbox, threads for what blocks, openings."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from lakebed.errors import ClosedError
from lakebed.host.forks import watch_forks

_QUICK_THREADS: Final = 8
"""For reads and single commands, which end by themselves within milliseconds."""
_SLOW_THREADS: Final = 2
"""For checkpoints, cleanup and whatever waits for them, so that these hold up nothing else."""

Result = TypeVar("Result")


class Bell:
    """Wakes tasks from any thread. Ringing it again before it was heard costs next to nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()
        self._rung = False

    def ring(self) -> None:
        """Wake whoever waits, or the next one that does. Any thread."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Forget that it rang."""
        self._rung = False
        self._event.clear()

    async def wait(self, seconds: float | None) -> bool:
        """Wait until it rings; False if it did not ring in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Mailbox:
    """Carries answers from other threads to the futures of a loop, many at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._letters: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._called = False

    def put(self, future: asyncio.Future[Any], answer: Callable[[], Any]) -> None:
        """Have a future told what `answer` gives or raises, in the loop. Any thread."""
        self._letters.append((future, answer))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before looking: what is put from here on rings again
        while self._letters:
            future, answer = self._letters.popleft()
            if future.done():
                continue  # cancelled
            try:
                future.set_result(answer())
            except Exception as error:
                future.set_exception(error)


class Reply(Future[Any]):
    """The end at which the log's threads put their answer; nobody can wait at this one."""

    def __init__(self, mailbox: Mailbox, future: asyncio.Future[Any]) -> None:
        # A future's lock and list of callbacks would cost more than all the rest, so they are not
        # made: the log's threads call nothing but what stands here.
        self._mailbox = mailbox
        self._future = future

    def done(self) -> bool:
        """Return whether there was an answer; a second one is ignored by the mailbox."""
        return False

    def set_result(self, result: Any) -> None:
        """Send the result."""
        self._mailbox.put(self._future, lambda: result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Send the error."""
        self._mailbox.put(self._future, partial(_throw, exception))


def _throw(error: BaseException | None) -> None:
    if error is None:
        raise AssertionError("an answer that is an error must be one")
    raise error


class Threads:
    """The threads of one log, for what would block the loop."""

    def __init__(self) -> None:
        self._quick = ThreadPoolExecutor(_QUICK_THREADS, "lakebed-aio")
        self._slow = ThreadPoolExecutor(_SLOW_THREADS, "lakebed-aio-slow")
        self._closed = False
        watch_forks(self)

    def after_fork(self) -> None:
        """Take no calls: the threads are the parent's."""
        self._quick, self._slow = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.close()

    async def run(self, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call it in a thread, and wait for it without blocking the loop."""
        return await asyncio.wrap_future(_submit(self._quick, call, *args, **kwargs))

    async def run_slowly(self, call: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Call something in a thread that may take its time."""
        return await asyncio.wrap_future(_submit(self._slow, call, *args, **kwargs))

    def waiting(self, call: Callable[..., Result], *args: Any) -> Future[Result]:
        """Call something in a thread of its own: it may wait for as long as it likes."""
        if self._closed:
            raise ClosedError("the log is closed")
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()
        threading.Thread(
            target=_tell_outcome, args=(future, call, args), name="lakebed-aio-wait", daemon=True
        ).start()
        return future

    async def open(self, call: Callable[[], Result], undo: Callable[[Result], object]) -> Result:
        """Open something in a thread. If nobody waits for it any more, it is closed again."""
        future = _submit(self._quick, call)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            future.add_done_callback(partial(_undo, undo))
            raise

    def close(self) -> None:
        """Take no further calls; those under way end by themselves."""
        self._closed = True
        self._quick.shutdown(wait=False)
        self._slow.shutdown(wait=False)


def _submit(
    pool: ThreadPoolExecutor, call: Callable[..., Result], *args: Any, **kwargs: Any
) -> Future[Result]:
    try:
        return pool.submit(call, *args, **kwargs)
    except RuntimeError as error:
        raise ClosedError("the log is closed") from error


def _tell_outcome(future: Future[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Make a call and tell a future what it gave or raised."""
    try:
        result = call(*args)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _undo(undo: Callable[[Any], object], future: Future[Any]) -> None:
    if future.exception() is None:
        undo(future.result())


def told_in_loop(progress: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
    """Return what other threads tell their progress to, so that it is told in the running loop."""
    loop = asyncio.get_running_loop()

    def tell(doing: str, done: int, total: int) -> None:
        loop.call_soon_threadsafe(progress, doing, done, total)

    return tell


class AsyncClosing(abc.ABC):
    """Something that is closed at the end of an `async with` block."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close it; a second call does nothing."""

    async def __aenter__(self) -> Self:
        """Return it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()


Opened = TypeVar("Opened", bound=AsyncClosing)


class Opening(Generic[Opened]):
    """Something that is being opened: await it, or enter it with `async with`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Opened]) -> None:
        self._coroutine = coroutine
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Opened:
        opened = self._opened = await self._coroutine
        return await opened.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._opened is None:
            raise AssertionError("it was not entered")
        await self._opened.__aexit__(kind, error, traceback)
