"""Which producers have been idle for so long that they may be forgotten.

A producer's state has the wall clock's time of its last write, and the command that forgets
producers names a time. So the state depends on the log alone, and replay gives the same. But a wall
clock may jump: a producer that wrote while it was years behind looks idle once it is right. Those
seen to write since the log was opened are therefore kept until the monotonic clock agrees.
"""

from __future__ import annotations

from lakebed.engine.core import Core
from lakebed.state.values import ProducerState


class Idleness:
    """Watches producers. One thread at a time."""

    def __init__(self, core: Core, expiry_ms: int) -> None:
        self._core = core
        self._expiry_us = expiry_ms * 1000
        self._last_look = core.clock.monotonic()
        self._last_seen = self._producers_by_id()
        self._active_at: dict[int, float] = {}
        """When a producer wrote, by the monotonic clock, as far as is known."""

    def expiry_us(self) -> int | None:
        """Return the time before which producers are forgotten; None if none is to be."""
        self._look()
        state = self._core.state
        producers = list(state.producers.values())
        before_us = self._core.clock.time_us() - self._expiry_us
        active = (producer.seen_us for producer in producers if producer.id in self._active_at)
        before_us = min(before_us, min(active, default=before_us))
        for producer in producers:
            if producer.seen_us < before_us and producer.id not in state.transactions:
                return before_us
        return None

    def _look(self) -> None:
        """Note which producers have written since the last look; forget those idle for long."""
        now, seen = self._core.clock.monotonic(), self._producers_by_id()
        for producer_id, producer in seen.items():
            if self._last_seen.get(producer_id) != producer:
                self._active_at[producer_id] = self._last_write(producer, now)
        earliest = now - self._expiry_us / 1_000_000
        self._active_at = {
            producer_id: written_at
            for producer_id, written_at in self._active_at.items()
            if producer_id in seen and written_at > earliest
        }
        self._last_look, self._last_seen = now, seen

    def _last_write(self, producer: ProducerState, now: float) -> float:
        """Return when a producer wrote that has written since the last look.

        A wall clock that says anything else than since then has jumped: then it may be just now.
        """
        seconds = (self._core.clock.time_us() - producer.seen_us) / 1_000_000
        return now - seconds if 0 <= seconds <= now - self._last_look + 1 else now

    def _producers_by_id(self) -> dict[int, ProducerState]:
        return {producer.id: producer for producer in list(self._core.state.producers.values())}
