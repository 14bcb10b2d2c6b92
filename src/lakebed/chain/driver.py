"""Runs procedures of the chain against a conditional store, with pauses, until they end.

A read, a plain write or a removal that fails is repeated if the failure may pass; an unknown
conditional write is settled by the procedure. Pauses double up to a limit. `stop` ends every pause:
the procedure is dropped there, which is what a crash would do to it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from lakebed.chain.calls import (
    Call,
    Get,
    Pause,
    Procedure,
    Put,
    PutAll,
    PutIf,
    PutNew,
)
from lakebed.errors import (
    ClosedError,
    LakebedError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from lakebed.host.conditional import Answer, ConditionalStore

PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
_PARALLEL_PUTS: Final = 8

T = TypeVar("T")


class Driver:
    """Runs procedures. Any thread; several at a time."""

    def __init__(self, store: ConditionalStore, prefix: str = "") -> None:
        self.location = f"{store.location}/{prefix}".rstrip("/")
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.puts = 0
        """Writes that were sent, each attempt counted: what a bucket bills."""
        self.failure: LakebedError | None = None
        """Why the store did not do the last call; None once it does."""
        self.failing_since: float | None = None
        """Monotonic seconds at which calls began to fail; None while they do not."""

    def copy(self) -> Driver:
        """Return a driver for the same objects, which is stopped separately."""
        return Driver(self._store, self._prefix.rstrip("/"))

    def run(self, procedure: Procedure[T], *, patience_seconds: float | None = None) -> T:
        """Run a procedure to its end and return its result.

        With `patience_seconds`, raise the store's error once calls have failed for so long;
        without, continue until `stop`.
        """
        until = None if patience_seconds is None else time.monotonic() + patience_seconds
        reply: Any = None
        while True:
            try:
                call = procedure.send(reply)
            except StopIteration as ended:
                result: T = ended.value
                return result
            except OSError as error:  # of a failpoint: the procedure was dropped there
                raise StoreUnavailableError(f"{error}", uri=self.location) from error
            try:
                reply = self._do(call, until)
            except BaseException:
                procedure.close()
                raise

    def stop(self) -> None:
        """End every pause and refuse further calls."""
        self._stopped.set()
        with self._guard:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _do(self, call: Call, until: float | None) -> Any:
        if self._stopped.is_set():
            raise ClosedError("the object store is closed", uri=self.location)
        if isinstance(call, PutNew):
            return self._conditional(self._store.put_new(self._prefix + call.name, call.data))
        if isinstance(call, PutIf):
            name = self._prefix + call.name
            return self._conditional(self._store.put_if(name, call.data, call.version))
        if isinstance(call, Pause):
            return self._pause(call.attempt, until)
        if isinstance(call, Get):
            return self._repeat(lambda: self._store.get(self._prefix + call.name), until)
        if isinstance(call, Put):
            return self._put(call.name, call.data, until)
        if isinstance(call, PutAll):
            return self._put_all(call, until)
        return self._repeat(lambda: self._store.delete(self._prefix + call.name), until)

    def _conditional(self, answer: Answer) -> Any:
        self.puts += 1
        if answer.cause is None:
            self._note_success()
        else:
            self._note_failure(answer.cause)
        return answer.outcome

    def _put(self, name: str, data: bytes, until: float | None) -> None:
        self.puts += 1
        self._repeat(lambda: self._store.put(self._prefix + name, data), until)

    def _put_all(self, call: PutAll, until: float | None) -> None:
        pool = self._threads()
        futures = [pool.submit(self._put, name, data, until) for name, data in call.objects]
        for future in futures:
            future.result()

    def _threads(self) -> ThreadPoolExecutor:
        with self._guard:
            if self._stopped.is_set():
                raise ClosedError("the object store is closed", uri=self.location)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_PARALLEL_PUTS, thread_name_prefix="lakebed-parts")
            return self._pool

    def _repeat(self, attempt: Callable[[], T], until: float | None) -> T:
        attempts = 0
        while True:
            try:
                result = attempt()
            except (StoreUnavailableError, StoreDeniedError, StoreNotFoundError) as error:
                self._note_failure(error)
            else:
                self._note_success()
                return result
            attempts += 1
            self._pause(attempts, until)

    def _pause(self, attempts: int, until: float | None) -> None:
        longest = min(PAUSE_SECONDS * 2 ** min(attempts - 1, 10), PAUSE_SECONDS_MAX)
        if self._stopped.wait(longest * random.uniform(0.5, 1.0)):
            raise ClosedError("the object store is closed", uri=self.location)
        if until is not None and time.monotonic() > until:
            raise self.failure or StoreUnavailableError(
                "the object store does not answer", uri=self.location
            )

    def _note_failure(self, error: LakebedError) -> None:
        self.failure = error
        if self.failing_since is None:
            self.failing_since = time.monotonic()

    def _note_success(self) -> None:
        self.failure = self.failing_since = None
