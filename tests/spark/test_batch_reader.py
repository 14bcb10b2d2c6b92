"""Which records a batch read has, as Spark calls the source, without Spark: offsets and times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

import lakebed
from lakebed.errors import (
    DataLossError,
    InvalidArgumentError,
    LakebedError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
)
from lakebed.spark.connection import connect
from lakebed.spark.options import source_options
from lakebed.spark.serving import url_of
from lakebed.spark.source import BatchReader
from lakebed.spark.topics import schema_of


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    """A log with the numbers to 20 in turn in two partitions, each a second after the last."""
    with lakebed.open(tmp_path / "log") as opened:
        opened.create_topic("raw", 2)
        for number in range(20):
            when = datetime.fromtimestamp(number, UTC)
            opened.append("raw", b"%d" % number, partition=number % 2, timestamp=when)
            if number == 9:
                opened.checkpoint()
        yield opened


def reader(log: lakebed.Log, **given: Any) -> BatchReader:
    texts = {name: str(value) for name, value in given.items()}
    options = source_options({"log": url_of(log), "topic": "raw", **texts}, streaming=False)
    return BatchReader(options, schema_of(connect(options.target), options))


def numbers(log: lakebed.Log, **given: Any) -> list[int]:
    source = reader(log, **given)
    return sorted(
        int(value)
        for part in source.partitions()
        for batch in source.read(part)
        for value in batch.column("value").to_pylist()
    )


def test_everything_is_read_unless_it_is_bounded(log: lakebed.Log) -> None:
    assert numbers(log) == list(range(20))
    start = json.dumps({"raw": {"0": 3, "1": -2}})
    until = json.dumps({"raw": {"0": 8, "1": 2}})
    assert numbers(log, startingOffsets=start, endingOffsets=until) == [1, 3, 6, 8, 10, 12, 14]
    assert numbers(log, startingOffsets='{"raw": {"0": -1}}') == list(range(1, 20, 2))
    assert numbers(log, endingOffsets='{"raw": {"0": -2}}') == list(range(1, 20, 2))
    assert numbers(log, startingOffsets="latest") == []
    assert numbers(log, endingOffsets="earliest") == []


def test_a_range_with_both_ends_stays_the_same_when_partitions_are_added(log: lakebed.Log) -> None:
    log.add_partitions("raw", 3)
    log.append("raw", b"20", partition=2)
    chunks = [("0", 0, 5), ("0", 5, 10)]
    found = [
        numbers(
            log,
            startingOffsets=json.dumps({"raw": {part: start}}),
            endingOffsets=json.dumps({"raw": {part: until}}),
        )
        for part, start, until in chunks
    ]
    assert found == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]
    only_end = {"startingOffsets": '{"raw": {}}', "endingOffsets": '{"raw": {"2": -1}}'}
    assert numbers(log, **only_end) == [20]


def test_times_bound_what_is_read(log: lakebed.Log) -> None:
    until = "1970-01-01T00:00:12Z"
    assert numbers(log, startingTimestamp=5000, endingTimestamp=until) == list(range(5, 12))
    assert numbers(log, startingTimestamp="2100-01-01") == []


def test_as_many_tasks_read_as_are_asked_for(log: lakebed.Log) -> None:
    assert len(reader(log).partitions()) == 1
    assert len(reader(log, minPartitions=9).partitions()) >= 9
    assert numbers(log, minPartitions=100) == list(range(20))


def test_a_task_without_a_piece_reads_nothing(log: lakebed.Log) -> None:
    assert list(reader(log).read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"startingOffsets": '{"raw": {"0": 11}}'}, OffsetOutOfRangeError, "beyond the end"),
        ({"startingOffsets": '{"raw": {"7": 0}}'}, PartitionNotFoundError, "partition=7"),
        ({"endingOffsets": '{"raw": {"0": 11}}'}, DataLossError, "to_offset=11 end=10"),
        ({"endingOffsets": '{"row": {"0": 1}}'}, InvalidArgumentError, "that is not read"),
    ],
)
def test_offsets_that_there_are_not_are_refused(
    log: lakebed.Log, given: dict[str, str], kind: type[LakebedError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        numbers(log, **given)


def test_what_is_gone_is_told_or_left_out(log: lakebed.Log) -> None:
    log.purge_topic("raw")
    log.append("raw", b"20", partition=0)
    first = '{"raw": {"0": 0, "1": 0}}'
    with pytest.raises(DataLossError, match="partition=0 from_offset=0 to_offset=10 low=10"):
        numbers(log, startingOffsets=first)
    assert numbers(log, startingOffsets=first, failOnDataLoss=False) == [20]
    assert numbers(log) == [20]
    start = '{"raw": {"0": -2, "1": 0}}'  # of a partition that is not wanted nothing is missed
    until = '{"raw": {"0": -1, "1": 0}}'
    assert numbers(log, startingOffsets=start, endingOffsets=until) == [20]
    more = '{"raw": {"0": 99}}'
    assert numbers(log, endingOffsets=more, failOnDataLoss=False) == [20]
