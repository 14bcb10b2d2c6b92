"""Named points in the code where a test can make a process die, fail or wait.

    LAKEBED_FAILPOINTS="wal.group.written=kill@3;wal.rotate.renamed=error;wal.group.synced=delay:50@2"

Each item is `name=action[@nth]`. Actions: `kill` (SIGKILL to this process), `error` (an OSError,
EIO), `delay:MS`. `@nth` acts at the nth hit only; without it, at the first. A name that no code
defines is refused when a log is opened, so a misspelt test cannot pass by doing nothing.

A point is defined once, at import, and hit with `POINT.hit()`. While nothing is armed a hit is one
attribute test.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from dataclasses import dataclass

from lakebed.errors import InvalidArgumentError

VARIABLE = "LAKEBED_FAILPOINTS"

_ITEM = re.compile(r"([a-z_.]+)=(kill|error|delay:(\d{1,6}))(?:@(\d{1,9}))?")


@dataclass(frozen=True)
class _Action:
    kind: str
    delay_ms: int
    nth: int


class Failpoint:
    """One named point."""

    __slots__ = ("_action", "_guard", "_hits", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._action: _Action | None = None
        self._hits = 0
        self._guard = threading.Lock()

    def hit(self) -> None:
        """Do what the point is armed for; nothing if it is not."""
        if self._action is not None:
            self._act(self._action)

    def _act(self, action: _Action) -> None:
        with self._guard:
            self._hits += 1
            if self._hits != action.nth:
                return
        if action.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if action.kind == "error":
            raise OSError(errno.EIO, f"failpoint {self.name}")
        time.sleep(action.delay_ms / 1000)

    def set(self, action: _Action | None) -> None:
        """Arm or disarm; hits are counted again."""
        self._action = action
        self._hits = 0


_points: dict[str, Failpoint] = {}
_armed_by_environment = False


def define(name: str) -> Failpoint:
    """Define a point at import time."""
    if name in _points:
        raise AssertionError(f"failpoint {name} is defined twice")
    point = _points[name] = Failpoint(name)
    return point


def names() -> list[str]:
    """List every point that the imported code defines."""
    return sorted(_points)


def arm(text: str) -> None:
    """Arm points from the syntax above; an unknown name or action is refused."""
    for item in filter(None, (part.strip() for part in text.split(";"))):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise InvalidArgumentError(
                "a failpoint is not name=kill|error|delay:MS[@nth]", item=item
            )
        name, kind, delay, nth = match.groups()
        if name not in _points:
            raise InvalidArgumentError("unknown failpoint", name=name)
        _points[name].set(_Action(kind.partition(":")[0], int(delay or 0), int(nth or 1)))


def disarm() -> None:
    """Disarm every point."""
    for point in _points.values():
        point.set(None)


def arm_from_environment() -> None:
    """Arm what the environment asks for, once per process."""
    global _armed_by_environment
    if not _armed_by_environment and VARIABLE in os.environ:
        arm(os.environ[VARIABLE])
    _armed_by_environment = True
