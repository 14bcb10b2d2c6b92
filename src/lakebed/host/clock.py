"""Time as the project sees it: the system's, or one that a test moves by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What time it is, and how much time has passed."""

    def time_us(self) -> int:
        """Return microseconds since 1970, as people count time; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; it never goes back."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def time_us(self) -> int:
        """Read the wall clock."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Read the monotonic clock."""
        return time.monotonic()


class ManualClock:
    """A clock that does not move until a test moves it."""

    def __init__(self, time_us: int = 1_700_000_000_000_000) -> None:
        self._time_us = time_us
        self._wall_ahead_us = 0

    def time_us(self) -> int:
        """Return the time it was set to."""
        return self._time_us + self._wall_ahead_us

    def monotonic(self) -> float:
        """Return the same time in seconds, without the jumps of the wall clock."""
        return self._time_us / 1_000_000

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self._time_us += int(seconds * 1_000_000)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back, while no time passes."""
        self._wall_ahead_us += int(seconds * 1_000_000)
