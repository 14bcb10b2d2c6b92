"""What one command does to memtables, to bodies and to the memory in use, as changes.

Memory is counted by body, because that is what is held: a body counts from the entry that brings it
until no chunk refers to it. Several partitions may share one, and each may merge its rows into a
larger body (`topic/memtable.py`) at another time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lakebed.errors import RejectedError
from lakebed.state.commands import parts_of
from lakebed.state.decision import GONE, Change, Placed, Written
from lakebed.topic.memtable import Body, Chunk, Memtable

if TYPE_CHECKING:
    from lakebed.engine.core import Core, Key, Prepared


class Ledger:
    """Collects the changes of one command. Only the committing thread uses it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._changes: list[Change] = []
        self._memory = 0
        self._records = 0
        self._made: dict[Key, Memtable] = {}
        self._left: dict[int, Body] = {}
        """Bodies that chunks let go of, by identity."""
        self._holders: dict[int, int] = {}
        """How many chunks still refer to each of these."""

    def place(self, index: int, prepared: Prepared, written: Written) -> tuple[Key, ...]:
        """Put the rows of a write into memtables."""
        core, touched = self._core, []
        for part in written.parts:
            if isinstance(part, RejectedError) or not part:
                continue
            first = part[0]
            own = first.index == index
            body = (
                prepared.bodies[first.number] if own else core.bodies[(first.index, first.number)]
            )
            rows = part[-1].start + part[-1].records
            if own:
                self._memory += body.memory_bytes
                rows = sum(run.records for run in parts_of(prepared.command)[first.number].runs)
                if body.holders != len(part):  # of many writers: runs were joined or refused
                    self._changes.append((body, "holders", len(part)))
            for placed in part:
                key = (placed.topic, placed.partition)
                self._put(key, _chunk(placed, body, rows))
                touched.append(key)
        return tuple(touched)

    def add(self, key: Key, chunk: Chunk) -> None:
        """Put a chunk that shares its body with no other into a memtable."""
        self._memory += chunk.body.memory_bytes
        self._put(key, chunk)

    def _put(self, key: Key, chunk: Chunk) -> None:
        memtable = self._memtable(key)
        self._changes.append((memtable, chunk.base, chunk))
        self._records += chunk.records

    def _memtable(self, key: Key) -> Memtable:
        """Return the memtable to add to: a new one if there is none, or it is consolidated."""
        memtable = self._made.get(key)
        if memtable is not None:
            return memtable
        memtable = self._core.memtables.get(key)
        if memtable is None:
            memtable = Memtable(self._core.clock.monotonic())
        elif not memtable.consolidation_due():
            return memtable
        else:
            consolidated = memtable.consolidate()
            if consolidated is None:
                return memtable
            memtable = consolidated.memtable
            self._let_go(consolidated.merged)
            self._memory += sum(chunk.body.memory_bytes for chunk in consolidated.made)
        self._made[key] = memtable
        self._changes.append((self._core.memtables, key, memtable))
        return memtable

    def _let_go(self, chunks: Iterable[Chunk]) -> None:
        """Count chunks that are dropped or merged."""
        for chunk in chunks:
            body = chunk.body
            self._left[id(body)] = body
            self._holders[id(body)] = self._holders.get(id(body), body.holders) - 1

    def hold(self, index: int, bodies: Sequence[Body]) -> None:
        """Keep the bodies of an open transaction."""
        for position, body in enumerate(bodies):
            self._changes.append((self._core.bodies, (index, position), body))
            self._memory += body.memory_bytes

    def release(self, producer: int, *, committed: bool) -> None:
        """Let go of an open transaction's bodies; committed ones are in memtables now."""
        transaction = self._core.state.transactions.get(producer)
        if transaction is None:
            return
        for pending in transaction.pending:
            key = (pending.index, pending.number)
            self._changes.append((self._core.bodies, key, GONE))
            if not committed:
                self._memory -= self._core.bodies[key].memory_bytes

    def trim(self, changes: list[Change]) -> None:
        """Drop from memtables what is flushed or gone now."""
        partitions = self._core.state.partitions
        for target, key, value in changes:
            if target is partitions and value is not GONE:
                before = partitions.get(key)
                memtable = self._core.memtables.get(key)
                if before is None or memtable is None or value.flushed == before.flushed:
                    continue
                rest = memtable.above(value.flushed, self._core.clock.monotonic())
                chunks = memtable.chunks()
                self._let_go(chunks[: len(chunks) - len(rest)])
                self._changes.append((self._core.memtables, key, rest if len(rest) else GONE))

    def forget_topic(self, topic: int) -> tuple[Key, ...]:
        """Drop every memtable of a topic."""
        keys = tuple(key for key in self._core.state.partitions if key[0] == topic)
        for key in keys:
            memtable = self._core.memtables.get(key)
            if memtable is not None:
                self._let_go(memtable.chunks())
                self._changes.append((self._core.memtables, key, GONE))
        return keys

    def stage(self, changes: list[Change]) -> None:
        """Let bodies of open transactions be read from their staged files from now on."""
        core = self._core
        for target, _, value in changes:
            if target is not core.state.transactions:
                continue
            for pending in value.pending:
                key = (pending.index, pending.number)
                body = core.bodies.get(key)
                if pending.staged and body is not None and not body.staged:
                    self._changes.append((core.bodies, key, core.load_staged(pending, body.schema)))
                    self._memory -= body.memory_bytes

    def finish(self) -> list[Change]:
        """Return every change, with the new sizes."""
        used = self._core.used
        for identity, holders in self._holders.items():
            body = self._left[identity]
            self._changes.append((body, "holders", holders))
            if not holders:
                self._memory -= body.memory_bytes
        if self._memory:
            self._changes.append((used, "memory_bytes", used["memory_bytes"] + self._memory))
        if self._records:
            self._changes.append((used, "records", used["records"] + self._records))
        return self._changes


def _chunk(placed: Placed, body: Body, rows: int) -> Chunk:
    share = body.size_bytes * (placed.start + placed.records) // rows
    share -= body.size_bytes * placed.start // rows
    return Chunk(placed.base, placed.records, body, placed.start, share)
