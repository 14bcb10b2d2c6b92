"""The engine's own tests, on a log that is served: the same calls, through a client.

Each test runs as it stands in tests/engine, but every log that it opens is served from this process
and reached by its URL; closing the client stops the server, and opening the folder again starts
another one. Those that cannot run this way are in `EMBEDDED_ONLY`, each with the reason.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Final

import pytest

import lakebed
from lakebed import Log, ServeConfig
from lakebed.client.log import RemoteLog
from lakebed.serve.server import Server
from tests.engine import (
    support,
    test_access,
    test_bad_input,
    test_consumers,
    test_producers,
    test_reading,
    test_review,
    test_settings,
    test_table,
    test_topics,
    test_transactions,
    test_writing,
)

MODULES: Final = (
    test_access,
    test_bad_input,
    test_consumers,
    test_producers,
    test_reading,
    test_review,
    test_settings,
    test_table,
    test_topics,
    test_transactions,
    test_writing,
)

EMBEDDED_ONLY: Final[dict[str, str]] = {}
"""Tests that say something about the process that has the log, and why each of them does."""

_CONFIG: Final = ServeConfig(port=0, http_port=-1, stop_timeout_ms=5_000, audit=False)


class ServedLog(RemoteLog):
    """A client with a server of its own, which stops when the client is closed."""

    def __init__(self, log: Log) -> None:
        self.served = log
        self._server = Server(log, _CONFIG).start()
        super().__init__(self._server.url)

    def close(self) -> None:
        """Close the client, then the server, which closes the log."""
        super().close()
        self._server.stop()


@pytest.fixture(autouse=True)
def _over_the_wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have every log served that a test opens."""
    opened: list[ServedLog] = []
    embedded = lakebed.open

    def serve(log: Log) -> Log:
        opened.append(ServedLog(log))
        return opened[-1]

    def serve_opened(*args: Any, **kwargs: Any) -> Log:
        return serve(embedded(*args, **kwargs))

    monkeypatch.setattr(support, "served", serve)
    monkeypatch.setattr(lakebed, "open", serve_opened)
    yield
    for log in opened:
        log.close()


def _tests(module: types.ModuleType) -> dict[str, Any]:
    """Give the tests of a module."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if name.startswith("test_") and getattr(thing, "__module__", "") == module.__name__
    }


def _fixtures(module: types.ModuleType) -> dict[str, Any]:
    """Give the fixtures of a module."""
    kind = type(_over_the_wire)
    return {name: thing for name, thing in vars(module).items() if isinstance(thing, kind)}


for _module in MODULES:
    _title = _module.__name__.rpartition(".test_")[2].title().replace("_", "")
    _members = {
        name: staticmethod(thing)
        for name, thing in _tests(_module).items()
        if name not in EMBEDDED_ONLY
    }
    globals()[f"Test{_title}"] = type(f"Test{_title}", (), _members)
    for _name, _fixture in _fixtures(_module).items():
        assert _name not in globals(), f"two fixtures are named {_name}"
        globals()[_name] = _fixture


def test_every_exclusion_is_of_a_test_that_exists() -> None:
    assert set(EMBEDDED_ONLY) <= {name for module in MODULES for name in _tests(module)}
