"""One Spark session for all tests of a process: it takes seconds to start."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lakebed
import lakebed.spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TEST_SECONDS = 1200
"""The limit of a test that uses Spark: its start alone can take minutes on a busy machine."""

_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session on two threads, or a skipped test where there is no Java."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    handler = signal.getsignal(signal.SIGINT)
    session = lakebed.spark.session(master="local[2,4]", name="lakebed-tests", conf=_SETTINGS)
    signal.signal(signal.SIGINT, handler)  # Spark takes Ctrl-C for itself, also where it is a test
    yield session
    session.stop()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    """A log of the test's own, in this process; Spark reaches it by `url_of(log)`."""
    with lakebed.open(tmp_path / "log") as opened:
        yield opened


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a Java, so that the quick check can leave it out; it may take its time."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_TEST_SECONDS))
