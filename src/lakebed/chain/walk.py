"""Following the chain from its base: a standby, a replica, and an owner that opens.

    load   the base, and the state of its snapshot; the next slot is the one behind it
    step   read the next slot
           absent:                if the base has reached it, load; else this is the end
           does not follow mine:  if the base has moved, load: I may be reading a name that was
                                  freed and used again; else pass over it: it is a void fence
           follows:               apply it

The base is read *after* the slot. If it has not moved since it was loaded, or has moved to a slot
that was walked here and has the digest that was seen, nothing that was walked can have been freed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Protocol

from crc32c import crc32c

from lakebed.chain.calls import Get, Procedure
from lakebed.chain.records import BASE, Base, decode_base
from lakebed.chain.slot import NO_DIGEST, Slot, SlotEntry, decode_slot, part_name, slot_name
from lakebed.errors import CorruptionError, MissingFileError
from lakebed.host.conditional import Versioned


class Follower(Protocol):
    """What is built from the chain."""

    def load(self, base: Base) -> Procedure[None]:
        """Become the state of a base's snapshot; raise `CorruptionError` if that is damaged."""
        ...

    def apply(self, slot: Slot, body: memoryview) -> None:
        """Apply the entries of the next slot."""
        ...


class Walker:
    """A position in the chain, and what was seen on the way. One thread."""

    def __init__(self, log_id: uuid.UUID, follower: Follower) -> None:
        self.log_id = log_id
        self.next_slot = 1
        self.digest = NO_DIGEST
        """The digest of the last slot that was accepted."""
        self.next_index = 1
        self.base = Base()
        """The newest base of which it is certain that this walk includes it."""
        self.seen: dict[int, bytes] = {}
        """The digests of accepted slots, back to the base."""
        self.terms: list[tuple[int, int]] = []
        """Term and index of the first entry of each term, in order."""
        self._follower = follower

    def load(self) -> Procedure[None]:
        """Begin at the base; at the one in reserve if the newest snapshot is damaged."""
        while True:
            base = start = yield from read_base()
            try:
                yield from self._follower.load(base)
            except CorruptionError:
                # A newer base may have replaced this one, and its snapshot may be gone.
                if (yield from read_base()).slot != base.slot:
                    continue
                if base.reserve is None:
                    raise
                start = base.reserve
                yield from self._follower.load(start)
            self.base = base
            self.next_slot, self.digest = start.slot + 1, start.digest
            self.next_index = start.index + 1
            self.seen = {start.slot: start.digest}
            self.terms = list(start.terms)
            return

    def step(self) -> Procedure[bool]:
        """Read the next slot; return False at the end of the chain."""
        stored: Versioned | None = yield Get(slot_name(self.next_slot))
        if stored is None:
            base = yield from read_base()
            if base.slot >= self.next_slot:
                if base.slot == self.base.slot:  # walking from the base in reserve
                    raise MissingFileError(
                        "a slot behind the base in reserve is missing",
                        name=slot_name(self.next_slot),
                    )
                yield from self.load()
                return True
            self._note(base)
            return False
        slot = decode_slot(stored.data, self.log_id, self.next_slot)
        if slot.previous != self.digest:
            yield from self._pass_over()
            return True
        body = yield from self._body(slot)
        if body is None:
            yield from self.load()
            return True
        self._follower.apply(slot, body)
        note_terms(self.terms, slot.first_index, slot.entries)
        self.accept(slot.number, slot.digest, slot.last_index + 1)
        return True

    def to_end(self) -> Procedure[None]:
        """Walk until the chain ends."""
        while (yield from self.step()):
            pass

    def includes(self, base: Base) -> bool:
        """Return True if everything that was walked is part of the chain that has this base."""
        if base.slot >= self.next_slot:
            return False
        return base.slot <= self.base.slot or self.seen.get(base.slot) == base.digest

    def accept(self, slot_number: int, digest: bytes, next_index: int) -> None:
        """Move behind a slot."""
        if slot_number == self.base.slot and digest != self.base.digest:
            raise CorruptionError("the chain does not lead to its base", slot=slot_number)
        self.digest = self.seen[slot_number] = digest
        self.next_slot = slot_number + 1
        # A snapshot may include the first entries of the slot behind its base.
        self.next_index = max(self.next_index, next_index)

    def _pass_over(self) -> Procedure[None]:
        """Decide what a slot is that does not follow the last one."""
        base = yield from read_base()
        if not self.includes(base):
            yield from self.load()
            return
        self._note(base)
        self.next_slot += 1

    def _body(self, slot: Slot) -> Procedure[memoryview | None]:
        """Return the payloads of a slot, or None if its parts are gone because the base moved."""
        if not slot.parts:
            return slot.body
        pieces: list[bytes] = []
        for position, part in enumerate(slot.parts):
            stored: Versioned | None = yield Get(part_name(slot, position))
            if stored is None:
                base = yield from read_base()
                if base.slot >= slot.number:
                    return None
                raise MissingFileError(
                    "a part of a slot is missing", name=part_name(slot, position), slot=slot.number
                )
            if len(stored.data) != part.length or crc32c(stored.data) != part.checksum:
                raise CorruptionError(
                    "a part of a slot is damaged", name=part_name(slot, position), slot=slot.number
                )
            pieces.append(stored.data)
        return memoryview(b"".join(pieces))

    def _note(self, base: Base) -> None:
        """Remember a newer base that this walk includes, and forget what lies before it."""
        if base.slot > self.base.slot and self.includes(base):
            self.base = base
            self.seen = {slot: of for slot, of in self.seen.items() if slot >= base.slot}


def note_terms(
    terms: list[tuple[int, int]], first_index: int, entries: Sequence[SlotEntry]
) -> None:
    """Note where a term begins among entries that follow each other; doing it twice is harmless."""
    last = terms[-1][0] if terms else -1
    for position, entry in enumerate(entries):
        if entry.term > last:
            last = entry.term
            terms.append((last, first_index + position))


def read_base() -> Procedure[Base]:
    """Read the base, which exists since the log was created."""
    stored: Versioned | None = yield Get(BASE)
    if stored is None:
        raise MissingFileError("the store has no base of this log", name=BASE)
    return decode_base(stored.data)
