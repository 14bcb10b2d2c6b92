"""Memory that refused messages took goes back to the operating system."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl
import pytest

from lakebed.engine.idle_memory import IdleMemory
from lakebed.host import ManualClock
from tests.engine.support import inner, quiet
from tests.serve.support import ServerProcess, check_serves
from tests.waiting import until

_MIB = 1 << 20


def _send_too_much(server: ServerProcess) -> None:
    message = fl.Action("hello", bytes(200 * _MIB))
    with (
        fl.connect(f"grpc://127.0.0.1:{server.port}") as client,
        pytest.raises((fl.FlightServerError, fl.FlightUnavailableError)),  # refused, or cut off
    ):
        list(client.do_action(message))


def test_memory_of_a_refused_message_is_returned(tmp_path: Path) -> None:
    """The server's memory falls to about what it was, without a restart."""
    with ServerProcess(tmp_path / "log") as server:
        check_serves(server)
        before = server.resident_bytes
        for _ in range(10):
            _send_too_much(server)
            if server.resident_bytes > before + 150 * _MIB:
                break
        until(lambda: server.resident_bytes < before + 80 * _MIB, "memory is returned")
        check_serves(server)


def test_memory_is_returned_when_the_log_is_idle_and_seldom_when_it_is_not() -> None:
    """Ten seconds without an entry, or a minute with entries."""
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t")
        memory = IdleMemory(inner(log).parts.core)
        for _ in range(11):
            clock.advance(5)
            log.append("t", b"x")
            memory.look()
        assert memory.releases == 0
        clock.advance(5)
        log.append("t", b"x")
        memory.look()
        assert memory.releases == 1
        clock.advance(10)
        memory.look()
        assert memory.releases == 2
        memory.look()
        assert memory.releases == 2
