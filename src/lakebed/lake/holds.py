"""What must stay for a while, although the log may have dropped it: somebody copies it."""

from __future__ import annotations

import threading
from collections.abc import Collection


class Hold:
    """One claim: on everything, until `narrow` says on what."""

    def __init__(self) -> None:
        self._names: Collection[object] | None = None

    def narrow(self, names: Collection[object]) -> None:
        """Claim these alone from now on."""
        self._names = names

    def covers(self, name: object) -> bool:
        """Return whether something must stay."""
        return self._names is None or name in self._names


class Holds:
    """Every claim there is. Any thread."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        """Held by whoever asks and acts on the answer in one go."""
        self._holds: list[Hold] = []

    def begin(self) -> Hold:
        """Claim everything."""
        with self.guard:
            hold = Hold()
            self._holds.append(hold)
            return hold

    def end(self, hold: Hold) -> None:
        """Return a claim up."""
        with self.guard:
            self._holds.remove(hold)

    def cover(self, name: object) -> bool:
        """Return whether something must stay."""
        return any(hold.covers(name) for hold in self._holds)
