"""Fixtures for every package of tests, and which of them run side by side."""

from __future__ import annotations

from typing import Any

import pytest

pytest_plugins = ["tests.s3"]

_SPARK = "tests/spark/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have all tests of Spark run in one process, with one Java; others as they come."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _SPARK if nodeid.startswith(_SPARK) else nodeid

    return Scheduling(config, log)
