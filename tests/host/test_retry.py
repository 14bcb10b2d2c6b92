"""Attempts are repeated as often, as long and with the pauses that were asked for."""

from __future__ import annotations

import pytest

from lakebed.host.retry import Backoff, retry


class Failing:
    """Fails a number of times, then returns the number of its attempt."""

    def __init__(self, failures: int, error: type[Exception] = OSError) -> None:
        self.failures = failures
        self.error = error
        self.attempts = 0

    def __call__(self) -> int:
        self.attempts += 1
        if self.attempts <= self.failures:
            raise self.error(f"attempt {self.attempts}")
        return self.attempts


class Pauses:
    """Waits for nothing, and remembers for how long."""

    def __init__(self, interrupted_after: int | None = None) -> None:
        self.seconds: list[float] = []
        self.interrupted_after = interrupted_after

    def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) == self.interrupted_after


def test_an_attempt_is_repeated_until_it_succeeds() -> None:
    pauses = Pauses()
    assert retry(Failing(4), OSError, backoff=Backoff(1, 5), wait=pauses) == 5
    assert pauses.seconds == [1, 2, 4, 5]


def test_the_last_error_is_raised_after_the_attempts() -> None:
    failing = Failing(9)
    with pytest.raises(OSError, match="attempt 3"):
        retry(failing, OSError, attempts_max=3, wait=Pauses())
    assert failing.attempts == 3


def test_another_error_is_raised_at_once() -> None:
    failing = Failing(1, KeyError)
    with pytest.raises(KeyError):
        retry(failing, (OSError, ValueError), wait=Pauses())
    assert failing.attempts == 1


def test_no_attempt_begins_after_the_time_limit() -> None:
    pauses = Pauses()
    with pytest.raises(OSError, match="attempt 1"):
        retry(Failing(9), OSError, seconds_max=3600, backoff=Backoff(7200, 7200), wait=pauses)
    assert pauses.seconds == []


def test_an_interrupted_pause_ends_it() -> None:
    failing = Failing(9)
    with pytest.raises(OSError, match="attempt 2"):
        retry(failing, OSError, wait=Pauses(interrupted_after=2))
    assert failing.attempts == 2


def test_an_error_may_ask_for_a_longer_pause_or_end_it() -> None:
    pauses = Pauses()
    retry(Failing(2), OSError, backoff=Backoff(1, 9), on_error=lambda _: 1.5, wait=pauses)
    assert pauses.seconds == [1.5, 2]

    def refuse(error: OSError) -> None:
        raise ValueError("not worth it") from error

    failing = Failing(9)
    with pytest.raises(ValueError, match="not worth it"):
        retry(failing, OSError, on_error=refuse)
    assert failing.attempts == 1


def test_pauses_with_jitter_are_between_half_and_all() -> None:
    backoff = Backoff(1, 4, jitter=True)
    seconds = [backoff.next() for _ in range(50)]
    assert 0.5 <= seconds[0] <= 1
    assert all(2 <= pause <= 4 for pause in seconds[2:])
    assert len(set(seconds)) > 10
    backoff.reset()
    assert backoff.next() <= 1
