"""How often gRPC is asked whether a client has cancelled its call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lakebed import Log
from lakebed.engine.log import EmbeddedLog
from lakebed.serve.cancelled import Cancellations
from lakebed.serve.gets import Gets, Ticket
from lakebed.wire.protocol import pack


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class _Call:
    """A call of gRPC that takes a while to say that it was cancelled."""

    def __init__(self, clock: _Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    def is_cancelled(self) -> bool:
        """Take the time, and answer."""
        self._clock.now += self._seconds
        return True


def test_asking_takes_a_small_share_of_the_time() -> None:
    """However many calls ask: what holds up every thread is not repeated at once."""
    clock = _Clock()
    cancellations = Cancellations(clock)
    first, other = _Call(clock, 0.05), _Call(clock, 0.001)
    assert cancellations.is_cancelled(first)
    assert not cancellations.is_cancelled(other)
    clock.now += 0.9
    assert not cancellations.is_cancelled(other)
    clock.now += 0.2
    assert cancellations.is_cancelled(other)
    clock.now += 0.03
    assert cancellations.is_cancelled(first)


def _counted(answers: list[bool]) -> Callable[[], bool]:
    def gone() -> bool:
        answers.append(len(answers) == 1)
        return answers[-1]

    return gone


def test_a_stream_asks_only_when_it_waited_in_vain(tmp_path: Path) -> None:
    """While there are records, sending them shows whether the client is there."""
    with Log.open(tmp_path / "log") as log:
        assert isinstance(log, EmbeddedLog)
        log.create_topic("a")
        log.append("a", b"1")
        bounds = {"max_records": 10, "max_bytes": 1000}
        latest = {"wait_ms": 30_000, "offset": "latest", **bounds}
        for call, wait in (("follow", {}), ("read", latest)):
            asked: list[bool] = []
            given = {"call": call, "topic": "a", "partition": 0, "offset": 0, **wait}
            answer = Gets(log).stream(Ticket(pack(given)), _counted(asked))
            if isinstance(answer, tuple):
                assert next(answer[1]).num_rows == 1
                assert asked == []
                assert list(answer[1]) == []
            assert asked == [False, True]
