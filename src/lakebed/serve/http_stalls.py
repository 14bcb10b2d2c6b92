"""Connections whose peer does not read: noticed, and closed after a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

BUFFER_BYTES: Final = 64 * 1024
"""What a connection holds of an answer beyond which no more of it is handed over."""
_LOOKS: Final = 4
"""How often within its time a connection is looked at."""


class StallWatch:
    """Watches what a transport has yet to send. To be used in the event loop."""

    def __init__(
        self, transport: asyncio.Transport, seconds: float, stalled: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._seconds = seconds
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0
        self._since = 0.0

    def begin(self) -> None:
        """Watch until everything is sent; a call while it watches does nothing."""
        if self._timer is None:
            self._left = self._transport.get_write_buffer_size()
            self._since = self._loop.time()
            self._wait()

    def end(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._seconds / _LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        left, before = self._transport.get_write_buffer_size(), self._left
        self._left = left
        if not left:
            return
        now = self._loop.time()
        if left < before:
            self._since = now
        if now - self._since >= self._seconds:
            self._stalled()
        else:
            self._wait()
