"""Compaction by key: Spark finds the records to keep, the log's owner rewrites the segments.

Partition by partition (small ones together) the records to keep are found and the segments are
rewritten and verified. Each rewrite is one atomic swap, so a job that is killed leaves partitions
that are compacted and others that are not yet; the next run plans what is left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lakebed.errors import StalePlanError
from lakebed.reports.maintenance import (
    CompactionPlan,
    PartitionCompaction,
    RewriteReport,
)
from lakebed.spark.failures import translate_failures
from lakebed.spark.jobs.progress import report_tasks
from lakebed.spark.jobs.survivors import BLOCK, Bits, first_block, survivors
from lakebed.spark.jobs.target import AnyLog, resolve_log
from lakebed.types import Progress, say_nothing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakebed.api.log import Log
    from lakebed.spark.options import Target

_TOGETHER_OFFSETS: Final = 1 << 30
"""The most offsets of partitions that are processed together: 128 MiB of bits."""
_CALL_OFFSETS: Final = 1 << 26
"""The most offsets of one call to the owner, if segments allow: 8 MiB of bits."""
_PLANS_MAX: Final = 3
"""How often the work is planned again because the log changed its segments concurrently."""


@dataclass(frozen=True)
class CompactReport:
    """What a compaction did."""

    topic: str
    partitions: int
    """Partitions that were due."""
    records_read: int
    records_dropped: int
    segments_removed: int
    segments_written: int
    bytes_removed: int
    bytes_written: int
    seconds_reading: float
    """How long it took to find the records to keep."""
    seconds_writing: float
    """How long it took to rewrite and verify segments."""


def compact(
    spark: SparkSession,
    log: AnyLog,
    topic: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> CompactReport:
    """Leave of each key the latest record only, and merge small files; offsets stay as they are.

    Records without a key stay. A tombstone stays for `tombstone_retention_ms`. What is younger than
    `compact_lag_ms`, or held by a group, is left alone, and so is a partition of which less than
    `compact_dirty_percent` is new, unless you `force` it.
    """
    owner, target = resolve_log(spark, log)
    run = _Compaction(
        spark, owner, target, topic, progress or say_nothing, watch=progress is not None
    )
    with translate_failures("compact", topic=topic):
        for attempt in range(1, _PLANS_MAX + 1):
            try:
                run.work(owner.plan_compaction(topic, force=force))
                break
            except StalePlanError:
                if attempt == _PLANS_MAX:
                    raise
    return run.report()


class _Compaction:
    """One run of the job, over as many plans as it takes."""

    def __init__(
        self,
        spark: SparkSession,
        owner: Log,
        target: Target,
        topic: str,
        progress: Progress,
        *,
        watch: bool,
    ) -> None:
        self._spark = spark
        self._owner = owner
        self._target = target
        self._topic = topic
        self._progress = progress
        self._watch = watch
        self._done: list[RewriteReport] = []
        self._partitions: set[int] = set()
        self._reading = self._writing = 0.0

    def work(self, plan: CompactionPlan) -> None:
        """Rewrite the partitions of a plan."""
        self._partitions |= {part.partition for part in plan.partitions}
        finished = 0
        for parts in _together(plan.partitions):
            bits = self._survivors(parts, plan.tombstone_before_us)
            for part in parts:
                self._rewrite(part, bits.pop(part.partition))
                finished += 1
                self._progress("rewriting partitions", finished, len(plan.partitions))

    def _survivors(
        self, parts: Sequence[PartitionCompaction], tombstone_before_us: int
    ) -> dict[int, Bits]:
        begun = time.monotonic()
        info = self._owner.describe_topic(self._topic)
        with report_tasks(
            self._spark, "finding survivors", self._progress if self._watch else None
        ):
            bits = survivors(self._spark, self._target, info, parts, tombstone_before_us)
        self._reading += time.monotonic() - begun
        return bits

    def _rewrite(self, part: PartitionCompaction, bits: Bits) -> None:
        begun = time.monotonic()
        for segments, base, end in _calls(part):
            packed = _pack(bits, first=first_block(part) << BLOCK, base=base, end=end)
            self._done.append(
                self._owner.rewrite_segments(self._topic, part.partition, segments, packed)
            )
        self._writing += time.monotonic() - begun

    def report(self) -> CompactReport:
        """Add up what was done."""
        done = self._done
        return CompactReport(
            topic=self._topic,
            partitions=len(self._partitions),
            records_read=sum(rewrite.records_kept + rewrite.records_dropped for rewrite in done),
            records_dropped=sum(rewrite.records_dropped for rewrite in done),
            segments_removed=sum(rewrite.segments_removed for rewrite in done),
            segments_written=sum(rewrite.segments_written for rewrite in done),
            bytes_removed=sum(rewrite.bytes_removed for rewrite in done),
            bytes_written=sum(rewrite.bytes_written for rewrite in done),
            seconds_reading=round(self._reading, 3),
            seconds_writing=round(self._writing, 3),
        )


def _together(parts: Sequence[PartitionCompaction]) -> Iterator[list[PartitionCompaction]]:
    """Yield groups of partitions that one set of queries reads; a large one is alone."""
    taken: list[PartitionCompaction] = []
    offsets = 0
    for part in parts:
        count = part.end - part.base
        if taken and offsets + count > _TOGETHER_OFFSETS:
            yield taken
            taken, offsets = [], 0
        taken.append(part)
        offsets += count
    if taken:
        yield taken


def _calls(part: PartitionCompaction) -> Iterator[tuple[list[int], int, int]]:
    """Yield runs of a partition's segments, with first offset and end, one for each call."""
    run: list[int] = []
    base = end = part.base
    for segment, file in zip(part.segments, part.files, strict=True):
        if run and file.until - base > _CALL_OFFSETS:
            yield run, base, end
            run, base = [], file.start
        run.append(segment)
        end = file.until
    yield run, base, part.end


def _pack(bits: Bits, *, first: int, base: int, end: int) -> bytes:
    """Return the bits from `base` to `end`, compressed; the first bit is of offset `first`."""
    around = bits[(base - first) >> 3 : (end - first + 7) >> 3]
    flags = np.unpackbits(around, bitorder="little")
    skipped = (base - first) & 7
    chosen = np.packbits(flags[skipped : skipped + end - base], bitorder="little")
    packed: bytes = pa.compress(chosen.tobytes(), codec="zstd", asbytes=True)
    return packed
