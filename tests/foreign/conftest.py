"""Programs that take seconds to start, started once for all tests that use them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.foreign.postgres import PostgresServer, PostgresUnavailableError, postgres
from tests.foreign.readers import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session, or a skipped test where there is no Java."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    session = spark_session()
    yield session
    session.stop()


@pytest.fixture
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server to stop and kill at will, or a skipped test where there is none."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(postgres())
        except PostgresUnavailableError as error:
            pytest.skip(f"PostgreSQL cannot be started: {error}")
        yield server
