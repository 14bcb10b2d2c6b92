"""Which tests share a process, in which order they start, and how long each took last time.

Tests of a Spark session run in one worker, which has the only Java. Other tests are handed out by
file, the longest first; a test that took long is handed out alone. Durations come from
`tests/durations.json`, which `pytest --write-durations` writes; a test that is not in it is taken
for a short one.

`--quick` leaves out what is not known to be short: `make check` uses it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
_ALONE_SECONDS = 2.0
"""A test that takes this long is scheduled alone."""
_UNKNOWN_SECONDS = 0.05
_QUICK_SECONDS = 0.05
"""What `--quick` takes for short."""
_SPARK = "spark"
_CACHED = "lakebed/spark"
"""Where the first worker tells the scheduler which tests need the session."""


def recorded() -> dict[str, float]:
    """Return the seconds that each test took when durations were written last."""
    if not DURATIONS.exists():
        return {}
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf8"))
    return found


def scope_of(name: str, group: str, seconds: dict[str, float]) -> str:
    """Return what a test is handed out with: its group, its file, or nothing but itself."""
    if group:
        return group
    alone = seconds.get(name, 0) >= _ALONE_SECONDS
    return name if alone else name.partition("::")[0]


def longest_first(items: list[pytest.Item], seconds: dict[str, float]) -> list[pytest.Item]:
    """Return tests by scope, the scope that takes longest first."""
    scopes: dict[str, list[pytest.Item]] = {}
    totals: dict[str, float] = {}
    for item in items:
        group = _SPARK if item.get_closest_marker("xdist_group") else ""
        scope = scope_of(item.nodeid, group, seconds)
        scopes.setdefault(scope, []).append(item)
        took = seconds.get(item.nodeid, _UNKNOWN_SECONDS)
        totals[scope] = totals.get(scope, 0.0) + took
    by_total = sorted(scopes, key=lambda scope: totals[scope], reverse=True)
    return [item for scope in by_total for item in scopes[scope]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this module."""
    group = parser.getgroup("lakebed")
    group.addoption(
        "--write-durations", action="store_true", help=f"write {DURATIONS.name} for the next runs"
    )
    group.addoption(
        "--quick", action="store_true", help=f"leave out tests that take over {_QUICK_SECONDS} s"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Have xdist hand out groups of tests, in the order in which they were collected."""
    if getattr(config.option, "numprocesses", None):
        config.option.dist = "loadscope"
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group what needs Spark, leave out what takes long if that is wanted, and set the order."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group(_SPARK))
    seconds = recorded()
    if config.getoption("quick"):
        slow = [item for item in items if seconds.get(item.nodeid, 0) > _QUICK_SECONDS]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = longest_first(items, seconds)
        if os.environ["PYTEST_XDIST_WORKER"] == "gw0":
            names = [item.nodeid for item in items if item.get_closest_marker("xdist_group")]
            config.cache.set(_CACHED, names)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out the scopes of this module."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    seconds = recorded()

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def schedule(self) -> None:
            # The workers have collected; xdist's own groups are lost with this version of pytest.
            self.of_spark = set(config.cache.get(_CACHED, []))
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid, _SPARK if nodeid in self.of_spark else "", seconds)

    return Scheduling(config, log)


class Recorder:
    """Adds up what each test took, and writes that down at the end."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what setting up, calling or tearing down took."""
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Keep the tests that matter to the schedule: the rest would only make differences."""
        slow = {name: took for name, took in self._seconds.items() if took > _QUICK_SECONDS}
        rounded = {name: float(f"{slow[name]:.2g}") for name in sorted(slow)}
        DURATIONS.write_text(json.dumps(rounded, indent=0) + "\n", encoding="utf8")


def pytest_configure(config: pytest.Config) -> None:
    """Record durations in the process that sees all reports."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if config.getoption("write_durations") and not is_worker:
        config.pluginmanager.register(Recorder())
