"""Memory and WAL in bounds: writers are slowed, then stopped, when flushing does not keep up.

| used of the budget | what happens |
|---|---|
| half | a checkpoint begins |
| three quarters | every write waits a little, the longer the more is used |
| all | writes wait until a checkpoint has made room, or fail after `write_timeout_ms` |
| all, and the last checkpoint found the disk full | writes fail at once |

The WAL counts as well: a checkpoint begins at `wal_bytes`, and at twice as much writers wait.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from lakebed.config import LogConfig
from lakebed.engine.checkpoint import Checkpointer
from lakebed.engine.core import Core
from lakebed.errors import ClosedError, DiskFullError, LakebedError, OverloadedError

_SLOWEST_SECONDS: Final = 0.02
"""How long a write waits when nearly all is used."""


class Budget:
    """Says when a checkpoint is due and makes writers wait. Any thread."""

    def __init__(self, core: Core, config: LogConfig, checkpointer: Checkpointer) -> None:
        self._core = core
        self._memory = config.memtable_bytes
        self._wal = config.wal_bytes
        self._timeout = config.write_timeout_ms / 1000
        self._checkpointer = checkpointer
        self._room = threading.Condition()
        self._waiting = 0
        self._closed = False
        self._watchers: list[Callable[[], None]] = []
        self.failure: LakebedError | None = None
        """Why the last checkpoint failed, for the error of those who wait for it."""
        self.throttled_seconds = 0.0
        self.stopped_writes = 0
        self.rejected_writes = 0

    def share_used(self) -> float:
        """Return the share of the budget in use: 1 means that writers wait."""
        memory = self._core.used["memory_bytes"] / self._memory
        wal_bytes = self._core.used["wal_bytes"] - self._checkpointer.frozen_wal_bytes
        return max(memory, wal_bytes / (2 * self._wal))

    def checkpoint_due(self) -> bool:
        """Return whether half of the budget is used."""
        return self.share_used() >= 0.5

    @property
    def disk_full(self) -> bool:
        """True if waiting is no use: everything is in use, and the disk has no space to flush."""
        return isinstance(self.failure, DiskFullError) and self.share_used() >= 1

    def admit(self, relieve: Callable[[], None] | None) -> None:
        """Let a write pass, or make it wait. `relieve` makes room where no thread does."""
        used = self.share_used()
        if used < 0.5:
            return
        if relieve is not None:
            relieve()
        pause = self.pause()
        if pause == 0:
            return
        started = time.monotonic()
        if pause < math.inf:
            time.sleep(pause)
        else:
            self._wait(started)
        self.throttled_seconds += time.monotonic() - started

    def pause(self) -> float:
        """Return how many seconds a write waits: 0 for not at all, infinity until there is room."""
        used = self.share_used()
        if used < 0.75:
            return 0.0
        return _SLOWEST_SECONDS * (used - 0.75) * 4 if used < 1 else math.inf

    def _wait(self, started: float) -> None:
        self.stopped_writes += 1
        with self._room:
            self._waiting += 1
            try:
                in_time = self._room.wait_for(
                    lambda: self._closed or self.share_used() < 1 or self.disk_full, self._timeout
                )
            finally:
                self._waiting -= 1
        if self._closed:
            raise ClosedError("the log was closed while a write waited for room")
        if in_time and not self.disk_full:
            return
        raise self.refusal(started)

    def refusal(self, started: float) -> LakebedError:
        """Count a write that waited in vain, or need not wait; return its error."""
        self.rejected_writes += 1
        if self.disk_full:
            return DiskFullError(
                "the memtable is full, and the disk has no space for a checkpoint",
                memtable_bytes=self._core.used["memory_bytes"],
                cause=self.failure,
            )
        return OverloadedError(
            "the memtable is full, and no checkpoint made room in time",
            waited_ms=int((time.monotonic() - started) * 1000),
            memtable_bytes=self._core.used["memory_bytes"],
            cause=self.failure,
        )

    @contextlib.contextmanager
    def watch(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have `callback` called whenever there is room, until the end of the block."""
        with self._room:
            self._watchers = [*self._watchers, callback]
        try:
            yield
        finally:
            with self._room:
                # A new list, and of equal ones only one less: others may watch with the same.
                rest = list(self._watchers)
                rest.remove(callback)
                self._watchers = rest

    def close(self) -> None:
        """Wake all waiting writers and stop throttling."""
        self._closed = True
        with self._room:
            self._room.notify_all()

    def notify(self) -> None:
        """Wake writers that wait, if there is room now or waiting is no use."""
        if (self._waiting or self._watchers) and (self.share_used() < 1 or self.disk_full):
            with self._room:
                self._room.notify_all()
            for callback in self._watchers:
                callback()
