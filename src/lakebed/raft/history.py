"""What a log on disk keeps in memory about its entries: their terms, and who belonged when.

Terms never decrease, so they are kept as runs: memory grows with elections, not with entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from lakebed.raft.values import Membership


@dataclass(frozen=True)
class Boundary:
    """Where the snapshot ends, and the membership in force there."""

    index: int = 0
    term: int = 0
    membership: Membership = field(default_factory=Membership)


class History:
    """Terms and memberships from the snapshot to the last index. One thread at a time."""

    def __init__(self, boundary: Boundary) -> None:
        self.boundary = boundary
        self.last_index = boundary.index
        self._starts: list[int] = []
        self._terms: list[int | None] = []
        self._configured: list[int] = []
        self._memberships: list[Membership] = []

    @property
    def last_term(self) -> int:
        """The last term known."""
        known = (term for term in reversed(self._terms) if term is not None)
        return next(known, self.boundary.term)

    @property
    def membership(self) -> Membership:
        """The membership in force."""
        return self._memberships[-1] if self._memberships else self.boundary.membership

    def term_at(self, index: int) -> int | None:
        """Return the term at an index, None where it is not known."""
        if index == 0:
            return 0
        if index == self.boundary.index:
            return self.boundary.term
        if not self.boundary.index < index <= self.last_index:
            return None
        return self._terms[bisect_right(self._starts, index) - 1]

    def add(self, index: int, term: int | None, membership: Membership | None = None) -> None:
        """Take note of everything from the last index to `index`, all of one term.

        With None they are entries that a salvage could not save.
        """
        if not self._terms or self._terms[-1] != term:
            self._starts.append(self.last_index + 1)
            self._terms.append(term)
        self.last_index = index
        if membership is not None:
            self._configured.append(index)
            self._memberships.append(membership)

    def cut(self, last_index: int) -> None:
        """Forget everything above `last_index`."""
        runs = bisect_right(self._starts, last_index)
        del self._starts[runs:], self._terms[runs:]
        kept = bisect_right(self._configured, last_index)
        del self._configured[kept:], self._memberships[kept:]
        self.last_index = last_index

    def release(self, boundary: Boundary) -> None:
        """Forget everything up to a new boundary, which may lie beyond the end."""
        self.boundary = boundary
        self.last_index = max(self.last_index, boundary.index)
        gone = bisect_right(self._configured, boundary.index)
        del self._configured[:gone], self._memberships[:gone]
        first = boundary.index + 1
        runs = bisect_left(self._starts, first)
        if runs and (runs == len(self._starts) or self._starts[runs] > first):
            # The run that the boundary lies in goes on behind it.
            runs -= 1
            self._starts[runs] = first
        del self._starts[:runs], self._terms[:runs]
        if first > self.last_index:
            self.cut(boundary.index)
