"""Slots that are read ahead: a walk finds what it would find without."""

from __future__ import annotations

import threading

from lakebed.chain.driver import Driver
from lakebed.chain.read_ahead import reading_ahead
from lakebed.chain.slot import slot_name
from lakebed.chain.walk import Walker
from lakebed.host.conditional import ConditionalStore, Versioned
from tests.chain.running import Bench, Reader
from tests.chain.world import LOG


class Counting:
    """A store in memory for several threads, that counts how many reads wait at a time."""

    def __init__(self, store: ConditionalStore) -> None:
        self.location = store.location
        self._store = store
        self._guard = threading.Lock()
        self.put_new, self.put_if = store.put_new, store.put_if
        self.put, self.delete = store.put, store.delete
        self.threads: set[int] = set()
        self.reads: list[str] = []

    def get(self, name: str) -> Versioned | None:
        with self._guard:
            self.threads.add(threading.get_ident())
            self.reads.append(name)
            return self._store.get(name)


def test_a_walk_that_reads_ahead_finds_every_slot() -> None:
    bench = Bench()
    owner = bench.own(1)
    texts = [b"%d" % number for number in range(200)]
    for text in texts:
        bench.write(owner, text)
    counting = Counting(bench.store)
    reader = Reader()
    with reading_ahead(counting, slots=8) as store:
        driver, walker = Driver(store), Walker(LOG, reader)
        driver.run(walker.load())
        driver.run(walker.to_end())
        assert reader.payloads == texts
        assert len(counting.threads) > 1  # other threads had read most of them
        # What was absent when it was read ahead is read again.
        bench.write(owner, b"later")
        driver.run(walker.to_end())
    assert reader.payloads == [*texts, b"later"]
    assert counting.reads.count(slot_name(100)) == 1
