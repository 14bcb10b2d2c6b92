"""Ctrl-C at any point of a call leaves a log that goes on, and reopens to the same state."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lakebed
from lakebed import Log
from lakebed.errors import LakebedError
from lakebed.wal.group_commit import GroupCommit
from lakebed.wal.request import Request
from tests.engine.support import everything, inner, is_gathering, state_of
from tests.waiting import until


@contextmanager
def struck(seconds: float) -> Iterator[None]:
    """Have the main thread struck after so many seconds, as by Ctrl-C."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture(autouse=True)
def interrupting() -> Iterator[None]:
    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    yield
    signal.signal(signal.SIGALRM, before)


def strike_at_random(log: Log, call: Callable[[int], object], turns: int) -> set[int]:
    """Make calls that are struck somewhere; return those that returned."""
    generator = random.Random(5)
    returned: set[int] = set()
    number = 0
    for _ in range(turns):
        try:
            with struck(generator.uniform(0.00002, 0.002)):
                for _ in range(300):  # Python may swallow a strike, in a finaliser say
                    call(number)
                    returned.add(number)
                    number += 1
        except KeyboardInterrupt:
            number += 1
    return returned


CALLS: dict[str, Callable[[Log], Callable[[int], object]]] = {
    "append": lambda log: lambda n: log.append("t", b"%d" % n),
    # Not waiting for the future, since Python's own futures do not bear a signal there.
    "async": lambda log: lambda n: log.append_async("t", b"%d" % n),
    "batch": lambda log: lambda n: log.append_batch("t", [b"%d" % n]),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", CALLS)
def test_a_writer_struck_anywhere_leaves_a_log_that_goes_on(tmp_path: Path, kind: str) -> None:
    """What returned is there once, the rest at most once, and nobody else waits in vain."""
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 2)
        log.create_topic("others")
        stop = threading.Event()
        others = [0, 0]

        def work(thread: int) -> None:
            while not stop.is_set():
                try:
                    log.append("others", b"%d" % thread)
                    others[thread] += 1
                except LakebedError as error:
                    assert "interrupted" in str(error)

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(2)]
        for thread in threads:
            thread.start()
        returned = strike_at_random(log, CALLS[kind](log), 150)
        stop.set()
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive()
        log.append("t", b"-1")  # returns after everything before it is settled
        held = [int(value) for value in everything(log, "t")]
        assert len(held) == len(set(held))
        assert returned <= set(held)
        assert log.offsets("others")[0][1] >= sum(others) > 0
        before = state_of(log)
    with lakebed.open(tmp_path) as log:
        assert state_of(log) == before
        assert [int(value) for value in everything(log, "t")] == held


class StrokeError(Exception):
    """Strikes like a signal, at a chosen point."""


@pytest.mark.parametrize("point", ["join", "ride"])
def test_a_caller_struck_before_it_waits_does_not_keep_others_from_being_woken(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        method = {"join": "call", "ride": "ride"}[point]
        real = getattr(GroupCommit, method)
        victim: list[threading.Thread] = []

        def strike(commits: GroupCommit, request: Request) -> None:
            if threading.current_thread() in victim:
                raise StrokeError
            real(commits, request)

        monkeypatch.setattr(GroupCommit, method, strike)
        outcomes: list[object] = []

        def work(number: int) -> None:
            try:
                outcomes.append(log.append("t", b"%d" % number))
            except (StrokeError, LakebedError) as error:
                outcomes.append(error)

        with inner(log).parts.wal.commits._mutex:  # nobody commits while they gather
            threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(8)]
            victim.append(threads[0 if point == "join" else 1])
            for thread in threads[:2]:
                thread.start()
                until(lambda: is_gathering(log) or bool(outcomes))
            for thread in threads[2:]:
                thread.start()
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive()
        assert sum(isinstance(each, StrokeError) for each in outcomes) <= 1
        assert log.append("t", b"after").offset >= 0


def test_closing_can_be_repeated_after_it_was_interrupted(tmp_path: Path) -> None:
    log = lakebed.open(tmp_path / "log")
    stop = inner(log).parts.maintenance.stop

    def interrupted() -> None:
        inner(log).parts.maintenance.stop = stop  # type: ignore[method-assign]
        raise KeyboardInterrupt

    inner(log).parts.maintenance.stop = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        log.close()
    log.close()
    lakebed.open(tmp_path / "log").close()
