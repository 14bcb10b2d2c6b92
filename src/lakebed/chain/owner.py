"""Taking over, writing slots, moving the base, and removing what lies before it.

Taking over: walk to the end, create a fence in the next slot, then read the base once more. If the
base has passed the fence, or is at a slot with another digest than the one walked here, the walk
was misled by a name that had been freed and used again: the fence is void, and it begins again.

One slot is in flight at a time. A writer of an earlier term is therefore stopped by the first fence
behind its last slot, and fences stay, so no later write of it can be acknowledged.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace as change
from typing import TYPE_CHECKING, NamedTuple

from lakebed.chain.calls import Delete, Get, Procedure, PutAll
from lakebed.chain.records import BASE, Base, decode_base, encode_base, new_nonce
from lakebed.chain.settle import create, replace
from lakebed.chain.slot import (
    Encoded,
    Slot,
    SlotEntry,
    SlotKind,
    decode_slot,
    encode_data,
    encode_fence,
    part_name,
    slot_name,
)
from lakebed.chain.walk import Walker, note_terms, read_base
from lakebed.errors import MissingFileError, NotOwnerError
from lakebed.host import failpoints
from lakebed.host.conditional import Versioned

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FENCED = failpoints.define("chain.fenced")
_VERIFIED = failpoints.define("chain.verified")
_PARTS = failpoints.define("chain.parts_written")
_SLOT = failpoints.define("chain.slot_written")
_BASE = failpoints.define("chain.base_moved")
_REMOVED = failpoints.define("chain.slot_removed")


def create_base(log_id: uuid.UUID, base: Base) -> Procedure[Base]:
    """Create the first base of a log; return the one that it has, if it exists already."""
    other = yield from create(BASE, encode_base(base, log_id.bytes))
    return base if other is None else decode_base(other)


def take_over(
    walker: Walker, nonce: bytes, *, give_way: bool = False
) -> Procedure[ChainOwner | None]:
    """Become the owner of a log, from wherever a walk has come.

    With `give_way`, return None if another candidate's fence came first.
    """
    while True:
        yield from walker.to_end()
        slot_number = walker.next_slot
        fence = encode_fence(
            walker.log_id,
            slot_number,
            nonce=nonce,
            next_index=walker.next_index,
            previous=walker.digest,
        )
        other = yield from create(slot_name(slot_number), fence.data)
        if other is not None:
            if give_way and decode_slot(other, walker.log_id, slot_number).kind is SlotKind.FENCE:
                return None
            continue
        _FENCED.hit()
        base = yield from read_base()
        if not walker.includes(base):
            yield from walker.load()
            continue
        _VERIFIED.hit()
        walker.accept(slot_number, fence.digest, walker.next_index)
        return ChainOwner(walker.log_id, slot_number, nonce, walker)


class _Position(NamedTuple):
    """Where the next slot goes."""

    slot: int
    digest: bytes
    index: int  # type: ignore[assignment]  # the word is worth more than tuple.index


class ChainOwner:
    """The writer of a log since its fence. One thread at a time."""

    def __init__(self, log_id: uuid.UUID, term: int, nonce: bytes, walker: Walker) -> None:
        self.log_id = log_id
        self.term = term
        self._position = _Position(walker.next_slot, walker.digest, walker.next_index)
        self._terms = list(walker.terms)
        self.nonce = nonce
        self._parts: dict[int, list[str]] = {}
        """Names of the parts of slots written here, until the slots are removed."""
        self._ends = [(walker.next_index - 1, term, walker.digest)]
        """Last index, number and digest of the slots since the last base, in order."""
        self._names = 0
        self.removed = 0
        """Slots up to this one are removed, except fences."""
        self.fenced: NotOwnerError | None = None

    @property
    def next_slot(self) -> int:
        """The number of the next slot."""
        return self._position.slot

    @property
    def digest(self) -> bytes:
        """The digest of the last slot."""
        return self._position.digest

    @property
    def next_index(self) -> int:
        """The index of the next entry: everything below it is in the chain."""
        return self._position.index

    def new_name(self) -> str:
        """Return the end of a name that no other object has: no two owners have one term."""
        self._names += 1
        return f"{self.term:x}-{self._names}"

    def encode(self, entries: Sequence[tuple[SlotEntry, Sequence[Buffer]]]) -> Encoded:
        """Build the next slot; its bytes are the same each time it is built from the same group."""
        return encode_data(
            self.log_id,
            self.next_slot,
            term=self.term,
            nonce=self.nonce,
            first_index=self.next_index,
            previous=self.digest,
            entries=entries,
        )

    def write(self, encoded: Encoded) -> Procedure[None]:
        """Write the next slot; it is in the chain when this returns.

        Raises `NotOwnerError` if another owner has taken over: the group is not in the chain.
        """
        if self.fenced is not None:
            raise self.fenced
        slot = encoded.slot
        if encoded.parts:
            yield PutAll(encoded.parts)
            _PARTS.hit()
        other = yield from create(slot_name(slot.number), encoded.data)
        if other is not None:
            self.fenced = _ownership_error(other, self.log_id, slot.number)
            raise self.fenced
        _SLOT.hit()
        if encoded.parts:
            self._parts[slot.number] = [name for name, _ in encoded.parts]
        self._ends.append((slot.last_index, slot.number, encoded.digest))
        note_terms(self._terms, slot.first_index, slot.entries)
        # Last, and in one step: an exception of a signal handler cannot leave it half done.
        self._position = _Position(slot.number + 1, encoded.digest, slot.last_index + 1)

    def base_for(self, index: int, term: int) -> Base:
        """Return a base for a snapshot of everything up to `index`, which is in the chain."""
        if index >= self.next_index:
            raise AssertionError(f"entry {index} is not in the chain, which ends before")
        last = max(position for position, end in enumerate(self._ends) if end[0] <= index)
        _, slot, digest = self._ends[last]
        del self._ends[:last]
        terms = tuple(item for item in self._terms if item[1] <= index)
        return Base(slot=slot, digest=digest, index=index, term=term, terms=terms)

    def move_base(self, base: Base) -> Procedure[Base | None]:
        """Move the base up; return the one before, or None if it has passed this one already.

        The base that is replaced stays in reserve.
        """
        while True:
            stored: Versioned | None = yield Get(BASE)
            if stored is None:
                raise MissingFileError("the store has no base of this log", name=BASE)
            current = decode_base(stored.data)
            if current.slot >= base.slot:
                return None
            self.removed = max(self.removed, current.removed)
            following = change(base, removed=self.removed, reserve=change(current, reserve=None))
            other = yield from replace(BASE, encode_base(following, new_nonce()), stored.version)
            if other is None:
                _BASE.hit()
                return current
            if not other.data:
                raise MissingFileError("the store has no base of this log", name=BASE)

    def remove(self, last: int) -> Procedure[None]:
        """Remove the slots up to `last`, which the base in reserve includes. Fences stay."""
        for slot_number in range(self.removed + 1, last + 1):
            parts = self._parts.pop(slot_number, [])
            if slot_number <= self.term:  # another owner's: a fence, a void one, or data
                stored: Versioned | None = yield Get(slot_name(slot_number))
                if stored is None:
                    continue
                slot = decode_slot(stored.data, self.log_id, slot_number)
                if not removable(slot):
                    continue
                parts = [part_name(slot, position) for position in range(len(slot.parts))]
            for name in parts:
                yield Delete(name)
            yield Delete(slot_name(slot_number))
            _REMOVED.hit()
        self.removed = max(self.removed, last)


def removable(slot: Slot) -> bool:
    """Return True if a slot may be removed once the base has passed it. Fences stay forever.

    A name that was freed can be used again by a write that was delayed: were it a fence's, the
    owner that the fence stopped could write there and believe that it still owns the log.
    """
    return slot.kind is not SlotKind.FENCE


def _ownership_error(other: bytes, log_id: uuid.UUID, slot_number: int) -> NotOwnerError:
    """Build the error of an owner that found another's slot in its place."""
    slot = decode_slot(other, log_id, slot_number)
    return NotOwnerError("another process has taken over the log", term=slot.term, slot=slot_number)
