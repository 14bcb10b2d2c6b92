"""A simulated conditional store: a dictionary behind a network that misbehaves by a seed.

A write may be done and answered, done with a lost answer, lost, delayed until after later calls, or
repeated. Delayed and repeated writes are delivered before a later call, or never. Its versions are
digests of the bytes, as the ETags of S3 are. It is not for several threads.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from lakebed.host.conditional import DONE, REFUSED, Answer, Outcome, Versioned


@dataclass(frozen=True)
class Faults:
    """How likely each fault of a write is."""

    lose: float = 0.05
    """The write does not arrive; its outcome is unknown."""
    delay: float = 0.2
    """It arrives before some later call; its outcome is unknown."""
    cut: float = 0.05
    """It arrives now, and the answer is lost."""
    repeat: float = 0.05
    """It arrives now, and a second time before some later call."""
    deliver: float = 0.1
    """At each call: that one of the delayed writes arrives."""


NO_FAULTS = Faults(0, 0, 0, 0, 1)


class _Late(NamedTuple):
    name: str
    data: bytes
    version: str | None
    """Of a replacement: the version that it was to replace."""


class SimulatedStore:
    """Objects in memory, with faults drawn from a generator."""

    def __init__(self, generator: random.Random, faults: Faults) -> None:
        self.location = "simulated://"
        self.objects: dict[str, bytes] = {}
        self.faults = faults
        self._random = generator
        self._late: list[_Late] = []

    def put_new(self, name: str, data: bytes) -> Answer:
        """See `ConditionalStore`."""
        return self._write(_Late(name, data, None))

    def put_if(self, name: str, data: bytes, version: str) -> Answer:
        """See `ConditionalStore`."""
        return self._write(_Late(name, data, version))

    def get(self, name: str) -> Versioned | None:
        """See `ConditionalStore`."""
        self._deliver_some()
        data = self.objects.get(name)
        return None if data is None else Versioned(data, version_of(data))

    def put(self, name: str, data: bytes) -> None:
        """See `ConditionalStore`."""
        self._deliver_some()
        self.objects[name] = data

    def delete(self, name: str) -> None:
        """See `ConditionalStore`."""
        self._deliver_some()
        self.objects.pop(name, None)

    def deliver_all(self) -> None:
        """Deliver every delayed write."""
        while self._late:
            self._apply(self._late.pop(0))

    def _write(self, write: _Late) -> Answer:
        self._deliver_some()
        faults, drawn = self.faults, self._random.random()
        if drawn < faults.lose:
            return Answer(Outcome.UNKNOWN)
        drawn -= faults.lose
        if drawn < faults.delay:
            self._late.append(write)
            return Answer(Outcome.UNKNOWN)
        drawn -= faults.delay
        outcome = self._apply(write)
        if drawn < faults.cut:
            return Answer(Outcome.UNKNOWN)
        if drawn - faults.cut < faults.repeat:
            self._late.append(write)
        return outcome

    def _apply(self, write: _Late) -> Answer:
        there = self.objects.get(write.name)
        if write.version is None:
            if there is not None:
                return REFUSED
        elif there is None or version_of(there) != write.version:
            return REFUSED
        self.objects[write.name] = write.data
        return DONE

    def _deliver_some(self) -> None:
        while self._late and self._random.random() < self.faults.deliver:
            self._apply(self._late.pop(self._random.randrange(len(self._late))))


def version_of(data: bytes) -> str:
    """Return the version of an object with these bytes."""
    return f"{zlib.crc32(data):08x}-{len(data)}"
