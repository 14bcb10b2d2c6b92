"""Runs procedures against a store in memory that has no faults."""

from __future__ import annotations

import random
from typing import TypeVar

from crc32c import crc32c

from lakebed.chain.calls import Procedure
from lakebed.chain.checkpoint import read_snapshot
from lakebed.chain.driver import Driver
from lakebed.chain.owner import ChainOwner, create_base, take_over
from lakebed.chain.records import Base
from lakebed.chain.slot import Encoded, Slot, SlotEntry, payloads
from lakebed.chain.walk import Walker
from lakebed.host.conditional_sim import NO_FAULTS, SimulatedStore
from tests.chain.world import LOG

T = TypeVar("T")


class Reader:
    """A follower that keeps payloads."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def load(self, base: Base) -> Procedure[None]:
        """See `Follower`; a snapshot is the payloads, a line each."""
        data = yield from read_snapshot(base)
        self.payloads = data.splitlines()

    def apply(self, slot: Slot, body: memoryview) -> None:
        """See `Follower`."""
        for index, _, payload in payloads(slot, body):
            if index > len(self.payloads):
                self.payloads.append(bytes(payload))


class Bench:
    """A store and a driver, and shortcuts for tests."""

    def __init__(self) -> None:
        self.store = SimulatedStore(random.Random(1), NO_FAULTS)
        self.driver = Driver(self.store)
        self.run(create_base(LOG, Base()))

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure to its end."""
        return self.driver.run(procedure, patience_seconds=0)

    def walker(self) -> tuple[Walker, Reader]:
        """Return a walker at the base."""
        reader = Reader()
        walker = Walker(LOG, reader)
        self.run(walker.load())
        return walker, reader

    def own(self, nonce: int) -> ChainOwner:
        """Take the log over."""
        walker, _ = self.walker()
        owner = self.run(take_over(walker, nonce.to_bytes(16, "big")))
        assert owner is not None
        return owner

    def write(self, owner: ChainOwner, *texts: bytes) -> Encoded:
        """Write one slot."""
        encoded = owner.encode([(entry(text, owner.term), [text]) for text in texts])
        self.run(owner.write(encoded))
        return encoded

    def read(self) -> list[bytes]:
        """Read the log as a new process does."""
        walker, reader = self.walker()
        self.run(walker.to_end())
        return reader.payloads


def entry(payload: bytes, term: int) -> SlotEntry:
    """Return the head of an entry."""
    return SlotEntry(term, 1, len(payload), crc32c(payload))
