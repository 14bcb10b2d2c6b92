"""Rewrites segments so that only the survivors of a compaction are left, verified before the swap.

1. look through offsets and keys of the old segments: whatever cannot be right is refused here
2. write the new segments, each of about `segment_bytes`, synced
3. read them again: every checksum, every offset, every key
4. one entry swaps all of them; the old files go the ordinary way

Up to 4 nothing is changed, and what was written is removed again if anything fails. Memory is the
survivors' bits, a row group, and in step 3 the keys of one new segment: that no key survives twice
is checked for each new segment.

What cannot be seen without holding every key is believed: that a record which is dropped has a
later one of its key, or is a tombstone that may go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.api.arguments import check_segments
from lakebed.config import TopicConfig
from lakebed.engine.checkpoint import Checkpointer
from lakebed.engine.compaction import check_compaction, holds_of
from lakebed.engine.core import Core, Key
from lakebed.engine.rewriting import Rewriting
from lakebed.errors import (
    CorruptionError,
    MissingFileError,
    StalePlanError,
    SurvivorsError,
    translate_os_errors,
)
from lakebed.host import failpoints
from lakebed.lake.columns import column_numbers
from lakebed.lake.segment_reader import SegmentReader
from lakebed.reports.maintenance import RewriteReport
from lakebed.state.commands import ReplaceSegments
from lakebed.state.values import Partition, Segment, Topic
from lakebed.topic.compaction import count_repeated_keys
from lakebed.topic.retention import compactable, plan_merge
from lakebed.topic.survivors import Offsets, Survivors

_VERIFIED = failpoints.define("engine.rewrite.verified")


@dataclass
class _Look:
    """What the old segments hold, measured against the survivors."""

    kept: int = 0
    dropped: int = 0
    keyless_dropped: int = 0
    tombstones_dropped: int = 0
    cuts: list[int] = field(default_factory=list)
    """Offsets at which another new segment begins."""


class CompactionRewrite:
    """Acts on survivors. One thread at a time, and none that cleans up meanwhile."""

    def __init__(
        self, *, core: Core, reader: SegmentReader, rewriting: Rewriting, checkpointer: Checkpointer
    ) -> None:
        self._core = core
        self._reader = reader
        self._rewriting = rewriting
        self._checkpointer = checkpointer

    def rewrite(self, key: Key, segments: Sequence[int], survivors: bytes) -> RewriteReport:
        """Let the survivors alone stand for a run of segments."""
        with translate_os_errors("rewriting segments", self._core.staging.folder.parent):
            topic = self._core.topic(key[0])
            if topic is None:
                raise _stale(key, "the topic is gone")
            return self._rewrite(topic, key, check_segments(segments), survivors)

    def _rewrite(
        self, topic: Topic, key: Key, segments: tuple[int, ...], packed: bytes
    ) -> RewriteReport:
        config = check_compaction(topic)
        partition = self._partition(key)
        old = _run(key, partition, segments)
        survivors = Survivors.unpack(packed, base=old[0].base, end=old[-1].end)
        from_start = _is_compacted_before(partition, old[0])
        try:
            look = self._look(key, old, survivors, config, with_values=not from_start)
            self._check(topic, key, old, survivors, look)
            replaced = old if look.dropped or plan_merge(old, config) else []
            new = self._write(topic, key, replaced, survivors, look) if replaced else []
        except MissingFileError:
            _run(key, self._partition(key), segments)  # tells if they went meanwhile
            raise
        compacted_to = old[-1].end if from_start else 0
        self._swap(key, replaced, new, compacted_to)
        return RewriteReport(
            topic=topic.name,
            partition=key[1],
            records_kept=look.kept,
            records_dropped=look.dropped,
            segments_removed=len(replaced),
            segments_written=len(new),
            bytes_removed=sum(segment.file_bytes for segment in replaced),
            bytes_written=sum(segment.file_bytes for segment in new),
            compacted_to=self._partition(key).compacted_to,
        )

    # Before anything is written

    def _look(
        self,
        key: Key,
        old: Sequence[Segment],
        survivors: Survivors,
        config: TopicConfig,
        *,
        with_values: bool,
    ) -> _Look:
        look = _Look()
        cutter = _Cutter(config.segment_bytes, look.cuts)
        columns = ["offset", "key", *(["value"] if with_values else [])]
        for segment in old:
            for batch in self._reader.scan(*key, segment, columns=columns):
                offsets = column_numbers(batch, "offset")
                chosen = survivors.contain(offsets)
                kept = int(np.count_nonzero(chosen))
                look.kept += kept
                look.dropped += len(offsets) - kept
                look.keyless_dropped += _nulls(batch.column("key"), ~chosen)
                if with_values:
                    look.tombstones_dropped += _nulls(batch.column("value"), ~chosen)
                cutter.add(offsets[chosen], segment.file_bytes / segment.records)
        return look

    def _check(
        self, topic: Topic, key: Key, old: Sequence[Segment], survivors: Survivors, look: _Look
    ) -> None:
        facts = {"topic": topic.name, "partition": key[1]}
        count = survivors.count()
        if count != look.kept:
            raise SurvivorsError(
                "survivors have no record", **facts, survivors=count, found=look.kept
            )
        if look.keyless_dropped:
            raise SurvivorsError(
                "records without a key would be dropped", **facts, records=look.keyless_dropped
            )
        if look.tombstones_dropped:
            raise SurvivorsError(
                "tombstones would be dropped before what they delete: rewrite the segments before"
                " these first",
                **facts,
                records=look.tombstones_dropped,
            )
        if look.dropped:
            self._check_bounds(topic, key, old)

    def _check_bounds(self, topic: Topic, key: Key, old: Sequence[Segment]) -> None:
        """Refuse what is held or too young by now, whatever it was when it was planned."""
        config = check_compaction(topic)
        now_us = self._core.clock.time_us()
        hold = holds_of(self._core, topic, config, now_us).get(key[1])
        segments = self._partition(key).segments
        settled = compactable(segments, config, now_us=now_us, hold=hold)
        if not settled or settled[-1].end < old[-1].end:
            raise _stale(key, "a group holds the segments, or they are too young", hold=hold)

    # Writing

    def _write(
        self,
        topic: Topic,
        key: Key,
        old: Sequence[Segment],
        survivors: Survivors,
        look: _Look,
    ) -> list[Segment]:
        """Write what survives, and verify it; if anything fails, no file of it stays."""
        if not look.kept:
            return []
        new: list[Segment] = []
        pieces = _Pieces(self._surviving(topic, key, old, survivors))
        bases = [old[0].base, *look.cuts]
        ends = [*look.cuts, old[-1].end]
        try:
            for base, end in zip(bases, ends, strict=True):
                new.append(self._rewriting.write(topic, key, pieces.until(end), base=base, end=end))
            self._verify(key, new, survivors)
            _VERIFIED.hit()
        except BaseException:
            self._rewriting.discard(key, new)
            raise
        return new

    def _surviving(
        self, topic: Topic, key: Key, old: Sequence[Segment], survivors: Survivors
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._rewriting.scan(topic, key, old):
            chosen = survivors.contain(column_numbers(batch, "offset"))
            yield batch if chosen.all() else batch.filter(pa.array(chosen))

    def _verify(self, key: Key, new: Sequence[Segment], survivors: Survivors) -> None:
        """Read new segments from the disk: every byte is right, and they hold the survivors."""
        for segment in new:
            self._reader.verify(*key, segment)
            survived, repeated = self._reread(key, segment, survivors)
            expected = survivors.between(segment.base, segment.end)
            if survived != expected or segment.records != expected:
                raise CorruptionError(
                    "a segment just written does not hold what survives",
                    segment=segment.id,
                    expected=expected,
                    found=survived,
                )
            if repeated:
                raise SurvivorsError(
                    "a key survives more than once", partition=key[1], records=repeated
                )

    def _reread(self, key: Key, segment: Segment, survivors: Survivors) -> tuple[int, int]:
        """Return how many survivors a segment holds, and how many too many there are of its keys.

        That its offsets ascend is known by now, so that as many as expected are those expected.
        """
        survived = 0
        keys: list[Any] = []
        for batch in self._reader.scan(*key, segment, columns=["offset", "key"]):
            survived += int(np.count_nonzero(survivors.contain(column_numbers(batch, "offset"))))
            keys.append(batch.column("key"))
        return survived, count_repeated_keys(keys)

    def _swap(
        self, key: Key, old: Sequence[Segment], new: Sequence[Segment], compacted_to: int
    ) -> None:
        removed = tuple(segment.id for segment in old)
        command = ReplaceSegments(*key, removed, tuple(new), compacted_to)
        swapped = self._rewriting.replace(command, old)
        self._checkpointer.remove_dropped()
        if not swapped:
            raise _stale(key, "the segments were removed in the meantime")

    def _partition(self, key: Key) -> Partition:
        return self._core.partition(key) or Partition()


class _Cutter:
    """Finds where new segments begin: they are as large as the old ones' records let expect."""

    def __init__(self, segment_bytes: int, cuts: list[int]) -> None:
        self._segment_bytes = segment_bytes
        self._cuts = cuts
        self._size = 0.0

    def add(self, offsets: Offsets, row_bytes: float) -> None:
        """Take the next offsets that survive, each of about so many bytes."""
        row = 0
        while row < len(offsets):
            if self._size >= self._segment_bytes:
                self._cuts.append(int(offsets[row]))
                self._size = 0.0
            room = math.ceil((self._segment_bytes - self._size) / row_bytes)
            taken = min(room, len(offsets) - row)
            self._size += taken * row_bytes
            row += taken


