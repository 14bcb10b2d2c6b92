"""Repeats what may succeed at another attempt: how often, how long, and with which pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
Error = TypeVar("Error", bound=BaseException)


class Backoff:
    """Pauses that double from `first_seconds` up to `seconds_max`. One thread.

    With `jitter`, each is between half of that and all of it, so that clients that failed at the
    same time do not come back at the same time.
    """

    def __init__(self, first_seconds: float, seconds_max: float, *, jitter: bool = False) -> None:
        self._first_seconds = min(first_seconds, seconds_max)
        self._seconds_max = seconds_max
        self._jitter = jitter
        self._seconds = self._first_seconds

    def next(self) -> float:
        """Return the seconds to pause now; the pause after it is longer."""
        seconds = self._seconds
        self._seconds = min(2 * seconds, self._seconds_max)
        return seconds * random.uniform(0.5, 1.0) if self._jitter else seconds

    def reset(self) -> None:
        """Begin with the first pause again, after a success."""
        self._seconds = self._first_seconds


def sleep(seconds: float) -> bool:
    """Pause the thread; return False, because nothing interrupts it."""
    if seconds > 0:
        time.sleep(seconds)
    return False


def _no_pause(_: BaseException) -> float:
    return 0.0


def retry(
    attempt: Callable[[], Result],
    errors: type[Error] | tuple[type[Error], ...],
    *,
    attempts_max: int | None = None,
    seconds_max: float | None = None,
    backoff: Backoff | None = None,
    on_error: Callable[[Error], float | None] = _no_pause,
    wait: Callable[[float], bool] = sleep,
) -> Result:
    """Return the result of `attempt`; repeat it after one of `errors`.

    An error is raised when it is the one of attempt `attempts_max`, when the next attempt would
    begin more than `seconds_max` after the first, or when `wait` returns True, because the pause
    was interrupted. `on_error` sees each error, may raise instead, and returns the least seconds to
    pause, if it needs more than `backoff`.
    """
    begun = time.monotonic()
    count = 0
    while True:
        try:
            return attempt()
        except errors as error:
            count += 1
            pause = max(on_error(error) or 0.0, 0.0 if backoff is None else backoff.next())
            if count == attempts_max or _is_late(begun, pause, seconds_max) or wait(pause):
                raise


def _is_late(begun: float, pause: float, seconds_max: float | None) -> bool:
    return seconds_max is not None and time.monotonic() + pause > begun + seconds_max
