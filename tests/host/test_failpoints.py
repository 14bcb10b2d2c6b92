"""Failpoints do what they are armed for, when they are armed, and refuse nonsense."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import lakebed.wal  # noqa: F401  # defines its failpoints
from lakebed.errors import InvalidArgumentError
from lakebed.host import failpoints

POINT = failpoints.Failpoint("test.point")


@pytest.fixture(autouse=True)
def point_for_this_file_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(failpoints._points, POINT.name, POINT)
    yield
    failpoints.disarm()


def test_a_point_that_is_not_armed_does_nothing() -> None:
    POINT.hit()
    assert "test.point" in failpoints.names()


def test_error_strikes_at_the_nth_hit_only() -> None:
    failpoints.arm("test.point=error@2")
    POINT.hit()
    with pytest.raises(OSError, match=r"failpoint test\.point"):
        POINT.hit()
    POINT.hit()


def test_delay_goes_on_afterwards() -> None:
    failpoints.arm("test.point=delay:1")
    POINT.hit()
    assert POINT.name == "test.point"


@pytest.mark.parametrize(
    "text", ["nonsense", "test.point=explode", "no.such.point=kill", "test.point=error@", "=kill"]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="failpoint"):
        failpoints.arm(text)
    POINT.hit()  # it was not armed


def test_defining_a_name_twice_is_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="defined twice"):
        failpoints.define("test.point")


def test_the_environment_kills_a_real_process(tmp_path: object) -> None:
    code = f"from lakebed.wal import Wal; Wal.open({str(tmp_path)!r} + '/log').append(b'x')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"LAKEBED_FAILPOINTS": "wal.group.written=kill"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def test_a_misspelt_name_in_the_environment_is_refused(tmp_path: object) -> None:
    code = f"from lakebed.wal import Wal; Wal.open({str(tmp_path)!r} + '/log')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"LAKEBED_FAILPOINTS": "wal.group.writen=kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "unknown failpoint name=wal.group.writen" in done.stderr
