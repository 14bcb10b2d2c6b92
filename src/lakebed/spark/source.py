"""`format("lakebed")`: a topic, or several, as a Spark source and sink.

Spark creates these objects in separate processes, and often: constructors only keep their
arguments. What crosses a process boundary is pickled by Spark, so it is plain data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakebed.spark.connection import connect, reachable
from lakebed.spark.fetch import Fetch
from lakebed.spark.options import SourceOptions, Target, sink_options, source_options
from lakebed.spark.planning import ScanPiece, pieces, shares
from lakebed.spark.topics import (
    TopicHandle,
    check_starts,
    check_topics_read,
    existing_ranges,
    find,
    resolve_offsets,
    schema_of,
    select_partitions,
)
from lakebed.spark.types import check_projection

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceWriter

    from lakebed.spark.sink import StreamWriter


class LakebedSource(DataSource):
    """Topics of a log, for `spark.read`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "lakebed"

    def schema(self) -> StructType:
        """Return the columns of the topics."""
        options = source_options(self.options)
        return schema_of(connect(options.target), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of what the topics hold now."""
        return BatchReader(source_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """Return a reader of a stream."""
        from lakebed.spark.stream import StreamReader

        return StreamReader(source_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of one DataFrame."""
        from lakebed.spark.sink import BatchWriter

        return BatchWriter(sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802  # Spark's
        self,
        schema: StructType,
        overwrite: bool,
    ) -> StreamWriter:
        """Return a writer of micro-batches."""
        from lakebed.spark.sink import StreamWriter

        return StreamWriter(sink_options(self.options), schema, overwrite=overwrite)


class Share(InputPartition):
    """The pieces of a task, as Spark hands them to it."""

    def __init__(self, target: Target, pieces: tuple[ScanPiece, ...]) -> None:
        super().__init__(pieces)
        self.target = target


class BatchReader(DataSourceReader):
    """Reads the topics as they are when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        options = self._options
        target = reachable(options.target)
        log = connect(target)
        check_projection(self._schema, schema_of(log, options))
        topics = find(log, options)
        check_topics_read(options.starting, topics, "startingOffsets")
        check_topics_read(options.ending, topics, "endingOffsets")
        planned_pieces: list[ScanPiece] = []
        for topic in topics:
            starts = resolve_offsets(
                log, topic, options.starting, options.starting_us, otherwise="earliest"
            )
            ends = resolve_offsets(
                log, topic, options.ending, options.ending_us, otherwise="latest"
            )
            chosen = select_partitions(topic, options.starting, options.ending)
            check_starts(chosen, starts)
            ranges = existing_ranges(
                chosen, starts, ends, fail_on_data_loss=options.fail_on_data_loss
            )
            planned_pieces += plan_pieces(log, topic, ranges)
        return tasks(target, planned_pieces, options)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of a share; Spark passes something else if there are none."""
        return read_share(partition, self._schema, self._options)


def plan_pieces(
    log: Any, topic: TopicHandle, ranges: dict[int, tuple[int, int]]
) -> list[ScanPiece]:
    """Ask the log where ranges of a topic are, and cut them into pieces."""
    if not ranges:
        return []
    plan = log.table(topic.name).plan(
        partitions=sorted(ranges),
        start={partition: start for partition, (start, _) in ranges.items()},
        until={partition: until for partition, (_, until) in ranges.items()},
    )
    return pieces(plan, topic.id, ranges)


def tasks(target: Target, pieces: list[ScanPiece], options: SourceOptions) -> list[InputPartition]:
    """Plan the tasks that read pieces, for as many cores as the driver has."""
    shared = shares(pieces, at_least=options.min_partitions or 1, cores=os.cpu_count() or 1)
    return [Share(target, share) for share in shared]


def read_share(share: Any, schema: StructType, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's share."""
    if not isinstance(share, Share):
        return  # Spark's placeholder when there is nothing to read
    fetch = Fetch(share.target, schema, fail_on_data_loss=options.fail_on_data_loss)
    for piece in share.value:
        yield from fetch.batches(piece)
