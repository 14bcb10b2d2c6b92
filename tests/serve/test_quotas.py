"""Quotas: how much is on its way, how much a second, and how many streams."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lakebed import ServeConfig
from lakebed.errors import QuotaExceededError
from lakebed.serve.guard import Principal
from lakebed.serve.quotas import Quotas
from tests.engine.support import in_threads
from tests.serve.inside import callers_waiting
from tests.waiting import until

KIB = 1024
SMALL: dict[str, Any] = {"inflight_bytes_max": 100 * KIB, "principal_inflight_bytes_max": 64 * KIB}


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def quotas(time: Time | None = None, **settings: Any) -> Quotas:
    config = ServeConfig(**settings)
    return Quotas(config) if time is None else Quotas(config, time)


def refused(made: Quotas, name: str, nbytes: int, **more: Any) -> QuotaExceededError:
    with pytest.raises(QuotaExceededError) as caught, made.admit(name, nbytes, **more):
        pass
    assert caught.value.retriable
    assert int(str(caught.value.facts["wait_ms"])) > 0
    return caught.value


def passes(made: Quotas, name: str, nbytes: int = 1) -> bool:
    try:
        with made.admit(name, nbytes):
            return True
    except QuotaExceededError:
        return False


def test_bytes_on_their_way_are_limited_for_each_principal_and_in_all() -> None:
    made = quotas(**SMALL)
    with made.admit("a", 60 * KIB):
        assert refused(made, "a", 5 * KIB).facts["principal_inflight_bytes"] == 60 * KIB
        with made.admit("a", 4 * KIB), made.admit("b", 36 * KIB):
            assert made.inflight_bytes == 100 * KIB
            assert refused(made, "b", 1).facts["inflight_bytes"] == 100 * KIB
            assert refused(made, "c", 1)
        assert passes(made, "b", 30 * KIB)
    assert made.inflight_bytes == 0
    assert made._bytes == {}


def test_a_request_larger_than_a_limit_passes_alone() -> None:
    made = quotas(**SMALL)
    with made.admit("a", 500 * KIB):
        assert refused(made, "a", 1).facts["inflight_bytes"] == 500 * KIB
        assert refused(made, "b", 1).facts["inflight_bytes"] == 500 * KIB
    with made.admit("b", 1):
        assert refused(made, "a", 500 * KIB).facts["inflight_bytes"] == 1
    assert made.inflight_bytes == 0


def test_an_answer_is_held_beside_tickets_and_counts_until_it_is_sent() -> None:
    made = quotas(principal_inflight_bytes_max=2_000_000, inflight_bytes_max=5_000_000)
    with made.admit("ann", 100), made.hold("ann", 9_000_000):
        assert made.inflight_bytes == 9_000_100
        for name in ("ann", "bob"):
            with pytest.raises(QuotaExceededError, match="too many bytes"), made.hold(name, 1):
                pass
        refused(made, "bob", 1)
    assert made.inflight_bytes == 0
    with made.admit("ann", 1_900_000):
        with made.hold("ann", 100_000), made.hold("bob", 2_000_000):
            assert made.inflight_bytes == 4_000_000
        with pytest.raises(QuotaExceededError), made.hold("ann", 100_001):
            pass


def test_an_answer_waits_for_room() -> None:
    made = quotas(principal_inflight_bytes_max=2_000_000)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        stack.enter_context(made.admit("ann", 1_900_000))
        held = contextlib.ExitStack()
        waiting = pool.submit(lambda: held.enter_context(made.hold("ann", 1_000_000, 60.0)))
        stack.close()
        waiting.result(600)
        assert made.inflight_bytes == 1_000_000
        held.close()
    assert made.inflight_bytes == 0


def test_an_answer_costs_nothing_but_what_is_sent_of_it() -> None:
    made = quotas(principal_requests_per_second=1, principal_bytes_per_second=10)
    with made.hold("ann", 1000):
        pass
    assert passes(made, "ann", 10)


def test_what_failed_is_given_back_once() -> None:
    made = quotas(**SMALL)
    for _ in range(3):
        with contextlib.suppress(ZeroDivisionError), made.admit("a", 64 * KIB):
            raise ZeroDivisionError
    assert made.inflight_bytes == 0
    with contextlib.suppress(ZeroDivisionError), made.stream("a"):
        raise ZeroDivisionError
    assert made.streams == 0


def test_a_request_without_bytes_always_finds_room() -> None:
    made = quotas(**SMALL)
    with made.admit("a", 64 * KIB), made.admit("a", 0):
        pass
    with made.admit("a", 0), made.admit("a", 0):
        pass
    assert made._bytes == {}


def test_whoever_may_wait_gets_room_when_there_is_some() -> None:
    made = quotas(**SMALL)
    done: list[str] = []

    def waiting() -> None:
        with made.admit("a", 60 * KIB, wait_seconds=60):
            done.append("second")

    with made.admit("a", 60 * KIB):
        thread = threading.Thread(target=waiting, daemon=True)
        thread.start()
        until(lambda: callers_waiting(made) > 0)
        done.append("first")
    thread.join(600)
    assert done == ["first", "second"]
    assert made.inflight_bytes == 0


def test_whoever_waited_in_vain_is_refused() -> None:
    made = quotas(**SMALL)
    with made.admit("a", 60 * KIB):
        refused(made, "a", 60 * KIB, wait_seconds=0.01)


def test_requests_of_a_second_are_limited() -> None:
    time = Time()
    made = quotas(time, principal_requests_per_second=5)
    assert [passes(made, "a") for _ in range(7)] == [True] * 5 + [False] * 2
    assert passes(made, "b")
    wait_ms = int(str(refused(made, "a", 1).facts["wait_ms"]))
    assert wait_ms == 200
    time.now += wait_ms / 1000
    assert passes(made, "a")
    assert not passes(made, "a")
    time.now += 3600
    assert [passes(made, "a") for _ in range(7)] == [True] * 5 + [False] * 2


def test_bytes_of_a_second_are_limited_and_debts_are_paid() -> None:
    time = Time()
    made = quotas(time, principal_bytes_per_second=1000)
    assert passes(made, "a", 3001)
    assert int(str(refused(made, "a", 1).facts["wait_ms"])) == 2002
    time.now += 2.0
    assert not passes(made, "a")
    time.now += 0.002
    assert passes(made, "a")


def test_what_a_principal_is_sent_counts_too() -> None:
    time = Time()
    made = quotas(time, principal_bytes_per_second=1000)
    made.charge("a", 5000)
    assert int(str(refused(made, "a", 1).facts["wait_ms"])) == 4001
    quotas(time).charge("a", 5000)


def test_a_refused_request_costs_nothing() -> None:
    time = Time()
    made = quotas(time, principal_requests_per_second=5, **SMALL)
    with made.admit("a", 60 * KIB):
        for _ in range(50):
            refused(made, "a", 60 * KIB)
    assert [passes(made, "a") for _ in range(5)] == [True] * 4 + [False]


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    time = Time()
    made = quotas(time, principal_requests_per_second=1)
    assert passes(made, "a")
    for now in (50.0, 100.5, 99.0, 100.9):
        time.now = now
        assert not passes(made, "a")


def test_whoever_may_wait_for_its_rate_does() -> None:
    made = quotas(principal_requests_per_second=50)
    for _ in range(60):
        with made.admit("a", 1, wait_seconds=30):
            pass
    assert made.inflight_bytes == 0


def test_without_rates_nothing_is_remembered() -> None:
    made = quotas()
    for number in range(100):
        assert passes(made, f"p{number}", KIB)
    assert made._rates == {}


def test_only_those_who_owe_something_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.serve.quotas._BUCKETS_MAX", 10)
    time = Time()
    made = quotas(time, principal_requests_per_second=5)
    for number in range(9):
        assert passes(made, f"p{number}")
    time.now += 10
    assert [passes(made, "busy") for _ in range(6)] == [True] * 5 + [False]
    assert passes(made, "new")
    assert set(made._rates) == {"busy", "new"}
    assert not passes(made, "busy")


def test_streams_are_limited_in_all() -> None:
    made = quotas(connections_max=2, admin_streams_reserved=0)
    with made.stream("a"), made.stream("b"):
        assert made.streams == 2
        with pytest.raises(QuotaExceededError) as caught, made.stream("c"):
            pass
        assert caught.value.facts["connections_max"] == 2
    with made.stream("c"):
        assert made.streams == 1


def test_a_principal_may_be_given_as_it_is() -> None:
    made = quotas(**SMALL)
    principal = Principal("a", "", "peer")
    with made.stream(principal), made.admit(principal, 64 * KIB):
        refused(made, "a", 1)
        made.charge(principal, 1)


def test_many_threads_never_exceed_the_limit() -> None:
    made = quotas(**SMALL)
    most = [0]

    def work(number: int) -> None:
        for _ in range(100):
            with made.admit(f"p{number % 2}", 20 * KIB, wait_seconds=60):
                most[0] = max(most[0], made.inflight_bytes)

    assert in_threads(8, work) == [None] * 8
    assert most[0] <= 100 * KIB
    assert (made.inflight_bytes, made._bytes) == (0, {})
