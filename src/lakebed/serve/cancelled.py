"""Whether clients have cancelled their calls: asked of gRPC for a bounded share of the time.

pyarrow asks with the interpreter lock held, and gRPC handles events of any connection before it
answers: bytes that a stranger sends can hold up every thread of the server for tens of
milliseconds. So a call asks only when it has waited in vain for a while, and no call asks until so
much time has passed that asking takes a small share of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

_SHARE: Final = 0.05
"""The most of the time that asking may take."""


class Cancellations:
    """Asks for all calls of a server. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0

    def is_cancelled(self, context: Any) -> bool:
        """Return whether a call was cancelled; False too if it is too early to ask."""
        began = self._clock()
        if began < self._next:
            return False
        cancelled = bool(context.is_cancelled())
        ended = self._clock()
        self._next = ended + (ended - began) / _SHARE
        return cancelled
