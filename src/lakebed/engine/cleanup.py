"""Retention, merging and compaction: what is removed or rewritten, on schedule and on call.

The plans are pure (`topic/retention.py`, `topic/compaction.py`); how segments are rewritten is in
`engine/rewriting.py`.

Each topic, and each of its partitions, is cleaned up separately: one with a damaged segment does
not keep the others from retention and compaction. What fails is counted by topic, logged, and tried
again at the next cleanup. A topic that is deleted or purged during a cleanup is not a failure: its
segments are gone because the log has dropped them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lakebed.config import TopicConfig, stored_config
from lakebed.engine.checkpoint import Checkpointer
from lakebed.engine.cleanup_failures import CleanupFailures
from lakebed.engine.compaction import holds_of
from lakebed.engine.core import Core, Key
from lakebed.engine.rewriting import Rewriting
from lakebed.errors import ClosedError, LakebedError, PoisonedError, translate_os_errors
from lakebed.host import failpoints
from lakebed.lake.segment_reader import SegmentReader
from lakebed.reports.maintenance import CleanupReport
from lakebed.state.commands import Command, ReplaceSegments, Trim
from lakebed.state.values import Partition, Segment, Topic
from lakebed.topic.compaction import keep, surviving, with_tombstones
from lakebed.topic.retention import plan_compaction, plan_merge, plan_retention

_log = logging.getLogger("lakebed.engine")

_TRIMMED = failpoints.define("engine.retention.logged")


class Cleanup:
    """Acts on plans. One thread at a time."""

    def __init__(
        self,
        *,
        core: Core,
        reader: SegmentReader,
        rewriting: Rewriting,
        checkpointer: Checkpointer,
        submit: Callable[[Command], Any],
    ) -> None:
        self._core = core
        self._reader = reader
        self._rewriting = rewriting
        self._checkpointer = checkpointer
        self._submit = submit
        self.failures = CleanupFailures()

    def run(self, topics: list[Topic]) -> CleanupReport:
        """Do everything that is due for these topics; each error is in the report."""
        report = CleanupReport()
        for topic in topics:
            error = self._clean(topic.id, report)
            if error is None:
                self.failures.clear(topic.id)
            else:
                report.errors[topic.name] = error
                is_new = self.failures.add(topic.id, topic.name, error)
                level = logging.ERROR if is_new else logging.DEBUG
                _log.log(level, "cleaning up failed, and is tried again: %s", error)
        with translate_os_errors("cleaning up", self._core.staging.folder.parent):
            self._checkpointer.remove_dropped()
        return report

    def _clean(self, topic_id: int, report: CleanupReport) -> LakebedError | None:
        """Clean up a topic; return the first error, after trying every partition."""
        topic = self._core.topic(topic_id)
        if topic is None:
            return None  # deleted since it was asked for
        config = stored_config(topic.config)
        failure = self._attempt(topic, partial(self._retain, topic, config, report))
        holds = holds_of(self._core, topic, config, self._core.clock.time_us())
        for partition in range(topic.partitions):
            hold = holds.get(partition)
            compact = partial(self._compact, topic, partition, config, hold, report)
            merge = partial(self._merge, topic, partition, config, report)
            error = self._attempt(topic, compact) or self._attempt(topic, merge)
            failure = failure or error
        return failure

    def _attempt(self, topic: Topic, act: Callable[[], None]) -> LakebedError | None:
        """Do a part of the work; return why it failed."""
        try:
            with translate_os_errors("cleaning up", self._core.staging.folder.parent):
                act()
        except (ClosedError, PoisonedError):
            raise  # it would be the same for every other part
        except LakebedError as error:
            return None if self._core.topic(topic.id) is None else error
        except Exception as error:  # a defect in the work on one topic
            _log.exception("cleaning up failed: topic=%s", topic.name)
            return LakebedError(f"cleaning up failed: {type(error).__name__}: {error}")
        return None

    @contextlib.contextmanager
    def _unless_dropped(self, key: Key, segments: Sequence[Segment]) -> Iterator[None]:
        """Ignore an error of the block if the log has dropped the segments it works on meanwhile.

        The entry that drops a segment is applied before its file goes, so a file that is missing
        while the log still names it is damage.
        """
        try:
            yield
        except LakebedError as error:
            partition = self._partition(key)
            there = set() if partition is None else {segment.id for segment in partition.segments}
            if there.issuperset(segment.id for segment in segments):
                raise
            _log.info("segments were dropped while they were rewritten: %s", error)

    # Retention

    def _retain(self, topic: Topic, config: TopicConfig, report: CleanupReport) -> None:
        lows: list[tuple[int, int]] = []
        now_us = self._core.clock.time_us()
        for partition_id in range(topic.partitions):
            partition = self._partition((topic.id, partition_id))
            if partition is None or not partition.segments:
                continue
            low = plan_retention(partition.segments, config, low=partition.low, now_us=now_us)
            if low > partition.low:
                lows.append((partition_id, low))
                report.records_removed += low - partition.low
                gone = [segment for segment in partition.segments if segment.end <= low]
                report.segments_removed += len(gone)
                for segment in gone:
                    self._reader.forget(segment.id)
        if lows:
            self._submit(Trim(topic.id, tuple(lows)))
            _TRIMMED.hit()

    # Compaction by key

    def _compact(
        self,
        topic: Topic,
        partition_id: int,
        config: TopicConfig,
        hold: int | None,
        report: CleanupReport,
    ) -> None:
        key = (topic.id, partition_id)
        partition = self._partition(key)
        if partition is None:
            return
        now_us = self._core.clock.time_us()
        old = plan_compaction(
            partition.segments,
            config,
            compacted_to=partition.compacted_to,
            now_us=now_us,
            hold=hold,
        )
        if not old:
            return
        with self._unless_dropped(key, old):
            self._compact_segments(topic, key, config, old, now_us, report)

    def _compact_segments(
        self,
        topic: Topic,
        key: Key,
        config: TopicConfig,
        old: list[Segment],
        now_us: int,
        report: CleanupReport,
    ) -> None:
        tombstone_before_us = now_us - config.tombstone_retention_ms * 1000
        survivors = surviving(self._keys(key, old, tombstone_before_us), tombstone_before_us)
        before = sum(segment.records for segment in old)
        replaced: list[Segment] = []
        new: list[Segment] = []
        if len(survivors) < before:
            replaced = old
        if replaced and len(survivors):
            batches = (keep(batch, survivors) for batch in self._rewriting.scan(topic, key, old))
            new = [self._rewritten(topic, key, old, batches)]
        removed = tuple(segment.id for segment in replaced)
        if self._rewriting.replace(
            ReplaceSegments(*key, removed, tuple(new), old[-1].end), replaced
        ):
            report.segments_compacted += len(replaced)
            report.records_compacted += before - len(survivors)

    def _keys(
        self, key: Key, segments: list[Segment], tombstone_before_us: int
    ) -> Iterator[pa.RecordBatch]:
        """Return what compaction decides on; values are read where tombstones may go."""
        for segment in segments:
            if segment.time_min_us >= tombstone_before_us:
                yield from self._reader.scan(*key, segment, columns=["offset", "key"])
                continue
            for batch in self._reader.scan(
                *key, segment, columns=["offset", "timestamp", "key", "value"]
            ):
                yield with_tombstones(batch)

    # Merging

    def _merge(
        self, topic: Topic, partition_id: int, config: TopicConfig, report: CleanupReport
    ) -> None:
        key = (topic.id, partition_id)
        partition = self._partition(key)
        if partition is None:
            return
        for old in plan_merge(partition.segments, config):
            with self._unless_dropped(key, old):
                new = self._rewritten(topic, key, old, self._rewriting.scan(topic, key, old))
                command = ReplaceSegments(*key, tuple(segment.id for segment in old), (new,), 0)
                if self._rewriting.replace(command, old):
                    report.segments_merged += len(old)

    def _rewritten(
        self, topic: Topic, key: Key, old: list[Segment], batches: Iterable[pa.RecordBatch]
    ) -> Segment:
        """Write one segment that stands for several."""
        return self._rewriting.write(topic, key, batches, base=old[0].base, end=old[-1].end)

    def _partition(self, key: Key) -> Partition | None:
        return self._core.state.partitions.get(key)
