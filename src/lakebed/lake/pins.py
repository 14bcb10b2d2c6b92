"""Pins: files that must stay while they are copied, although the log may have dropped them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator


class Pin:
    """Pins every file, until `narrow` names the ones that matter."""

    def __init__(self) -> None:
        self._names: Collection[object] | None = None

    def narrow(self, names: Collection[object]) -> None:
        """Pin only these from now on."""
        self._names = names

    def covers(self, name: object) -> bool:
        """Return whether this pins a file."""
        return self._names is None or name in self._names


class Pins:
    """The pins of one folder. Any thread."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        """Held from a call of `is_pinned` until its answer was acted on."""
        self._pins: list[Pin] = []

    @contextlib.contextmanager
    def pin(self) -> Iterator[Pin]:
        """Pin every file within the block, or those that `Pin.narrow` names."""
        pin = Pin()
        with self.guard:
            self._pins.append(pin)
        try:
            yield pin
        finally:
            with self.guard:
                self._pins.remove(pin)

    def is_pinned(self, name: object) -> bool:
        """Return whether a file must stay. With the guard."""
        return any(pin.covers(name) for pin in self._pins)
