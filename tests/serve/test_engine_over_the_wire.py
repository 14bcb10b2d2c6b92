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

EMBEDDED_ONLY: Final[dict[str, str]] = {
    # bad_input
    "test_a_folder_has_one_owner_at_a_time": "a folder that is served is connected to",
    # review
    "test_a_callback_that_would_wait_for_its_own_commit_is_refused": "runs in the WAL's thread",
    "test_a_checkpoint_that_cannot_stage_a_transaction_leaves_no_segments": "replaces a method",
    "test_a_commit_that_was_cut_short_has_an_unknown_outcome": "Ctrl-C in the WAL's writer",
    "test_a_handover_whose_entry_was_interrupted_is_written_by_the_next_heartbeat": (
        "Ctrl-C in the WAL's writer"
    ),
    "test_an_entry_that_flushes_nothing_does_not_use_up_the_budget_for_good": (
        "hands the WAL an entry that no client could send"
    ),
    "test_closing_can_be_repeated_after_it_was_interrupted": "Ctrl-C in maintenance",
    "test_readers_wait_for_changes_that_are_half_carried_out": "changes the state by hand",
    # transactions
    "test_a_small_transaction_commits_with_one_entry": "a client sends records, then the commit",
    "test_a_write_that_was_refused_refuses_the_commit_too": "changes the state by hand",
    # writing
    "test_a_gathered_entry_ends_at_its_limit": "sets a limit of the engine's own gathering",
}
"""Tests that say something about the process that has the log, and why each of them does."""

_CONFIG: Final = ServeConfig(port=0, http_port=-1, stop_timeout_ms=5_000, audit=False)


class ServedLog(RemoteLog):
    """A client with a server of its own, which stops when the client is closed."""

    def __init__(self, log: Log) -> None:
        self.served = log
        self._server = Server(log, _CONFIG).start()
        super().__init__(self._server.url)
        self._core.clock = log._core.clock

    def close(self) -> None:
        """Close the client, the log and its server.

        The log goes first, so that there is no last checkpoint, as there is none of an embedded
        log: what is opened again has been replayed.
        """
        super().close()
        self.served.close()
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
