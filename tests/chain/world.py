"""Processes that own a log in turn over a simulated store, and the checks of every schedule.

The processes run the real procedures of `lakebed.chain`, one store call at a time, in an order that
a seed chooses. Between two calls a process may crash; slots at or below the base may be removed at
any moment, as a paused owner's removals may arrive; writes are lost, delayed, repeated and cut.

What must hold: no two processes disagree about the log; an acknowledged entry is in the chain once,
after everything that was acknowledged before it was sent; every owner has every entry that was
acknowledged before its fence; and once the faults stop, a process alone comes to own the log.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from crc32c import crc32c

from lakebed.chain.calls import Call, Delete, Get, Pause, Procedure, Put, PutAll, PutIf, PutNew
from lakebed.chain.checkpoint import read_snapshot, write_checkpoint
from lakebed.chain.owner import ChainOwner, create_base, removable, take_over
from lakebed.chain.records import BASE, Base, decode_base
from lakebed.chain.slot import Slot, SlotEntry, decode_slot, payloads, slot_name
from lakebed.chain.walk import Walker
from lakebed.errors import NotOwnerError
from lakebed.host.conditional_sim import NO_FAULTS, Faults, SimulatedStore

LOG = uuid.UUID(int=17)
ENTRIES_MAX = 14
QUIET_CALLS = 4000


class ViolationError(Exception):
    """A schedule that breaks a promise."""


@dataclass
class World:
    """The store, the processes, and what was acknowledged."""

    generator: random.Random
    faults: Faults
    processes: int
    readers: int = 0
    crash: float = 0.02
    remove: float = 0.15
    entries: int = ENTRIES_MAX
    written: int = 0
    takeovers: int = 0
    acknowledged: list[int] = field(default_factory=list)
    sent_after: dict[int, tuple[int, ...]] = field(default_factory=dict)
    slot_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = SimulatedStore(self.generator, self.faults)
        self.members = [Process(self, number) for number in range(self.processes)]
        self.replicas = [Replica(self, self.processes + number) for number in range(self.readers)]
        self.members += self.replicas

    def run(self, calls: int) -> None:
        """Run a schedule, then let one process alone own the log and write."""
        generator = self.generator
        speeds = [1.0] * len(self.members)
        for number in range(calls):
            if not number % 12:  # a process that is slow now may stand in the middle of anything
                speeds = generator.choices((0.01, 0.1, 1.0), k=len(self.members))
            if generator.random() < self.remove:
                self.remove_some()
            (member,) = generator.choices(self.members, speeds)
            if generator.random() < self.crash:
                member.restart()
            member.step()
            if not number % 16:
                self.check()
        self.check()
        self.quiet()

    def follow_to_end(self) -> None:
        """Let every replica alone come to the end of the log."""
        whole = self.read()
        for replica in self.replicas:
            for _ in range(QUIET_CALLS):
                if replica.applied == whole:
                    break
                replica.step()
            else:
                raise ViolationError(f"stuck: a replica has {replica.applied} of {whole}")

    def quiet(self) -> None:
        """End all faults: a process alone must come to own the log, and write."""
        self.store.deliver_all()
        self.store.faults = NO_FAULTS
        self.entries = self.written + 1
        survivor = self.members[0]
        survivor.restart()
        before = len(self.acknowledged)
        for _ in range(QUIET_CALLS):
            survivor.step()
            if len(self.acknowledged) > before:
                break
        else:
            raise ViolationError("stuck: a process alone cannot own the log")
        self.check()
        self.follow_to_end()

    def remove_some(self) -> None:
        """Remove slots at or below the base, as owners do; a paused one's calls may come late."""
        stored = self.store.objects.get(BASE)
        if stored is None:
            return
        for number in range(1, _base(stored).slot + 1):
            data = self.store.objects.get(slot_name(number))
            if data is None or self.generator.random() > 0.7:
                continue
            if removable(_slot(data, LOG, number)):
                del self.store.objects[slot_name(number)]

    def check_prefix(self, applied: list[int]) -> None:
        """No two processes disagree about the log."""
        for member in self.members:
            shorter = min(len(applied), len(member.applied))
            if applied[:shorter] != member.applied[:shorter]:
                raise ViolationError(f"fork: {applied} and {member.applied}")

    def check(self) -> None:
        """What a reader finds in the store holds every acknowledged entry once, in order."""
        if BASE not in self.store.objects:
            return
        read = self.read()
        position = {entry: place for place, entry in enumerate(read)}
        if len(position) != len(read):
            raise ViolationError(f"twice: {read}")
        missing = [entry for entry in self.acknowledged if entry not in position]
        if missing:
            raise ViolationError(f"lost: {missing} of {self.acknowledged}, read {read}")
        for entry in read:
            if any(position[earlier] > position[entry] for earlier in self.sent_after[entry]):
                raise ViolationError(f"order: {self.acknowledged}, read {read}")

    def read(self) -> list[int]:
        """Read the log as a new reader would, without the code under test."""
        objects = self.store.objects
        base = _base(objects[BASE])
        entries: list[int] = json.loads(objects[base.snapshot]) if base.snapshot else []
        number, digest = base.slot + 1, base.digest
        while (data := objects.get(slot_name(number))) is not None:
            slot = _slot(data, LOG, number)
            if slot.previous == digest:
                digest = slot.digest
                entries += [
                    json.loads(bytes(payload))
                    for index, _, payload in payloads(slot, slot.body)
                    if index > len(entries)
                ]
            number += 1
        return entries


