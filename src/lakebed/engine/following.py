"""Following the chain of a log: what a standby and a read replica have in common."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass

from lakebed.chain.driver import Driver
from lakebed.chain.records import Base, Lease, LeaseState
from lakebed.chain.walk import Follower, Walker
from lakebed.host import Clock, SystemClock
from lakebed.types import Closing


@dataclass(frozen=True)
class ChainView:
    """What a follower of a chain has seen."""

    lease: Lease | None = None
    index: int = 0
    """The last entry that it has."""
    slot: int = 0
    """The last slot that it has read."""
    read_at: float = 0.0
    """Monotonic seconds: it has everything that was in the store then. 0 before the first time."""


class Following(Closing):
    """Follows a log in a store. One thread follows; any thread may close it and look at `view`."""

    def __init__(self, clock: Clock | None) -> None:
        self.view = ChainView()
        self._clock = clock or SystemClock()
        self._closing = threading.Event()
        self._driver: Driver | None = None
        self._guard = threading.Lock()

    def owner_address(self) -> str:
        """Return where the owner serves, if there is one and it has said so."""
        lease = self.view.lease
        return lease.address if lease is not None and lease.state is LeaseState.SERVING else ""

    def close(self) -> None:
        """Stop following. A second call does nothing."""
        self._closing.set()
        with self._guard:
            if self._driver is not None:
                self._driver.stop()

    def _use(self, driver: Driver) -> Driver:
        """Register a driver that `close` stops."""
        with self._guard:
            self._driver = driver
        if self._closing.is_set():
            driver.stop()
        return driver


class ChainWalk:
    """A walk to the end of a chain that continues where it ended. One thread."""

    def __init__(self, log_id: uuid.UUID, follower: Follower, clock: Clock) -> None:
        self._log_id = log_id
        self._follower = follower
        self._clock = clock
        self._walker: Walker | None = None

    @property
    def slot(self) -> int:
        """The last slot that was read."""
        return 0 if self._walker is None else self._walker.next_slot - 1

    @property
    def base(self) -> Base | None:
        """The newest base that the walk includes."""
        return None if self._walker is None else self._walker.base

    def to_end(self, driver: Driver, *, patience_seconds: float | None = None) -> float:
        """Walk; return the monotonic seconds at which everything in the store was read."""
        if self._walker is None:
            walker = Walker(self._log_id, self._follower)
            driver.run(walker.load(), patience_seconds=patience_seconds)
            self._walker = walker
        while True:
            began = self._clock.monotonic()
            if not driver.run(self._walker.step(), patience_seconds=patience_seconds):
                return began

    def restart(self) -> None:
        """Begin at the base again."""
        self._walker = None
