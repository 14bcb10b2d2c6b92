"""What writers of a log said they would do and were told, and whether the log agrees with it.

Two properties, checked after every crash:

* every acknowledged record is there exactly once, at its offset, with its bytes; offsets are dense;
  a record that was refused or never sent does not appear, one of unknown outcome at most once
* a transaction is wholly visible or not at all, with its consumer offsets

Writers report events, each a list that JSON can carry:

    ["intend", ID, {"records": [[TOPIC, KEY, RUN, THREAD, NUMBER, BYTES], ...],
                    "atomic": true, "offsets": {GROUP: OFFSET}}]
    ["intend", ID, {"wipe": TOPIC, "delete": true}]       delete, or purge with "delete": false
    ["ack", ID, [[TOPIC, PARTITION, OFFSET], ...]]        one place for each record
    ["refused", ID]    ["unknown", ID]                    nothing happened; nobody knows
    ["low", TOPIC, PARTITION, OFFSET]                     a low watermark that was seen
    ["phase", NAME]    ["failed", TEXT]

An event is reported before its call begins, or after it has returned. So an acknowledgement that
stands before an intention happened before it, and what overlaps may have happened in any order.

Consumer offsets are those of partition 0 of the topic `marks`, in a group of one thread's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakebed import Log
from lakebed.errors import OffsetOutOfRangeError
from tests.proof.ledger import BYTES_MIN, Name, name_of, payload_of

MARKS = "marks"
TRIMMED = frozenset({"trimmed"})
"""Topics with retention: records below the low watermark may be gone."""
COMPACTED = frozenset({"compacted"})
"""Topics compacted by key: a record may be gone if a later one has its key."""

__all__ = ["BYTES_MIN", "COMPACTED", "MARKS", "TRIMMED", "Ledger", "Name", "payload_of"]


class Place(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


@dataclass
class Item:
    """A record that may be in the log."""

    topic: str
    key: str
    size: int
    operation: str
    intended_at: int
    place: Place | None = None
    """Where it was acknowledged to be, or found before."""
    acked_at: int = 0


@dataclass
class Operation:
    """A call that is under way, or whose outcome is not known."""

    names: list[Name] = field(default_factory=list)
    atomic: bool = True
    offsets: dict[str, int] = field(default_factory=dict)
    wipe: str = ""
    delete: bool = False
    intended_at: int = 0
    acked_at: int = 0


class Found(NamedTuple):
    """What a log holds."""

    places: dict[Name, Place]
    lows: dict[tuple[str, int], int]
    groups: dict[str, int]


class Ledger:
    """Everything that writers reported, and what follows for the log."""

    def __init__(self) -> None:
        self.items: dict[Name, Item] = {}
        """Every record that may be in the log. One that is refused or gone leaves it for good."""
        self.open: dict[str, Operation] = {}
        self.wipes: list[Operation] = []
        """Deletions and purges, finished or not, since the last opening."""
        self.groups: dict[str, int] = {}
        self.lows: dict[tuple[str, int], int] = {}
        self.acks = 0
        self.phase = "absent"
        self._line = 0

    # Events

    def take(self, event: list[Any]) -> None:
        """Enter an event."""
        self._line += 1
        kind, *rest = event
        assert kind != "failed", f"the writer says: {event}"
        if kind == "phase":
            self.phase = rest[0]
        elif kind == "low":
            self.lows[(rest[0], rest[1])] = rest[2]
        elif kind == "intend":
            self._intend(*rest)
        elif kind == "ack":
            self._ack(*rest)
        elif kind == "refused":
            self._refuse(rest[0])
        else:
            assert kind == "unknown", event

    def _intend(self, number: str, what: dict[str, Any]) -> None:
        operation = Operation(
            atomic=what.get("atomic", True),
            offsets=what.get("offsets", {}),
            wipe=what.get("wipe", ""),
            delete=what.get("delete", False),
            intended_at=self._line,
        )
        for topic, key, run, thread, each, size in what.get("records", ()):
            name = Name(run, thread, each)
            assert name not in self.items, f"{name} is intended twice"
            self.items[name] = Item(topic, key, size, number, self._line)
            operation.names.append(name)
        self.open[number] = operation
        if operation.wipe:
            self.wipes.append(operation)
            if operation.delete:
                self.lows = {
                    each: low for each, low in self.lows.items() if each[0] != what["wipe"]
                }

    def _ack(self, number: str, places: list[list[Any]]) -> None:
        operation = self.open.pop(number)
        operation.acked_at = self._line
        self.acks += 1
        for name, place in zip(operation.names, places, strict=True):
            item = self.items[name]
            item.place, item.acked_at = Place(*place), self._line
            assert item.place.topic == item.topic
        self.groups.update(operation.offsets)

    def _refuse(self, number: str) -> None:
        operation = self.open.pop(number)
        for name in operation.names:
            del self.items[name]
        if operation.wipe:
            self.wipes.remove(operation)

    # Comparing

    def check(self, log: Log, *, weak: bool = False) -> Found:
        """Raise if the log contradicts what was reported; return what it holds.

        With `weak`, what was acknowledged may be lost: the log does not sync before it says so.
        """
        found = self._read(log)
        for name, place in found.places.items():
            self._check_found(name, place, weak=weak)
        if not weak:
            self._check_missing(found)
            self._check_lows(found)
        self._check_operations(found, weak=weak)
        return found

    def _read(self, log: Log) -> Found:
        """Read the whole log: dense, each record whole, intended, once."""
        found = Found({}, {}, {})
        for topic in log.topics():
            for partition in log.offsets(topic):
                self._read_whole_partition(log, topic, partition, found)
        for group in log.groups():
            committed = log.committed(group)
            if committed:
                ((place, offset),) = committed.items()
                assert place == (MARKS, 0), f"{group} committed to {place}"
                found.groups[group] = offset
        return found

    def _read_whole_partition(self, log: Log, topic: str, partition: int, found: Found) -> None:
        """Read a partition; from its new beginning, if retention removes some of it meanwhile."""
        before = set(found.places)
        while True:
            low, end = log.offsets(topic)[partition]
            found.lows[(topic, partition)] = low
            try:
                self._read_partition(log, topic, partition, low, end, found)
            except OffsetOutOfRangeError:
                assert topic in TRIMMED
                assert log.offsets(topic)[partition][0] > low
                for name in set(found.places) - before:
                    del found.places[name]
            else:
                return

    def _read_partition(
        self, log: Log, topic: str, partition: int, low: int, end: int, found: Found
    ) -> None:
        at = low
        while at < end:
            table = log.read(topic, partition, at, max_records=1000)
            offsets = table.column("offset").to_pylist()
            if topic not in COMPACTED:
                assert offsets == list(range(at, at + len(offsets))), f"{topic}: a hole at {at}"
                assert offsets, f"{topic}/{partition} ends at {at}, not at {end}"
            elif not offsets:
                break
            values = table.column("value").to_pylist()
            for offset, value in zip(offsets, values, strict=True):
                assert at <= offset < end, f"{topic}/{partition}: offset {offset}"
                name, size = name_of(memoryview(value))
                item = self.items.get(name)
                assert item is not None, f"{name} is in {topic} and must not be"
                assert (item.topic, item.size) == (topic, size), f"{name} is in {topic}"
                assert name not in found.places, f"{name} is there twice"
                found.places[name] = Place(topic, partition, offset)
                at = offset + 1

    def _check_found(self, name: Name, place: Place, *, weak: bool) -> None:
        item = self.items[name]
        assert item.place in (None, place), f"{name} was at {item.place} and is at {place}"
        for wipe in self.wipes:
            gone = wipe.acked_at and item.acked_at and item.acked_at < wipe.intended_at
            assert weak or not (gone and wipe.wipe == item.topic), f"{name} was removed and is back"

    def _check_missing(self, found: Found) -> None:
        for name, item in self.items.items():
            if item.place is not None and name not in found.places:
                assert self._may_be_gone(item, found), f"{name} was at {item.place} and is gone"

    def _may_be_gone(self, item: Item, found: Found) -> bool:
        assert item.place is not None
        if any(
            wipe.wipe == item.topic and not 0 < wipe.acked_at < item.intended_at
            for wipe in self.wipes
        ):
            return True
        if item.topic in TRIMMED:
            return item.place.offset < found.lows.get(item.place[:2], 0)
        return item.topic in COMPACTED and any(
            place[:2] == item.place[:2]
            and place.offset > item.place.offset
            and self.items[name].key == item.key
            for name, place in found.places.items()
        )

    def _check_lows(self, found: Found) -> None:
        for key, low in found.lows.items():
            assert low >= self.lows.get(key, 0), f"the low watermark of {key} fell to {low}"
            wiped = any(wipe.wipe == key[0] for wipe in self.wipes)
            if key[0] not in TRIMMED and not wiped:
                assert low == self.lows.get(key, 0), f"the low watermark of {key} rose to {low}"

    def _check_operations(self, found: Found, *, weak: bool) -> None:
        """Whatever is not known happened wholly or not at all, with its consumer offsets."""
        groups = dict(self.groups)
        for number, operation in self.open.items():
            there = [name for name in operation.names if name in found.places]
            if operation.atomic:
                wiped = any(
                    wipe.wipe == self.items[name].topic
                    for wipe in self.wipes
                    for name in operation.names
                )
                whole = len(there) in (0, len(operation.names)) or wiped
                assert whole, f"{number} is half there: {there} of {operation.names}"
            for group, offset in operation.offsets.items():
                if there or (not operation.names and found.groups.get(group) == offset):
                    groups[group] = offset
        if not weak:
            assert found.groups == groups, f"offsets are {found.groups}, they were {groups}"

    def adopt(self, log: Log, *, weak: bool = False) -> Found:
        """Check a reopened log and go on from what it holds.

        What a reopened log has shown must stay, and what it did not show must never come.
        """
        found = self.check(log, weak=weak)
        self.items = {name: self.items[name] for name in found.places}
        for name, place in found.places.items():
            item = self.items[name]
            item.place, item.acked_at, item.intended_at = place, self._line, self._line
        self.groups = dict(found.groups)
        self.lows = {key: low for key, low in found.lows.items() if low}
        self.open.clear()
        self.wipes.clear()
        return found
