"""Decoded row groups, kept up to a number of bytes; those used least recently go first.

Each row group's columns are decoded when they are first asked for, by one thread; others that ask
for the same row group wait for it instead of decoding it again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

Key = tuple[int, int]
"""A segment's id and the number of a row group in it."""

Columns = dict[str, pa.Array]
Decode = Callable[[list[str]], Columns]


class CacheStats(NamedTuple):
    """What the cache was good for."""

    hits: int
    misses: int
    cached_bytes: int


class _Group:
    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.columns: Columns = {}
        self.decoded_bytes = 0
        self.counted_bytes = 0


class RowGroupCache:
    """Columns of row groups. Any thread. Arrays that callers hold outlive their place here."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._guard = threading.Lock()
        self._groups: OrderedDict[Key, _Group] = OrderedDict()
        self._hits = self._misses = self._bytes = 0

    @property
    def stats(self) -> CacheStats:
        """Count reads that found all they wanted, those that decoded, and the bytes held now."""
        with self._guard:
            return CacheStats(self._hits, self._misses, self._bytes)

    def get(self, key: Key, names: Sequence[str], decode: Decode) -> Columns:
        """Return the named columns of a row group, decoding those that are not there."""
        with self._guard:
            group = self._groups.setdefault(key, _Group())
            self._groups.move_to_end(key)
        try:
            with group.guard:
                missing = [name for name in names if name not in group.columns]
                if missing:
                    group.columns.update(decode(missing))
                    group.decoded_bytes = _size(group.columns)
                columns = {name: group.columns[name] for name in names}
        except BaseException:
            self._drop_empty(key, group)
            raise
        self._account(key, group, hit=not missing)
        return columns

    def forget(self, segment: int) -> None:
        """Drop the row groups of a segment."""
        with self._guard:
            for key in [key for key in self._groups if key[0] == segment]:
                self._drop(key)

    def clear(self) -> None:
        """Drop everything."""
        with self._guard:
            self._groups.clear()
            self._bytes = 0

    def _account(self, key: Key, group: _Group, *, hit: bool) -> None:
        with self._guard:
            self._hits += hit
            self._misses += not hit
            if self._groups.get(key) is not group:
                return  # dropped since
            self._bytes += group.decoded_bytes - group.counted_bytes
            group.counted_bytes = group.decoded_bytes
            if group.counted_bytes > self._bytes_max:
                self._drop(key)  # the others need not go for one that cannot stay
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._groups)))

    def _drop(self, key: Key) -> None:
        self._bytes -= self._groups.pop(key).counted_bytes

    def _drop_empty(self, key: Key, group: _Group) -> None:
        with self._guard:
            if self._groups.get(key) is group and not group.columns:
                self._drop(key)


def _size(columns: Columns) -> int:
    return sum(int(column.get_total_buffer_size()) for column in columns.values())
