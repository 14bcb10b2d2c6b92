"""How many calls are under way, and since when there has been none."""

from __future__ import annotations

import threading
import time


class UnderWay:
    """Counts the calls of a server that have begun and not ended. Any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._waiting = 0
        self._last = time.monotonic()
        self.count = 0

    def begin(self) -> None:
        """Count a call."""
        with self._guard:
            self.count += 1

    def end(self) -> None:
        """Count a call no longer."""
        with self._guard:
            self.count -= 1
            self._last = time.monotonic()
            if self._waiting:  # each call comes here: nothing is notified unless it is waited for
                self._changed.notify_all()

    def wait_idle(self, seconds: float) -> int:
        """Wait until no call is under way; return how many are left."""
        with self._guard:
            self._waiting += 1
            self._changed.wait_for(lambda: not self.count, seconds)
            self._waiting -= 1
            return self.count

    def idle_seconds(self) -> float:
        """Return for how long no call has been under way."""
        with self._guard:
            return 0.0 if self.count else time.monotonic() - self._last
