"""How much callers may do at a time: bytes on their way, bytes and requests a second, streams.

Bytes on their way are counted for each principal and in all; who comes when they are used up waits,
if it says for how long, and is refused then. One request larger than a limit passes alone.

A rate is a bucket that holds what a second brings. A request passes while the bucket is not empty,
and takes what it needs even if that leaves a debt: so large requests pass too, and the next one
waits until the debt is paid.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final, Protocol

from lakebed.config import ServeConfig
from lakebed.errors import QuotaExceededError
from lakebed.serve.slots import BUSY_WAIT_MS, Slots

_BUCKETS_MAX: Final = 10_000
"""Principals whose rates are remembered; beyond it those are forgotten that have nothing to pay."""
_ROUNDING: Final = 1e-6
_TICKET_BYTES: Final = 1024 * 1024
"""What tickets of open streams may take without being in the way of an answer."""


class _Named(Protocol):
    """Whoever has a name."""

    @property
    def name(self) -> str:
        """The principal's name."""
        ...


class _Bucket:
    """What is left of a rate."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._level = float(rate)
        self._at = now

    def wait(self, now: float) -> float:
        """Return how many seconds it is empty for."""
        self._fill(now)
        missing = 1.0 - self._level
        # Whoever waits as long as it was told finds 1 there, give or take what floats lose.
        return missing / self._rate if self._rate and missing > _ROUNDING else 0.0

    def take(self, amount: int) -> None:
        """Take from it, into debt if need be."""
        if self._rate:
            self._level -= amount

    def full(self, now: float) -> bool:
        """Return whether nothing was taken for long enough."""
        self._fill(now)
        return self._level >= self._rate

    def _fill(self, now: float) -> None:
        self._level = min(self._rate, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)


class _Admission:
    """The bytes of one request, which count within the block."""

    __slots__ = ("_name", "_nbytes", "_quotas", "_wait_seconds")

    def __init__(self, quotas: Quotas, name: str, nbytes: int, wait_seconds: float) -> None:
        self._quotas = quotas
        self._name = name
        self._nbytes = nbytes
        self._wait_seconds = wait_seconds

    def __enter__(self) -> None:
        self._quotas._enter(self._name, self._nbytes, self._wait_seconds)

    def __exit__(self, *_: object) -> None:
        self._quotas._leave(self._name, self._nbytes)


class Quotas:
    """The limits of a server, and what is used of them. Any thread."""

    def __init__(self, config: ServeConfig, clock: Callable[[], float] = monotonic) -> None:
        self._config = config
        self._clock = clock
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._waiting = 0
        self.limits_rates = bool(
            config.principal_requests_per_second or config.principal_bytes_per_second
        )
        """Whether principals may only do so much in a second."""
        self._bytes: dict[str, int] = {}
        """On their way, by principal; those that have none are not here."""
        self._bytes_all = 0
        self._rates: dict[str, tuple[_Bucket, _Bucket]] = {}
        """Requests and bytes a second, by principal."""
        self.open_streams = Slots(config, "streams")
        """Streams: puts, gets, WebSockets."""
        self.open_calls = Slots(config, "calls")
        """Calls of Flight with one reply; the reply may wait for its client."""

    @property
    def inflight_bytes(self) -> int:
        """Bytes of requests that are being served."""
        return self._bytes_all

    @property
    def streams(self) -> int:
        """Streams that are being served."""
        return self.open_streams.count

    def admit(
        self, principal: _Named | str, nbytes: int, wait_seconds: float = 0.0
    ) -> contextlib.AbstractContextManager[None]:
        """Serve a request of so many bytes within the block, or raise `QuotaExceededError`.

        It waits for room for up to `wait_seconds`, and holds back a caller that is to go slower.
        """
        name = principal if isinstance(principal, str) else principal.name
        _count(principal, nbytes)
        return _Admission(self, name, nbytes, wait_seconds)

    @contextlib.contextmanager
    def hold(
        self,
        principal: _Named | str,
        nbytes: int,
        wait_seconds: float = 0.0,
        *,
        always: bool = False,
    ) -> Iterator[None]:
        """Hold an answer of so many bytes within the block, or raise `QuotaExceededError`.

        Its bytes are on their way as those of requests are; `charge` counts them as they are sent.
        One that is larger than all there may be passes alone: tickets of streams do not count.
        With `always` it is counted and never refused: what it tells of has happened.
        """
        name = principal if isinstance(principal, str) else principal.name
        deadline = self._clock() + wait_seconds
        with self._guard:
            while not always and not self._has_room(name, nbytes, _TICKET_BYTES):
                left = deadline - self._clock()
                if left <= 0:
                    raise self._too_much(name, nbytes)
                self._wait(left)
            self._bytes[name] = self._bytes.get(name, 0) + nbytes
            self._bytes_all += nbytes
        try:
            yield
        finally:
            self._leave(name, nbytes)

    @contextlib.contextmanager
    def stream(
        self, principal: _Named | str, address: str = "", *, administrator: bool = False
    ) -> Iterator[None]:
        """Serve a stream within the block, or raise `QuotaExceededError`."""
        name = principal if isinstance(principal, str) else principal.name
        slot = self.open_streams.take(name, administrator=administrator)
        try:
            if address:
                self.open_streams.locate(slot, address)
            yield
        finally:
            self.open_streams.release(slot)

    def charge(self, principal: _Named | str, nbytes: int) -> None:
        """Count bytes that a principal was sent against what it may have in a second."""
        _count(principal, nbytes)
        name = principal if isinstance(principal, str) else principal.name
        if self._config.principal_bytes_per_second:
            with self._guard:
                self._buckets(name, self._clock())[1].take(nbytes)

    def _enter(self, name: str, nbytes: int, wait_seconds: float) -> None:
        deadline = self._clock() + wait_seconds
        with self._guard:
            while True:
                now = self._clock()
                wait = self._rate_wait(name, now)
                if wait:
                    if now >= deadline or now + wait > deadline:
                        raise self._too_fast(name, wait)
                elif self._has_room(name, nbytes):
                    break
                elif now >= deadline:
                    raise self._too_much(name, nbytes)
                else:
                    wait = deadline - now
                self._wait(wait)
            self._take(name, nbytes, now)

    def _take(self, name: str, nbytes: int, now: float) -> None:
        self._bytes[name] = self._bytes.get(name, 0) + nbytes
        self._bytes_all += nbytes
        if self.limits_rates:
            requests, size = self._buckets(name, now)
            requests.take(1)
            size.take(nbytes)

    def _leave(self, name: str, nbytes: int) -> None:
        with self._guard:
            self._bytes_all -= nbytes
            rest = self._bytes.pop(name, 0) - nbytes
            if rest > 0:
                self._bytes[name] = rest
            if self._waiting:
                self._changed.notify_all()

    def _wait(self, seconds: float) -> None:
        """Wait until bytes are released; the guard is held before and after."""
        self._waiting += 1
        try:
            self._changed.wait(seconds)
        finally:
            self._waiting -= 1

    def _has_room(self, name: str, nbytes: int, little: int = 0) -> bool:
        """Return whether so many bytes fit; they do while others hold but a `little`."""
        own, config = self._bytes.get(name, 0), self._config
        return (own <= little or own + nbytes <= config.principal_inflight_bytes_max) and (
            self._bytes_all <= little or self._bytes_all + nbytes <= config.inflight_bytes_max
        )

    def _rate_wait(self, name: str, now: float) -> float:
        """Return how many seconds a principal has to wait for its rates."""
        if not self.limits_rates:
            return 0.0
        return max(bucket.wait(now) for bucket in self._buckets(name, now))

    def _buckets(self, name: str, now: float) -> tuple[_Bucket, _Bucket]:
        rates = self._rates.get(name)
        if rates is None:
            if len(self._rates) >= _BUCKETS_MAX:
                self._forget_idle(now)
            rates = self._rates[name] = (
                _Bucket(self._config.principal_requests_per_second, now),
                _Bucket(self._config.principal_bytes_per_second, now),
            )
        return rates

    def _forget_idle(self, now: float) -> None:
        busy = {
            name: pair
            for name, pair in self._rates.items()
            if not all(bucket.full(now) for bucket in pair)
        }
        self._rates = busy

    def _too_fast(self, name: str, wait: float) -> QuotaExceededError:
        return QuotaExceededError(
            "the principal exceeds its rate",
            principal=name,
            requests_per_second=self._config.principal_requests_per_second or "any",
            bytes_per_second=self._config.principal_bytes_per_second or "any",
            wait_ms=max(1, math.ceil(wait * 1000 - _ROUNDING)),
        )

    def _too_much(self, name: str, nbytes: int) -> QuotaExceededError:
        return QuotaExceededError(
            "too many bytes are in flight",
            principal=name,
            bytes=nbytes,
            principal_inflight_bytes=self._bytes.get(name, 0),
            inflight_bytes=self._bytes_all,
            wait_ms=BUSY_WAIT_MS,
        )


def _count(principal: object, nbytes: int) -> None:
    """Count bytes of a call for the access log."""
    facts = getattr(principal, "facts", None)
    if facts is not None:
        facts.nbytes += nbytes
