"""Finds the latest record of a key: in memtables first, then in segments, the newest first.

Every partition is asked, since a key's records may be in several: partitions are added, and writers
may choose one. In a partition the record with the highest offset is the latest; of several
partitions, the one with the latest timestamp is, then the one of the higher partition.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.api.lookup import no_topic
from lakebed.engine.core import Core, Key
from lakebed.lake.key_filter import Probe, probe
from lakebed.lake.segment_reader import SegmentReader
from lakebed.state.values import Partition, Topic
from lakebed.topic.memtable import Chunk, decode_chunks
from lakebed.topic.records import with_position

_KEYS_MAX: Final = 1 << 20
"""Key columns of a memtable are joined up to so many keys."""


class _Run(NamedTuple):
    """The keys of neighbouring chunks."""

    base: int
    keys: pa.Array

    @property
    def end(self) -> int:
        return self.base + len(self.keys)


class _HotKeys:
    """The keys of one memtable as a few long columns: chunks of one record each would be many.

    Made when somebody asks, and brought up to date by each who asks. As the columns are joined when
    one is as long as the one before, each key is copied about as often as their number has binary
    digits.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._runs: list[_Run] = []

    def find(self, chunks: list[Chunk], low: int, key: bytes) -> Chunk | None:
        """Return the last row of a key in the chunks of a memtable, at `low` or above, or None."""
        low = max(low, chunks[0].base)
        for run in reversed(self._update(chunks)):
            offsets = run.base + np.flatnonzero(pc.equal(run.keys, key).fill_null(fill_value=False))
            offsets = offsets[(offsets >= low) & (offsets < chunks[-1].end)]
            if len(offsets):
                return _row(chunks, int(offsets[-1]))
        return None

    def _update(self, chunks: list[Chunk]) -> list[_Run]:
        """Return the keys of the chunks, and perhaps of some before or behind them."""
        first = chunks[0].base
        with self._guard:
            runs = [run for run in self._runs if run.end > first]
            # Somebody who came later may have seen a checkpoint that this caller has not.
            behind = bool(runs) and runs[0].base > first
            if behind:
                runs = []
            end = runs[-1].end if runs else first
            fresh = chunks[bisect_right(chunks, end, key=lambda chunk: chunk.end) :]
            if fresh and fresh[0].base < end:  # merged since with chunks that came later
                fresh[0] = fresh[0].cut(end, fresh[0].end)
            for base, batch in decode_chunks(fresh):
                keys = batch.column("key")
                _add(runs, _Run(base, pa.concat_arrays([keys, _NO_KEYS])))
            if not behind:
                self._runs = runs
            return list(runs)


_NO_KEYS: Final = pa.nulls(0, pa.binary())  # `array` would import pandas
"""Joined with keys, it makes a copy of them, which does not hold the values beside them."""


def _row(chunks: list[Chunk], offset: int) -> Chunk:
    """Return one row of chunks."""
    chunk = chunks[bisect_right(chunks, offset, key=lambda candidate: candidate.base) - 1]
    return Chunk(offset, 1, chunk.body, chunk.start + offset - chunk.base, 0)


def _add(runs: list[_Run], run: _Run) -> None:
    while runs and len(runs[-1].keys) <= len(run.keys) and runs[-1].end == run.base:
        if len(runs[-1].keys) + len(run.keys) > _KEYS_MAX:
            break
        before = runs.pop()
        run = _Run(before.base, pa.concat_arrays([before.keys, run.keys]))
    runs.append(run)


class KeyLookup:
    """Finds records by their keys, in all topics of a log. Any thread."""

    def __init__(self, core: Core, segments: SegmentReader) -> None:
        self._core = core
        self._segments = segments
        self._hot: dict[Key, _HotKeys] = {}

    def find(self, topic: Topic, key: bytes, columns: Sequence[str]) -> pa.RecordBatch | None:
        """Return the latest record of a key as a batch of one, `columns` among its columns."""
        wanted = probe(key)
        names = set(columns)
        if topic.partitions > 1:
            names.add("timestamp")  # tells which partition has the current one
        newest = {}
        for partition in range(topic.partitions):
            record = self._in_partition(topic, (topic.id, partition), wanted, names)
            if record is not None:
                newest[partition] = record
        if len(newest) < 2:
            return next(iter(newest.values()), None)
        return newest[max(newest, key=lambda partition: (_time(newest[partition]), partition))]

    def _in_partition(
        self, topic: Topic, key: Key, wanted: Probe, names: set[str]
    ) -> pa.RecordBatch | None:
        while True:
            before = self._partition(topic, key)
            memtable = self._core.memtables.get(key)
            if self._partition(topic, key).flushed != before.flushed:
                continue  # what the memtable had may be in segments that `before` does not name
            chunks = [] if memtable is None else memtable.chunks()
            record = self._in_memtable(key, chunks, before.low, wanted)
            if record is not None:
                return record
            try:
                return self._in_segments(key, before, wanted, names)
            except Exception:
                self._core.catch_up()
                now = self._partition(topic, key)
                if now.segments == before.segments and now.low == before.low:
                    raise
                # A segment was replaced or removed a moment ago.

    def _in_memtable(
        self, key: Key, chunks: list[Chunk], low: int, wanted: Probe
    ) -> pa.RecordBatch | None:
        if not chunks:
            self._hot.pop(key, None)
            return None
        hot = self._hot.get(key)
        if hot is None:
            self._forget_topics()
            hot = self._hot.setdefault(key, _HotKeys())
        row = hot.find(chunks, low, wanted.key)
        if row is None:
            return None
        return with_position(row.batch(row.base, row.end), key[1], row.base)

    def _forget_topics(self) -> None:
        """Let go of the keys of topics that were deleted."""
        for key in list(self._hot):
            if self._core.partition(key) is None:
                self._hot.pop(key, None)

    def _in_segments(
        self, key: Key, partition: Partition, wanted: Probe, names: set[str]
    ) -> pa.RecordBatch | None:
        for segment in reversed(partition.segments):
            if segment.end <= partition.low:
                return None
            if segment.records:
                record = self._segments.find(
                    *key, segment, wanted, low=partition.low, columns=tuple(names)
                )
                if record is not None:
                    return record
        return None

    def _partition(self, topic: Topic, key: Key) -> Partition:
        partition = self._core.partition(key)
        if partition is None:
            raise no_topic(topic.name)
        return partition


def _time(record: pa.RecordBatch) -> int:
    return int(record.column("timestamp").cast(pa.int64())[0].as_py())
