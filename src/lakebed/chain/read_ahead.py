"""Reads slots ahead of a walk, so that it takes a round trip for many slots instead of for each.

A walk needs each slot to be read *before* the base that it compares with, and reading earlier
keeps that order. Only an object that was there is taken from what was read ahead: one that was
absent may have been created since, and is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from lakebed.chain.slot import slot_name
from lakebed.host.conditional import Answer, ConditionalStore, Versioned

_SLOT: Final = re.compile(r"(.*?)wal/([0-9a-f]{16})", re.ASCII)


class ReadAhead:
    """A conditional store whose slots are read ahead. One thread walks."""

    def __init__(self, store: ConditionalStore, pool: ThreadPoolExecutor, slots: int) -> None:
        self.location = store.location
        self._store = store
        self._pool = pool
        self._slots = slots
        self._waiting: dict[str, Future[Versioned | None]] = {}

    def get(self, name: str) -> Versioned | None:
        """See `ConditionalStore`; a slot that exists has the following ones read as well."""
        match = _SLOT.fullmatch(name)
        if match is None:
            return self._store.get(name)
        waiting = self._waiting.pop(name, None)
        stored = waiting.result() if waiting is not None else None
        if stored is None:
            stored = self._store.get(name)
        if stored is None:
            self._waiting.clear()
        else:
            self._read_ahead(match[1], int(match[2], 16))
        return stored

    def _read_ahead(self, prefix: str, slot_number: int) -> None:
        for following in range(slot_number + 1, slot_number + 1 + self._slots):
            name = prefix + slot_name(following)
            if name not in self._waiting:
                self._waiting[name] = self._pool.submit(self._store.get, name)

    def put_new(self, name: str, data: bytes) -> Answer:
        """See `ConditionalStore`."""
        return self._store.put_new(name, data)

    def put_if(self, name: str, data: bytes, version: str) -> Answer:
        """See `ConditionalStore`."""
        return self._store.put_if(name, data, version)

    def put(self, name: str, data: bytes) -> None:
        """See `ConditionalStore`."""
        self._store.put(name, data)

    def delete(self, name: str) -> None:
        """See `ConditionalStore`."""
        self._store.delete(name)


@contextmanager
def reading_ahead(store: ConditionalStore, slots: int = 16) -> Iterator[ConditionalStore]:
    """Return a store whose slots are read ahead, for the block."""
    pool = ThreadPoolExecutor(min(slots, 16), thread_name_prefix="lakebed-walk")
    try:
        yield ReadAhead(store, pool, slots)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
