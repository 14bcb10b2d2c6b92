"""`format("lakebed")`: a topic, or several, as a Spark source and sink.

Spark makes these objects in processes of its own, and makes them often: constructors do nothing but
keep what they are given. What crosses a process is pickled by Spark, so it is plain data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lakebed.spark.connection import connected, reachable
from lakebed.spark.fetch import Fetch
from lakebed.spark.options import SourceOptions, Target, sink_options, source_options
from lakebed.spark.planning import Piece, pieces, shares
from lakebed.spark.topics import (
    TopicHandle,
    bounded,
    check_known,
    check_reached,
    find,
    named,
    resolved,
    schema_of,
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
        """Return what it is called in `format(...)`."""
        return "lakebed"

    def schema(self) -> StructType:
        """Return the columns of the topics."""
        options = source_options(self.options)
        return schema_of(connected(options.target), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read what there is now."""
        return BatchReader(source_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """Read on and on."""
        from lakebed.spark.stream import StreamReader

        return StreamReader(source_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Write once."""
        from lakebed.spark.sink import BatchWriter

        return BatchWriter(sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802  # Spark's
        self,
        schema: StructType,
        overwrite: bool,
    ) -> StreamWriter:
        """Write batch after batch."""
        from lakebed.spark.sink import StreamWriter

        return StreamWriter(sink_options(self.options), schema, overwrite=overwrite)


class Share(InputPartition):
    """The pieces of a task, as Spark hands them to it."""

    def __init__(self, target: Target, pieces: tuple[Piece, ...]) -> None:
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
        log = connected(target)
        check_projection(self._schema, schema_of(log, options))
        topics = find(log, options)
        check_known(options.starting, topics, "startingOffsets")
        check_known(options.ending, topics, "endingOffsets")
        found: list[Piece] = []
        for topic in topics:
            starts = resolved(
                log, topic, options.starting, options.starting_us, otherwise="earliest"
            )
            ends = resolved(log, topic, options.ending, options.ending_us, otherwise="latest")
            chosen = named(topic, options.starting, options.ending)
            check_reached(chosen, starts)
            ranges = bounded(chosen, starts, ends, fail_on_data_loss=options.fail_on_data_loss)
            found += planned(log, topic, ranges)
        return tasks(target, found, options)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read a share; without one there is nothing to read."""
        return read_share(partition, self._schema, self._options)


def planned(log: Any, topic: TopicHandle, ranges: dict[int, tuple[int, int]]) -> list[Piece]:
    """Find out where ranges of a topic are."""
    if not ranges:
        return []
    plan = log.table(topic.name).plan(
        partitions=sorted(ranges),
        start={number: start for number, (start, _) in ranges.items()},
        until={number: until for number, (_, until) in ranges.items()},
    )
    return pieces(plan, topic.id, ranges)


def tasks(target: Target, found: list[Piece], options: SourceOptions) -> list[InputPartition]:
    """Plan the tasks that read pieces, for as many cores as the driver has."""
    shared = shares(found, at_least=options.min_partitions or 1, cores=os.cpu_count() or 1)
    return [Share(target, each) for each in shared]


def read_share(share: Any, schema: StructType, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read what a task has been given."""
    if not isinstance(share, Share):
        return  # Spark makes one of its own when there is nothing to read
    fetch = Fetch(share.target, schema, fail_on_data_loss=options.fail_on_data_loss)
    for piece in share.value:
        yield from fetch.batches(piece)
