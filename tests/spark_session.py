"""One Spark session for all tests of a process: it takes seconds to start."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session on two threads that tries a task twice; skip without Java."""
    import lakebed.spark

    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    handler = signal.getsignal(signal.SIGINT)
    session = lakebed.spark.session(master="local[2,2]", name="lakebed-tests", conf=_SETTINGS)
    signal.signal(signal.SIGINT, handler)  # Spark handles Ctrl-C, which is pytest's here
    yield session
    session.stop()
