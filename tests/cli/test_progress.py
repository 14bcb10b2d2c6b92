"""Progress on stderr: lines where nobody watches, a bar on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from lakebed.cli.output import Meter


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Screen(io.StringIO):
    """A terminal that remembers what was drawn on it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("lakebed.cli.output.time", clock)
    return clock


def test_no_line_is_repeated_and_the_last_one_is_whole(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Meter(silent=False, unit="tasks") as meter:
        for done in (1, 1, 1, 3, 4, 4):
            clock.now += 3
            meter("reading", min(done, 3), 4)
        clock.now += 0.1
        meter("reading", 4, 4)
        meter("reading", 4, 4)
    assert capsys.readouterr().err.splitlines() == [
        "reading: 25 % of 4 tasks",
        "reading: 75 % of 4 tasks",
        "reading: 100 % of 4 tasks",
    ]


def test_each_work_that_was_spoken_of_is_spoken_of_when_it_is_done(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Work that was quick is not worth a line."""
    with Meter(silent=False) as meter:
        meter("finding", 0, 1024)
        clock.now += 3
        meter("finding", 512, 1024)
        clock.now += 1
        meter("finding", 1024, 1024)
        meter("writing", 2048, 2048)
    assert capsys.readouterr().err.splitlines() == [
        "finding: 50 % of 1.0 KiB",
        "finding: 100 % of 1.0 KiB",
    ]


def test_what_fails_is_not_told_to_be_done(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="gone"), Meter(silent=False, unit="tasks") as meter:
        clock.now += 3
        meter("reading", 1, 4)
        raise OSError("gone")
    assert capsys.readouterr().err == "reading: 25 % of 4 tasks\n"


def test_the_bar_on_a_terminal_is_whole_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Meter(silent=False, unit="tasks") as meter:
        meter("reading", 1, 3)
        meter("reading", 3, 3)
    drawn = screen.getvalue()
    before, whole, after = drawn.rpartition("3/3")
    assert (whole, before.count("\n")) == ("3/3", 0)
    assert after.endswith("\x1b[1A\x1b[2K")  # the line is cleared