class Process:
    """A process: it walks, takes over, writes entries and checkpoints, and crashes."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.incarnation = 0
        self.restart()

    def restart(self) -> None:
        """Lose everything but the store."""
        self.incarnation += 1
        self.applied: list[int] = []
        self._reply: Any = None
        self._life: Generator[Call, Any, None] = self._live()

    def step(self) -> None:
        """Do one store call."""
        try:
            self._reply = self._do(self._life.send(self._reply))
        except (StopIteration, NotOwnerError):
            self.restart()

    # Follower

    def load(self, base: Base) -> Procedure[None]:
        """See `Follower`."""
        data = yield from read_snapshot(base)
        self.applied = json.loads(data) if data else []
        self.world.check_prefix(self.applied)

    def apply(self, slot: Slot, body: memoryview) -> None:
        """See `Follower`."""
        for index, _, payload in payloads(slot, body):
            if index > len(self.applied):
                self.applied = [*self.applied, json.loads(bytes(payload))]
        self.world.check_prefix(self.applied)

    # Life

    def _live(self) -> Generator[Call, Any, None]:
        world, random_ = self.world, self.world.generator
        yield from create_base(LOG, Base())
        walker = Walker(LOG, self)
        yield from walker.load()
        nonce = bytes([self.number, *self.incarnation.to_bytes(15, "big")])
        owner = yield from take_over(walker, nonce)
        assert owner is not None
        self._check_owner(owner)
        while True:
            if world.written < world.entries and random_.random() < 0.5:
                yield from self._write(owner)
            elif random_.random() < 0.5:
                data = json.dumps(self.applied).encode()
                index = len(self.applied)
                yield from write_checkpoint(owner, data, index=index, term=owner.term)
            else:
                yield Pause(1)

    def _write(self, owner: ChainOwner) -> Procedure[None]:
        world = self.world
        world.written += 1
        entry = world.written
        world.sent_after[entry] = tuple(world.acknowledged)
        payload = json.dumps(entry).encode()
        head = SlotEntry(owner.term, 1, len(payload), crc32c(payload))
        encoded = owner.encode([(head, [payload])])
        yield from owner.write(encoded)
        self.applied = [*self.applied, entry]
        world.acknowledged.append(entry)
        world.slot_of[entry] = encoded.slot.number
        world.check_prefix(self.applied)

    def _check_owner(self, owner: ChainOwner) -> None:
        """An owner has every entry that was acknowledged in a slot before its fence."""
        world = self.world
        world.takeovers += 1
        lacking = [
            entry
            for entry in world.acknowledged
            if world.slot_of[entry] < owner.term and entry not in self.applied
        ]
        if lacking:
            raise ViolationError(f"owner {self.number} lacks {lacking}")

    def _do(self, call: Call) -> Any:
        store = self.world.store
        if isinstance(call, Get):
            return store.get(call.name)
        if isinstance(call, PutNew):
            return store.put_new(call.name, call.data).outcome
        if isinstance(call, PutIf):
            return store.put_if(call.name, call.data, call.version).outcome
        if isinstance(call, Put):
            return store.put(call.name, call.data)
        if isinstance(call, PutAll):
            for name, data in call.objects:
                store.put(name, data)
            return None
        if isinstance(call, Delete):
            return store.delete(call.name)
        return None


class Replica(Process):
    """A process that only walks; what it has once shown stays."""

    def load(self, base: Base) -> Procedure[None]:
        """See `Follower`; as `StateFollower` does."""
        if self.applied and base.index <= len(self.applied):
            return
        before = self.applied
        yield from super().load(base)
        if len(self.applied) < len(before):
            raise ViolationError(f"back: a replica had {before}, and has {self.applied}")

    def _live(self) -> Generator[Call, Any, None]:
        yield from create_base(LOG, Base())
        walker = Walker(LOG, self)
        yield from walker.load()
        while True:
            yield from walker.to_end()
            yield Pause(1)


_base = lru_cache(4096)(decode_base)
_slot = lru_cache(65536)(decode_slot)
