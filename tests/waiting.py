"""Waiting for what another thread or process does, without guessing how long it takes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = float(os.environ.get("LAKEBED_PATIENCE_SECONDS", "600"))
"""When a test gives up: long after the slowest machine, before pytest's own limit."""


def until(condition: Callable[[], T], what: str = "", *, pause_seconds: float = 0.002) -> T:
    """Wait until a condition holds, and return its value; fail if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it does not happen: {what or condition}"
        pause.wait(pause_seconds)
    return value
