"""The streaming source: which offsets the next micro-batch reads, and the tasks that read them.

A micro-batch is a range of offsets, and reading it again gives the same records: offsets are never
given twice, records do not change when they move from memory to files, and the consumer group of
the query keeps compaction from what the query has not finished. Records that retention has removed
are an error, unless the options allow it.

Spark reports to a source neither that a batch is done (`commit` comes one batch late, and not for
the last) nor that the query has ended, so nothing here depends on it: a batch that begins at an
offset implies that everything below is done.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from lakebed.errors import DataLossError, LakebedError
from lakebed.spark.admission_limits import limit_ends
from lakebed.spark.connection import connect, reachable
from lakebed.spark.fetch import data_loss
from lakebed.spark.offsets import Position, position
from lakebed.spark.options import SourceOptions
from lakebed.spark.planning import ScanPiece
from lakebed.spark.source import plan_pieces, read_share, tasks
from lakebed.spark.topics import (
    TopicHandle,
    check_starts,
    check_topics_read,
    existing_ranges,
    find,
    resolve_offsets,
    schema_of,
)
from lakebed.spark.types import check_projection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from lakebed.client.log import RemoteLog

_log = logging.getLogger("lakebed.spark")

_SHOWN_SECONDS: Final = 600.0
"""How often unchanged progress is committed again: a group that is silent for long no longer holds
compaction back.
"""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream. Spark makes several readers for a query; they share nothing."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._final: dict[str, dict[int, int]] | None = None
        """With the trigger AvailableNow: the ends that the query stops at."""
        self._shown: Mapping[tuple[str, int], int] = {}
        """The offsets that the group has committed last."""
        self._shown_at = 0.0
        """When that was, by the monotonic clock."""

    # Offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's
        """Return the position at which a new query begins."""
        options = self._options
        log = self._log()
        check_projection(self._schema, schema_of(log, options))
        topics = find(log, options)
        check_topics_read(options.starting, topics, "startingOffsets")
        starts = {
            topic.name: resolve_offsets(
                log, topic, options.starting, options.starting_us, otherwise="earliest"
            )
            for topic in topics
        }
        for topic in topics:
            ends = {partition: end for partition, (_, end) in topic.bounds.items()}
            check_starts(topic, starts[topic.name])
            existing_ranges(
                topic, starts[topic.name], ends, fail_on_data_loss=options.fail_on_data_loss
            )
        group = options.group or f"spark-{uuid.uuid4().hex}"
        return Position(group, {topic.name: topic.id for topic in topics}, starts).document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's
        """Return how much a micro-batch reads."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's
        """Fix the end of a query that reads what there is now, in as many batches as it takes."""
        self._final = {
            topic.name: {partition: end for partition, (_, end) in topic.bounds.items()}
            for topic in find(self._log(), self._options, missing=self._names())
        }

    def latestOffset(self, start: Any, limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  # Spark's
        """Return the position at which the next micro-batch ends."""
        before = position(start)
        log = self._log()
        topics = find(log, self._options, missing=before.ids)
        begun = self._check_position(self._living(before, topics), topics)
        self._show_progress(log, begun, topics)
        ends = self._ends(begun, topics)
        if not isinstance(limit, ReadAllAvailable):
            ends = limit_ends(log, topics, begun.offsets, ends, _rows(limit), None)
        if self._options.max_bytes is not None:
            ends = limit_ends(log, topics, begun.offsets, ends, None, self._options.max_bytes)
        ids = dict(begun.ids) | {topic.name: topic.id for topic in topics}
        return Position(begun.group, ids, ends).document()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's
        """Return the ends of the topics, for the query's progress."""
        topics = find(self._log(), self._options, missing=self._names())
        ends = {
            topic.name: {partition: end for partition, (_, end) in topic.bounds.items()}
            for topic in topics
        }
        return Position("", {topic.name: topic.id for topic in topics}, ends).document()

    # Reading

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        """Plan the tasks of a micro-batch."""
        options = self._options
        first, last = position(start), position(end)
        target = reachable(options.target)
        log = connect(target, patient=True)
        planned_pieces: list[ScanPiece] = []
        for topic in self._of(log, last):
            same = first.ids.get(topic.name) == topic.id
            starts = first.offsets.get(topic.name, {}) if same else {}
            ends = last.offsets[topic.name]
            readable = TopicHandle(
                topic.name,
                topic.id,
                {
                    partition: topic.bounds[partition]
                    for partition in ends
                    if partition in topic.bounds
                },
            )
            ranges = existing_ranges(
                readable,
                {partition: starts.get(partition, 0) for partition in ends},
                ends,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            planned_pieces += plan_pieces(log, topic, ranges)
        return tasks(target, planned_pieces, options)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of a share."""
        return read_share(partition, self._schema, self._options)

    def commit(self, end: Any) -> None:
        """Do nothing: see the module's docstring."""

    def stop(self) -> None:
        """Do nothing: see the module's docstring."""

    # Inside

    def _log(self) -> RemoteLog:
        return connect(self._options.target, patient=True)

    def _names(self) -> Container[str | None]:
        """Return the names of the topics, any of which may be missing."""
        return (self._options.topic, *self._options.subscribe)

    def _ends(self, begun: Position, topics: list[TopicHandle]) -> dict[str, dict[int, int]]:
        """Return the current ends, none of them before the batch begins."""
        ends: dict[str, dict[int, int]] = {
            name: dict(offsets) for name, offsets in begun.offsets.items()
        }
        for topic in topics:
            topic_ends = ends.setdefault(topic.name, {})
            for partition, (low, end) in topic.bounds.items():
                final = end
                if self._final is not None:
                    final = self._final.get(topic.name, {}).get(partition, low)
                topic_ends[partition] = max(topic_ends.get(partition, 0), min(end, final))
        return ends

    def _living(self, begun: Position, topics: list[TopicHandle]) -> Position:
        """Return a position without the topics that are gone, or are others of the same name.

        A missing topic is an error, unless the options allow it; one that was created again is then
        read from its beginning.
        """
        now = {topic.name: topic.id for topic in topics}
        gone = [name for name, topic_id in begun.ids.items() if now.get(name) != topic_id]
        for name in gone:
            lost = DataLossError(
                "a topic that is being read was deleted",
                topic=name,
                topic_was="deleted and created again" if name in now else "deleted",
            )
            if self._options.fail_on_data_loss:
                raise lost
            _log.warning("records are left out: %s", lost)
        return Position(
            begun.group,
            {name: topic_id for name, topic_id in begun.ids.items() if name not in gone},
            {name: parts for name, parts in begun.offsets.items() if name not in gone},
        )

    def _check_position(self, begun: Position, topics: list[TopicHandle]) -> Position:
        """Return a position that is not beyond the ends of the topics.

        A position beyond an end means that the log was restored from an older backup: records that
        are written there now have not been read, whatever their offsets are.
        """
        offsets = {name: dict(parts) for name, parts in begun.offsets.items()}
        for topic in topics:
            for partition, (_, end) in topic.bounds.items():
                next_offset = offsets.get(topic.name, {}).get(partition, 0)
                if next_offset <= end:
                    continue
                lost = data_loss(topic.name, partition, start=end, until=next_offset, end=end)
                if self._options.fail_on_data_loss:
                    raise lost
                _log.warning("the log has less than was read from it: %s", lost)
                offsets[topic.name][partition] = end
        return Position(begun.group, begun.ids, offsets)

    def _of(self, log: RemoteLog, last: Position) -> list[TopicHandle]:
        """Return the topics of a batch as they are now."""
        topics = find(log, self._options, missing=last.ids)
        living = self._living(last, topics)
        return [topic for topic in topics if topic.name in living.offsets]

    def _show_progress(self, log: RemoteLog, begun: Position, topics: list[TopicHandle]) -> None:
        """Commit to the query's group what is done: everything below the next batch.

        A caller that may only read cannot commit: an error only if the options name the group.
        """
        done = {
            (topic.name, partition): begun.offsets.get(topic.name, {}).get(partition, low)
            for topic in topics
            for partition, (low, _) in topic.bounds.items()
        }
        now = time.monotonic()
        if not done or (done == self._shown and now - self._shown_at < _SHOWN_SECONDS):
            return
        try:
            log.commit_offsets(begun.group, done)
        except LakebedError as error:
            if self._options.group is not None:
                raise
            _log.warning(
                "the query's progress cannot be shown, and does not hold compaction back:"
                " group=%s %s",
                begun.group,
                error,
            )
        self._shown, self._shown_at = done, now


def _rows(limit: ReadLimit) -> int | None:
    return limit.max_rows if isinstance(limit, ReadMaxRows) else None
