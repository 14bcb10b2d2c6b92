"""What a writer said it would do and was told, and whether a log agrees with it.

A writer reports in lines: `intend` before a call, and after it what became of it.

    intend entry RUN THREAD NUMBER BYTES      ack entry RUN THREAD NUMBER INDEX
    intend state TERM VOTE                    ack state
    intend mark INDEX                         ack mark
    intend cut LAST                           ack cut
    opening log, opened log, closing log, closed log
    failed TEXT

In place of `ack` stands `refused` if it was told that it did not happen, and `unknown` if it was
told neither. After an `unknown` of a poisoned log nothing may be acknowledged until `opened log`.
Appends may come from many threads. States, marks and cuts come from one, and while a cut is made
nothing else is under way.

An entry's bytes follow from its name (run, thread, number) and size, so a reader can tell whose
entry it sees and whether it is whole.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from lakebed.wal import Entry, HardState, Mark

_HEAD = struct.Struct("<IIII")
BYTES_MIN = _HEAD.size


class Name(NamedTuple):
    """Which entry: of which life of the writer, from which thread, the how-manieth."""

    run: int
    thread: int
    number: int


def payload_of(name: Name, size: int) -> bytes:
    """Return the bytes of an entry, at least `BYTES_MIN`."""
    head = _HEAD.pack(*name, size)
    return head + hashlib.shake_128(head).digest(size - len(head))


def name_of(payload: memoryview) -> tuple[Name, int]:
    """Return the name and size of the entry with these bytes; raise if one of them is wrong."""
    assert len(payload) >= BYTES_MIN, f"an entry of {len(payload)} bytes was never intended"
    run, thread, number, size = _HEAD.unpack_from(payload)
    name = Name(run, thread, number)
    assert size == len(payload), f"{name} has {len(payload)} bytes, its head says {size}"
    assert bytes(payload) == payload_of(name, size), f"{name} has other bytes than were written"
    return name, size


def note_of(mark: int) -> bytes:
    """Return the note that goes with a release up to `mark`."""
    return b"held up to %d" % mark if mark else b""


class Readable(Protocol):
    """What a ledger compares with: a `Wal`, or another log seen as one."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def hard_state(self) -> HardState: ...
    @property
    def mark(self) -> Mark: ...
    def entries(self) -> Iterator[Entry]: ...


