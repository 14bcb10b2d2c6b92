"""The values that every layer speaks of: entries, their kinds, and a node's hard state."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self


class Closing(abc.ABC):
    """Something that is closed at the end of a `with` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close it; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


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
