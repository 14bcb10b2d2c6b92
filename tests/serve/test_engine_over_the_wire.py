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
    test_cleanup,
    test_compaction,
    test_consumers,
    test_derived,
    test_producers,
    test_reading,
    test_settings,
    test_table,
    test_times,
    test_together,
    test_topics,
    test_transactions,
    test_writing,
)
from tests.engine.support import inner

MODULES: Final = (
    test_access,
    test_bad_input,
    test_cleanup,
    test_compaction,
    test_consumers,
    test_derived,
    test_producers,
    test_reading,
    test_settings,
    test_table,
    test_times,
    test_together,
    test_topics,
    test_transactions,
    test_writing,
)

_SHUT_OUT: Final = "once the log knows somebody, a client without a token is refused"
_NO_LOG: Final = "no log is opened"
_AUDIT: Final = "a server writes the audit, no client does"

EMBEDDED_ONLY: Final[dict[str, str]] = {
    # writing
    "test_a_schema_that_grows_while_records_wait_harms_none_of_them": "waits for the queue",
    # access
    "test_a_change_counts_at_once": _SHUT_OUT,
    "test_the_first_rule_or_grant_closes_an_open_log_only_with_an_administrator": _SHUT_OUT,
    "test_a_log_is_not_opened_to_everybody_without_saying_so": _SHUT_OUT,
    "test_a_revoked_token_is_valid_no_more_and_the_log_stays_closed": _SHUT_OUT,
    "test_a_token_expires_on_time": _SHUT_OUT,
    "test_a_token_of_another_log_does_not_fit_even_under_the_same_id": "changes the state by hand",
    "test_a_token_tells_its_principal_and_looks_as_described": _SHUT_OUT,
    "test_an_expired_token_of_an_administrator_is_none": _SHUT_OUT,
    "test_a_secret_is_shown_to_whoever_asks_and_by_nothing_else": _SHUT_OUT,
    "test_many_threads_may_ask_and_change": _SHUT_OUT,
    "test_nobody_locks_everybody_out_without_saying_so": _SHUT_OUT,
    "test_old_records_of_the_audit_are_retained_away": _AUDIT,
    "test_roles_of_a_token_are_given_or_nothing_is": _SHUT_OUT,
    "test_rules_and_grants_are_listed_as_they_were_made": _SHUT_OUT,
    "test_the_audit_goes_on_after_a_restart_and_keeps_its_settings": _AUDIT,
    "test_the_audit_is_a_topic_that_is_made_when_it_is_needed": _AUDIT,
    "test_the_rule_that_makes_administrators_is_guarded_too": _SHUT_OUT,
    "test_tokens_rules_and_grants_survive_by_snapshot_and_by_replay": _SHUT_OUT,
    "test_two_threads_that_write_the_first_record_make_one_topic": _AUDIT,
    "test_two_tokens_are_never_the_same": _SHUT_OUT,
    # bad_input
    "test_a_folder_has_one_owner_at_a_time": "a folder that is served is connected to",
    "test_a_folder_of_something_else_is_refused": _NO_LOG,
    "test_a_target_that_is_no_folder_is_refused": _NO_LOG,
    # compaction
    "test_a_kill_at_any_step_leaves_the_records_before_or_after": "a process of its own dies",
    "test_old_files_stay_for_the_grace_period_of_the_tables": "opens files and table itself",
    "test_a_callback_that_would_wait_for_its_own_commit_is_refused": "runs in the WAL's thread",
    "test_a_handover_whose_entry_was_interrupted_is_written_by_the_next_heartbeat": (
        "Ctrl-C in the WAL's writer"
    ),
    "test_an_entry_that_flushes_nothing_does_not_use_up_the_budget_for_good": (
        "hands the WAL an entry that no client could send"
    ),
    "test_readers_wait_for_changes_that_are_half_carried_out": "changes the state by hand",
    # cleanup
    "test_metrics_tell_which_topic_fails": "asks the server's own meters",
    "test_a_topic_that_is_deleted_before_it_is_trimmed_is_no_failure": "changes a part by hand",
    # settings
    "test_a_log_takes_settings_of_its_own_kind_only": _NO_LOG,
    "test_a_setting_out_of_bounds_is_refused": _NO_LOG,
    "test_each_setting_has_its_test": _NO_LOG,
    # table
    "test_a_purge_or_the_end_of_a_topic_ends_a_scan_in_an_orderly_way": (
        "a server is ahead of its client: a short scan has been sent when the topic goes"
    ),
    "test_what_merging_moves_during_a_scan_comes_once_and_what_retention_removes_is_left_out": (
        "a server is ahead of its client: a short scan has been sent before the retention"
    ),
    # together
    "test_what_was_prepared_outlives_a_kill": _NO_LOG,
    "test_a_restored_log_remembers_numbers_and_fences_what_was_prepared": _NO_LOG,
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
        self._server = Server(inner(log), _CONFIG).start()
        super().__init__(self._server.url)
        self._topics.clock = inner(log).parts.core.clock

    def close(self) -> None:
        """Close the client, the log and its server.

        The log goes first, so that there is no last checkpoint, as there is none of an embedded
        log: what is opened again has been replayed.
        """
        super().close()
        self.served.close()
        self._server.stop()


@pytest.fixture
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
    assert opened, "a test that serves no log says nothing here"


def _tests(module: types.ModuleType) -> dict[str, Any]:
    """Return the tests of a module."""
    return {
        name: thing
        for name, thing in vars(module).items()
        if name.startswith("test_") and getattr(thing, "__module__", "") == module.__name__
    }


def _fixtures(module: types.ModuleType) -> dict[str, Any]:
    """Return the fixtures of a module."""
    kind = type(_over_the_wire)
    return {name: thing for name, thing in vars(module).items() if isinstance(thing, kind)}


for _module in MODULES:
    _title = _module.__name__.rpartition(".test_")[2].title().replace("_", "")
    _members = {
        name: staticmethod(thing)
        for name, thing in _tests(_module).items()
        if name not in EMBEDDED_ONLY
    }
    globals()[f"Test{_title}"] = pytest.mark.usefixtures("_over_the_wire")(
        type(f"Test{_title}", (), _members)
    )
    for _name, _fixture in _fixtures(_module).items():
        assert _name not in globals(), f"two fixtures are named {_name}"
        globals()[_name] = _fixture


def test_every_exclusion_is_of_a_test_that_exists() -> None:
    assert set(EMBEDDED_ONLY) <= {name for module in MODULES for name in _tests(module)}