class Ledger:
    """Everything a writer reported, and what follows for the log."""

    def __init__(self) -> None:
        self.sizes: dict[Name, int] = {}
        """Every entry that may be in the log. One that is refused or void leaves it for good."""
        self.acked: dict[int, Name] = {}
        """What must be in the log, unless it was released."""
        self.states: list[HardState] = [HardState()]
        """The acknowledged hard state, then those intended since."""
        self.marks: list[int] = [0]
        self.cut: int | None = None
        """A truncation of which the outcome is not known."""
        self.acks = 0
        self.phase = "absent"
        self._poisoned = False

    def take(self, line: str) -> None:
        """Enter a line of the writer."""
        outcome, what, *rest = line.split()
        assert outcome != "failed", f"the writer says: {line}"
        if what == "log":
            self.phase = outcome
            self._poisoned = False
            return
        if outcome == "ack":
            assert not self._poisoned, f"acknowledged after a failed write or sync: {line}"
            self.acks += 1
        self._poisoned = self._poisoned or "unknown_outcome" in rest
        numbers = [int(word) for word in rest if word.isdigit()]
        if what == "entry":
            self._entry(outcome, numbers)
        elif what == "cut":
            self._cut(outcome, numbers)
        elif what == "state":
            self._state(outcome, numbers)
        else:
            assert what == "mark", line
            self._mark(outcome, numbers)

    def _entry(self, outcome: str, numbers: list[int]) -> None:
        name = Name(*numbers[:3])
        if outcome == "intend":
            self.sizes[name] = numbers[3]
        elif outcome == "ack":
            index = numbers[3]
            assert self.acked.get(index, name) == name, f"index {index} was given twice"
            self.acked[index] = name
        elif outcome == "refused":
            del self.sizes[name]

    def _cut(self, outcome: str, numbers: list[int]) -> None:
        if outcome == "intend":
            self.cut = numbers[0]
        elif outcome == "refused":
            self.cut = None
        elif outcome == "ack":
            assert self.cut is not None
            self._forget([index for index in self.acked if index > self.cut])
            self.cut = None

    def _state(self, outcome: str, numbers: list[int]) -> None:
        if outcome == "intend":
            self.states.append(HardState(*numbers))
        elif outcome == "refused":
            self.states.pop()
        elif outcome == "ack":
            self.states = self.states[-1:]

    def _mark(self, outcome: str, numbers: list[int]) -> None:
        if outcome == "intend":
            self.marks.append(*numbers)
        elif outcome == "refused":
            self.marks.pop()
        elif outcome == "ack":
            self.marks = self.marks[-1:]
            self._forget([index for index in self.acked if index <= self.marks[0]])

    def _forget(self, indexes: list[int]) -> None:
        """Drop entries that are void or released: they must never be read again."""
        for index in indexes:
            del self.sizes[self.acked.pop(index)]

    def check(self, log: Readable) -> dict[int, Name]:
        """Raise if the log contradicts what was reported; return what it holds."""
        assert log.hard_state in self.states, f"{log.hard_state} is none of {self.states}"
        assert log.mark.index in self.marks, f"mark {log.mark} is none of {self.marks}"
        assert log.mark.note == note_of(log.mark.index), f"another note: {log.mark}"
        found = self._read(log)
        missing = [
            (index, name)
            for index, name in self.acked.items()
            if found.get(index) != name and log.mark.index < index <= self._cut_floor(log)
        ]
        assert not missing, (
            f"{len(missing)} acknowledged entries are not where they were: {missing[:5]}, "
            f"first={log.first_index} last={log.last_index}"
        )
        return found

    def _cut_floor(self, log: Readable) -> int:
        """Return the index up to which the acknowledged entries must be there."""
        made = self.cut is not None and log.last_index <= self.cut
        return self.cut if made and self.cut is not None else 2**63

    def _read(self, log: Readable) -> dict[int, Name]:
        """Read the whole log: dense, each entry whole, intended, once, in its thread's order."""
        found: dict[int, Name] = {}
        latest: dict[tuple[int, int], Name] = {}
        index = log.first_index
        for entry in log.entries():
            assert entry.index == index, f"entry {entry.index} where {index} belongs"
            name, size = name_of(entry.payload)
            assert self.sizes.get(name) == size, f"{name} is in the log and must not be"
            before = latest.get(name[:2])
            assert before is None or before < name, f"{name} is behind {before}"
            found[index] = latest[name[:2]] = name
            index += 1
        assert index == log.last_index + 1, f"the log ends at {index - 1}, not {log.last_index}"
        return found

    def resolve(self, log: Readable) -> list[str]:
        """Check a reopened log; return the lines that say what became of what was not known.

        What a reopened log has shown must stay, and what it did not show must never come.
        """
        there = {name: index for index, name in self.check(log).items()}
        lines = ["opened log"]
        if len(self.states) > 1:
            lines.append("ack state" if log.hard_state == self.states[-1] else "refused state")
        if len(self.marks) > 1:
            lines.append("ack mark" if log.mark.index == self.marks[-1] else "refused mark")
        if self.cut is not None:
            lines.append("ack cut" if log.last_index <= self.cut else "refused cut")
        for name in sorted(self.sizes.keys() - set(self.acked.values())):
            outcome, index = ("ack", there[name]) if name in there else ("refused", 0)
            lines.append(f"{outcome} entry {name.run} {name.thread} {name.number} {index}")
        return lines

    def adopt(self, log: Readable) -> None:
        """Check a reopened log and go on from what it holds."""
        for line in self.resolve(log):
            self.take(line)
