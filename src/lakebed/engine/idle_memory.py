"""When unused memory is returned to the operating system: while the log is idle, or now and then.

A batch that is refused may have taken gigabytes, which allocators keep. Returning them costs
milliseconds, and memory that is needed again has to be asked for again: so not while records come.
"""

from __future__ import annotations

from typing import Final

from lakebed.engine.core import Core
from lakebed.host.memory import release_unused

_IDLE_SECONDS: Final = 10.0
_BUSY_SECONDS: Final = 60.0


class IdleMemory:
    """Returns unused memory when it is due. One thread at a time."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._released_at = self._changed_at = core.clock.monotonic()
        self._applied = self._position()
        self.releases = 0

    def look(self) -> None:
        """Return unused memory, if no entry came for a while or it was not done for long."""
        now, applied = self._core.clock.monotonic(), self._position()
        if applied != self._applied:
            self._applied, self._changed_at = applied, now
        since = now - self._released_at
        idle = now - self._changed_at >= _IDLE_SECONDS
        if since >= (_IDLE_SECONDS if idle else _BUSY_SECONDS):
            release_unused()
            self._released_at = now
            self.releases += 1

    def _position(self) -> int:
        return int(self._core.state.numbers["applied"])
