"""Which error codes Kafka clients receive for errors of the log."""

from __future__ import annotations

from lakebed.errors import NotOwnerError
from lakebed.kafka.codes import NOT_LEADER, code_of


def test_a_server_that_does_not_own_the_log_is_not_the_leader() -> None:
    """Clients look for the leader then; an unknown error would end their writes."""
    assert code_of(NotOwnerError("another process owns the log")) == NOT_LEADER
