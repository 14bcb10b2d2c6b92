"""A server that is there and does not answer: calls end in time, with a typed error."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakebed.client.connection as connection_of
from lakebed.client.config import ClientConfig
from lakebed.errors import ServerUnavailableError, UnknownOutcomeError
from tests.serve.support import ServerProcess
from tests.waiting import until

CALLS: dict[str, Callable[[Any], object]] = {
    "topics": lambda log: log.topics(),
    "read": lambda log: log.read("a"),
    "read, waiting": lambda log: log.read("a", offset="latest", wait_ms=100),
    "create_topic": lambda log: log.create_topic("b"),
    "record": lambda log: log.table("a").get(b"k"),
}


def _is_stopped(pid: int) -> bool:
    """Return True if no thread of a process runs: the signal reaches them one by one."""
    states = [stat.read_text().rpartition(")")[2].split()[0] for stat in _stats(pid)]
    return set(states) == {"T"}


def _stats(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").glob("*/stat"))


def test_calls_on_a_frozen_server_end_before_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess(tmp_path / "log") as server:
        with server.open() as log:
            log.create_topic("a", 1)
            log.append("a", b"first", key=b"k")
        # Without the limit that follows from retry_ms, each call would take an hour.
        monkeypatch.setattr(connection_of, "_QUICK_SECONDS", 3600.0)
        with server.open(retry_ms=1000) as log:
            consumer = log.consumer(partitions=[("a", 0)])
            consumer.poll(60_000)
            server.send(signal.SIGSTOP)
            until(lambda: _is_stopped(server.pid), "the server is stopped")
            try:
                for call in CALLS.values():
                    with pytest.raises((ServerUnavailableError, UnknownOutcomeError)):
                        call(log)
                with pytest.raises(ServerUnavailableError):
                    consumer.poll(100)
            finally:
                server.send(signal.SIGCONT)
            assert log.read("a").num_rows == 1


@pytest.mark.parametrize(
    ("retry_ms", "wait_ms", "seconds"),
    [(0, 0, 5), (3000, 1000, 6), (20_000, 0, 20), (30_000, 10_000, 40), (3_600_000, 10_000, 60)],
)
def test_a_call_is_given_retry_ms_and_what_the_server_waits_up_to_a_minute(
    retry_ms: int, wait_ms: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ClientConfig(retry_ms=retry_ms)
    connection = connection_of.Connection("lakebed://127.0.0.1:1", config)
    given: list[float] = []
    monkeypatch.setattr(connection, "_within", given.append)
    monkeypatch.setattr("lakebed.client.connection.time.monotonic", lambda: 1000.0)
    connection._in_time(1000.0, wait_ms)
    assert given == [seconds]
