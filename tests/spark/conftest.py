"""Fixtures for tests of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lakebed


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    """A log in this process; Spark reaches it by `url_of(log)`."""
    with lakebed.open(tmp_path / "log") as opened:
        yield opened
