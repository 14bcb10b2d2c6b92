"""Programs that take seconds to start, started once for all tests that use them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.foreign.postgres import PostgresServer, PostgresUnavailableError, postgres


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server to stop and kill at will, or a skipped test where there is none."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(postgres())
        except PostgresUnavailableError as error:
            pytest.skip(f"PostgreSQL cannot be started: {error}")
        yield server
