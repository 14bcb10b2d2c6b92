"""Replays runs of small writes in one step each: the same result as entry by entry, sooner.

A log of records that were appended one by one has one entry for each. Consecutive `Write`
entries of one small batch for one partition are collected, and a partition gets the rows of many of
them as one chunk, decoded in one pass.

Most of these entries differ only in their time and their rows. What follows the time in the
envelope (topic, schema, runs, length of the body) is looked up by its bytes:

    version, kind, 0, length of the envelope | 92 | CF, time as u64 | parts | zeros | body
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from lakebed.engine.ledger import Ledger
from lakebed.state import command_codec, commands
from lakebed.state.decision import Change
from lakebed.topic.memtable import ONE_PASS_MAX, ONE_PASS_MIN, SMALL_BYTES, Body, Chunk, chunk_of
from lakebed.topic.messages import Unusual, decode_messages

if TYPE_CHECKING:
    from lakebed.engine.core import Core, Key
    from lakebed.state.values import Part
    from lakebed.types import Entry

_HEAD: Final = struct.Struct("<HHIBB")
_WRITE: Final = command_codec.VERSION | commands.Write.kind << 8
_PAIR: Final = 0x92
"""How msgpack begins an array of two."""
_LONG: Final = 0xCF
"""How msgpack begins an integer of eight bytes."""
_ENVELOPE_AT: Final = 8
_PARTS_AT: Final = _HEAD.size + 8
_PLANS_MAX: Final = 65_536
"""The most different parts that are remembered."""


class _Arrivals:
    """Rows that a partition got and does not have yet."""

    def __init__(self, key: Key, schema: pa.Schema) -> None:
        self.key = key
        self.schema = schema
        self.bodies: list[memoryview] = []
        self.records: list[int] = []


class _Plan(NamedTuple):
    """What to do with entries that have the same parts."""

    arrivals: _Arrivals
    records: int
    start: int
    end: int


class WriteRuns:
    """Collects writes of a log that is replayed; `finish` applies them. One thread."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._plans: dict[bytes, _Plan | None] = {}
        self._arrivals: dict[Key, _Arrivals] = {}
        self._waiting: list[_Arrivals] = []
        """Those with rows."""
        self._last: Entry | None = None
        self._wal_bytes = 0

    def take(self, entries: Sequence[Entry], first: int) -> int:
        """Collect entries from number `first` on; return the first one to be applied alone."""
        plans, unpack, index = self._plans, _HEAD.unpack_from, first
        for index in range(first, len(entries)):
            payload = entries[index].payload
            if len(payload) < _PARTS_AT:
                return index
            kind, _, length, pair, long = unpack(payload)
            if kind != _WRITE or pair != _PAIR or long != _LONG:
                return index
            parts = bytes(payload[_PARTS_AT : _ENVELOPE_AT + length])
            plan = plans[parts] if parts in plans else self._plan(parts, payload, length)
            if plan is None or plan.end > len(payload):
                return index
            arrivals = plan.arrivals
            if not arrivals.bodies:
                self._waiting.append(arrivals)
            arrivals.bodies.append(payload[plan.start : plan.end])
            arrivals.records.append(plan.records)
            self._last = entries[index]
            self._wal_bytes += len(payload)
            if len(arrivals.bodies) >= ONE_PASS_MAX:
                self.finish()
        return len(entries)

    def finish(self) -> None:
        """Apply everything that was collected."""
        core, last = self._core, self._last
        if last is None:
            return
        ledger = Ledger(core)
        changes: list[Change] = []
        for arrivals in self._waiting:
            changes.append(self._place(ledger, arrivals))
            arrivals.bodies, arrivals.records = [], []
        changes += ledger.finish()
        changes.append((core.state.numbers, "applied", last.index))
        changes.append((core.used, "wal_bytes", core.used["wal_bytes"] + self._wal_bytes))
        core.change(changes, tuple(arrivals.key for arrivals in self._waiting))
        self._waiting, self._last, self._wal_bytes = [], None, 0

    def forget(self) -> None:
        """Decide again from now on: topics may have changed."""
        self._plans.clear()
        self._arrivals.clear()

    def _plan(self, encoded: bytes, payload: memoryview, length: int) -> _Plan | None:
        """Decide once for all entries with the same parts; None if they are applied alone."""
        command, _ = command_codec.decode(payload)
        parts = commands.parts_of(command)
        plan = None
        if len(parts) == 1 and len(parts[0].runs) == 1 and parts[0].body_bytes <= SMALL_BYTES:
            arrivals = self._arrivals_of(parts[0])
            if arrivals is not None:
                start = (_ENVELOPE_AT + length + 63) & -64
                end = start + parts[0].body_bytes
                plan = _Plan(arrivals, parts[0].runs[0].records, start, end)
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()
        self._plans[encoded] = plan
        return plan

    def _arrivals_of(self, part: Part) -> _Arrivals | None:
        """Return where the rows of a part go; None if it is refused, or of another schema."""
        topic, run = self._core.state.topics.get(part.topic), part.runs[0]
        if topic is None or part.schema > len(topic.schemas):
            return None
        if run.partition >= topic.partitions or not run.records:
            return None
        key, schema = (topic.id, run.partition), self._core.schema(topic, part.schema)
        arrivals = self._arrivals.setdefault(key, _Arrivals(key, schema))
        return arrivals if arrivals.schema is schema else None

    def _place(self, ledger: Ledger, arrivals: _Arrivals) -> Change:
        """Assign offsets to rows, and put them into the memtable."""
        partitions = self._core.state.partitions
        base = end = partitions[arrivals.key].end
        chunk = _one_chunk(base, arrivals)
        if chunk is not None:
            ledger.add(arrivals.key, chunk)
            end = chunk.end
        else:
            for raw, records in zip(arrivals.bodies, arrivals.records, strict=True):
                body = Body(functools.partial(_same, raw), arrivals.schema, len(raw))
                ledger.add(arrivals.key, Chunk(end, records, body, 0, len(raw)))
                end += records
        return partitions, arrivals.key, partitions[arrivals.key]._replace(end=end)


def _one_chunk(base: int, arrivals: _Arrivals) -> Chunk | None:
    if len(arrivals.bodies) < ONE_PASS_MIN:
        return None
    try:
        batch, rows = decode_messages(arrivals.bodies, arrivals.schema)
    except (Unusual, pa.ArrowException):
        return None
    if rows.tolist() != arrivals.records:
        return None
    return chunk_of(base, batch, arrivals.schema)


def _same(raw: memoryview) -> memoryview:
    return raw
