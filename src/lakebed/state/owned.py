"""Dictionaries of the state that count their values by owner, and markers by the end of their time.

Both are derived from the values alone, so they are in no snapshot. Putting the same value twice, or
taking a key out twice, changes nothing the second time, as for any other dictionary of the state.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Self, TypeVar

from lakebed.state.values import Marker, ProducerState, owner_of

Key = TypeVar("Key")
Value = TypeVar("Value")


class Owned(dict[Key, Value]):
    """Values by key, and how many each owner has; the state machine alone changes it."""

    def __init__(self, items: Iterable[tuple[Key, Value]] = ()) -> None:
        super().__init__()
        self._owned: dict[str, int] = {}
        for key, value in items:
            self[key] = value

    def count_of(self, owner: str) -> int:
        """Return how many an owner has; those of no owner belong to the empty one."""
        return self._owned.get(owner, 0)

    def _owner(self, key: Key, value: Value) -> str:
        raise NotImplementedError

    def __setitem__(self, key: Key, value: Value) -> None:
        if key not in self:  # the owner of a key never changes
            owner = self._owner(key, value)
            self._owned[owner] = self._owned.get(owner, 0) + 1
        super().__setitem__(key, value)

    def pop(self, key: Key, *default: Any) -> Any:
        """Take a key out."""
        if key in self:
            owner = self._owner(key, self[key])
            left = self._owned.pop(owner) - 1
            if left:
                self._owned[owner] = left
        return super().pop(key, *default)

    def copy(self) -> Self:
        """Return a copy that stays as it is."""
        copied = type(self)()
        dict.update(copied, self)
        copied._owned = dict(self._owned)
        return copied


class Producers(Owned[int, ProducerState]):
    """Producers and transactions by id."""

    def _owner(self, _key: int, value: ProducerState) -> str:
        return value.owner


class Markers(Owned[str, Marker]):
    """Markers by name; those whose time is over are found without a look at the others."""

    def __init__(self, items: Iterable[tuple[str, Marker]] = ()) -> None:
        self._ends: list[tuple[int, str]] = []
        """A heap of (end, name); an entry counts if the marker of that name ends then."""
        super().__init__(items)

    def over(self, time_us: int) -> Iterator[str]:
        """Yield the names of markers whose time was over before a time, in no order."""
        seen: set[str] = set()
        stack = [0]
        while stack:
            index = stack.pop()
            if index >= len(self._ends) or self._ends[index][0] >= time_us:
                continue  # no entry below it in the heap is earlier
            end, name = self._ends[index]
            if self._ends_at(name) == end and name not in seen:
                seen.add(name)
                yield name
            stack += (2 * index + 1, 2 * index + 2)

    def _ends_at(self, name: str) -> int | None:
        marker = self.get(name)
        return None if marker is None else marker.time_us + marker.keep_us

    def _owner(self, key: str, _value: Marker) -> str:
        return owner_of(key)

    def __setitem__(self, key: str, value: Marker) -> None:
        end = value.time_us + value.keep_us
        if self._ends_at(key) != end:
            heapq.heappush(self._ends, (end, key))
        super().__setitem__(key, value)
        self._tidy()

    def pop(self, key: str, *default: Any) -> Any:
        """Take a marker out."""
        marker = super().pop(key, *default)
        self._tidy()
        return marker

    def _tidy(self) -> None:
        """Drop entries that do not count: the first ones, or all if they are the most."""
        while self._ends and self._ends_at(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        if len(self._ends) > 2 * len(self) + 1_000:
            ends = {(marker.time_us + marker.keep_us, name) for name, marker in self.items()}
            self._ends = sorted(ends)

    def copy(self) -> Self:
        """Return a copy that stays as it is."""
        copied = super().copy()
        copied._ends = list(self._ends)
        return copied
