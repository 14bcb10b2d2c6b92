"""The values that every layer speaks of: entries, their kinds, and a node's hard state."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class EntryKind(enum.IntEnum):
    """What an entry holds.

    A command for the state machine, or a change of the cluster's members.
    """

    NORMAL = 0
    CONFIGURATION = 1


class Entry(NamedTuple):
    """One command of the log at its index.

    `payload` is a view of the mapped file: nothing is copied, and the view stays valid however long
    it is kept.
    """

    index: int  # type: ignore[assignment]  # the word is worth more than tuple.index
    term: int
    kind: EntryKind
    time_us: int
    payload: memoryview


@dataclass(frozen=True)
class HardState:
    """What a Raft node must not forget: its term, and whom it voted for in it."""

    term: int = 0
    vote: int | None = None
