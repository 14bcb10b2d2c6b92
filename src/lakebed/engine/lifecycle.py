"""From opened to closed: which calls are still allowed, and what has to end first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from lakebed.errors import ClosedError


class Lifecycle:
    """Whether a log is open. Any thread may read it; `close` of the log changes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.closed = False
        """True once closing has begun: every call from then on is refused."""
        self.released = False
        """True once the folder is released: a further `close` does nothing."""
        self.before_close: list[Callable[[], None]] = []
        """Called when the log is about to be closed: a server of this process detaches here."""
        self.after_close: list[Callable[[], object]] = []
        """Called once the folder is released."""
        self.backing_up = threading.RLock()
        """Held while a backup is taken, which needs the folder until it ends."""

    def check_open(self) -> None:
        """Raise `ClosedError` once the log is closed: its folder may have another owner then."""
        if self.closed:
            raise ClosedError("the log is closed", path=self._folder)