class _Pieces:
    """A stream of batches, handed out up to one offset after the other."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._rest: pa.RecordBatch | None = None

    def until(self, end: int) -> Iterator[pa.RecordBatch]:
        """Return what comes next, up to offset `end`."""
        while (batch := self._next()) is not None:
            count = int(np.searchsorted(column_numbers(batch, "offset"), end))
            if count:
                yield batch.slice(0, count)
            if count < batch.num_rows:
                self._rest = batch.slice(count)
                return

    def _next(self) -> pa.RecordBatch | None:
        rest, self._rest = self._rest, None
        return next(self._batches, None) if rest is None else rest


def _run(key: Key, partition: Partition, segments: tuple[int, ...]) -> list[Segment]:
    """Find segments that stand one behind the other in a partition, as it is now."""
    ids = [segment.id for segment in partition.segments]
    first = ids.index(segments[0]) if segments[0] in ids else len(ids)
    run = partition.segments[first : first + len(segments)]
    if tuple(segment.id for segment in run) != segments:
        there = set(ids)
        gone = sum(segment_id not in there for segment_id in segments)
        raise _stale(
            key, "the segments are not there in this order", segments=len(segments), gone=gone
        )
    return list(run)


def _is_compacted_before(partition: Partition, segment: Segment) -> bool:
    """Return whether compaction has come to a segment, or it is the first."""
    before = [earlier for earlier in partition.segments if earlier.end <= segment.base]
    return not before or before[-1].end <= partition.compacted_to


def _nulls(column: Any, among: Any) -> int:
    """Count nulls among some rows of a column."""
    if not column.null_count:
        return 0
    return int(np.count_nonzero(np.asarray(pc.is_null(column)) & among))


def _stale(key: Key, reason: str, **facts: object) -> StalePlanError:
    return StalePlanError(
        f"the plan is out of date: {reason}", topic=key[0], partition=key[1], **facts
    )
