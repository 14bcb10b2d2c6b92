"""A standby: when it takes a log over, and when it does not."""

from __future__ import annotations

from pathlib import Path

from lakebed.engine.standby import Standby
from lakebed.host import SystemClock
from tests.engine.shipped import Machines


class SlowClock(SystemClock):
    """A clock of a machine on which each look at the lease takes half of the lease."""

    def __init__(self, seconds: float) -> None:
        self._now = 100.0
        self._seconds = seconds
        self._looks = 0

    def monotonic(self) -> float:
        """Return the time, after so many seconds more."""
        self._looks += 1
        assert self._looks < 1000, "the standby never takes over"
        self._now += self._seconds
        return self._now


def test_a_slow_standby_takes_over_later_but_it_does(tmp_path: Path) -> None:
    """A busy machine may stall for a part of the lease again and again."""
    machines = Machines(tmp_path)
    with machines.open("a") as log:
        log.create_topic("orders")
        assert log.parts.shipping is not None
        log.parts.shipping.lease.end()  # it renews no more, as if it were killed
        standby = Standby(tmp_path / "b", machines.config(), clock=SlowClock(0.3))
        watch = standby.follow()
        assert watch is not None
        assert watch.lease is not None
        assert watch.lease.owner.endswith("/a")
