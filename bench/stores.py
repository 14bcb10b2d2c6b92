"""A conditional store whose every call takes as long as one to a bucket does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from lakebed.host.conditional import Answer, ConditionalStore, Versioned, open_conditional


class Delayed:
    """Another store, each call to which takes so many seconds more. Any thread."""

    def __init__(self, store: ConditionalStore, seconds: float) -> None:
        self.location = store.location
        self._store = store
        self._seconds = seconds

    def put_new(self, name: str, data: bytes) -> Answer:
        """See `ConditionalStore`."""
        time.sleep(self._seconds)
        return self._store.put_new(name, data)

    def put_if(self, name: str, data: bytes, version: str) -> Answer:
        """See `ConditionalStore`."""
        time.sleep(self._seconds)
        return self._store.put_if(name, data, version)

    def get(self, name: str) -> Versioned | None:
        """See `ConditionalStore`."""
        time.sleep(self._seconds)
        return self._store.get(name)

    def put(self, name: str, data: bytes) -> None:
        """See `ConditionalStore`."""
        time.sleep(self._seconds)
        self._store.put(name, data)

    def delete(self, name: str) -> None:
        """See `ConditionalStore`."""
        self._store.delete(name)


def delayed(seconds: float) -> Callable[[str, Mapping[str, str]], ConditionalStore]:
    """Return what opens a store as `open_conditional` does, with a delay."""

    def opened(location: str, options: Mapping[str, str]) -> ConditionalStore:
        return Delayed(open_conditional(location, options), seconds)

    return opened
