"""The streaming source as Spark calls it, without Spark: offsets, limits, progress, lost topics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import lakebed
from lakebed.errors import (
    DataLossError,
    LakebedError,
    OffsetOutOfRangeError,
    ServerUnavailableError,
    TopicNotFoundError,
)
from lakebed.spark import stream
from lakebed.spark.connection import connect
from lakebed.spark.options import source_options
from lakebed.spark.serving import url_of
from lakebed.spark.stream import StreamReader
from lakebed.spark.topics import schema_of
from tests.spark.support import fill

ALL = ReadAllAvailable()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    with lakebed.open(tmp_path / "log") as opened:
        opened.create_topic("in", 2)
        fill(opened, "in", 20)
        yield opened


def reader(log: lakebed.Log, **given: Any) -> StreamReader:
    named = {} if "subscribePattern" in given or "subscribe" in given else {"topic": "in"}
    texts = {name: str(value) for name, value in given.items()}
    options = source_options(
        {"log": url_of(log), "startingOffsets": "earliest", **named, **texts}, streaming=True
    )
    return StreamReader(options, schema_of(connect(options.target), options))


def read(source: StreamReader, start: Any, end: Any) -> list[bytes]:
    """Read a micro-batch."""
    return sorted(
        bytes(value)
        for part in source.partitions(start, end)
        for batch in source.read(part)
        for value in batch.column("value").to_pylist()
    )


def values(count: int, prefix: str = "v") -> list[bytes]:
    return sorted(f"{prefix}{number}".encode() for number in range(count))


def test_batches_within_a_limit_hold_each_record_once(log: lakebed.Log) -> None:
    source = reader(log, maxOffsetsPerTrigger=7)
    limit = source.getDefaultReadLimit()
    assert limit == ReadMaxRows(7)
    assert reader(log).getDefaultReadLimit() == ALL
    at, found = source.initialOffset(), []
    sizes = []
    while (end := source.latestOffset(at, limit)) != at:
        batch = read(source, at, end)
        assert read(reader(log), at, end) == batch, "another reader reads the same"
        sizes.append(len(batch))
        found += batch
        at = end
    assert sizes == [7, 7, 6]
    assert sorted(found) == values(20)
    assert source.reportLatestOffset()["offsets"] == at["offsets"]  # type: ignore[index]


def test_a_limit_of_bytes_is_kept_about(log: lakebed.Log) -> None:
    for _ in range(2):
        source = reader(log, maxBytesPerTrigger=1)
        start = source.initialOffset()
        assert len(read(source, start, source.latestOffset(start, ALL))) == 1
        source = reader(log, maxBytesPerTrigger=10**9)
        assert len(read(source, start, source.latestOffset(start, ALL))) == 20
        log.checkpoint()  # the same of files


def test_the_end_of_what_is_available_now_is_fixed_once(log: lakebed.Log) -> None:
    source = reader(log)
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    fill(log, "in", 5, prefix="later")
    log.add_partitions("in", 3)
    log.append_batch("in", [{"value": b"new"}], partition=2)
    end = source.latestOffset(start, ALL)
    assert read(source, start, end) == values(20)
    assert source.latestOffset(end, ALL) == end
    after = reader(log).latestOffset(end, ALL)
    assert read(reader(log), end, after) == sorted([*values(5, "later"), b"new"])


def test_progress_is_shown_as_a_groups(log: lakebed.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    source = reader(log, consumerGroup="billing")
    start = source.initialOffset()
    assert start["group"] == "billing"
    end = source.latestOffset(start, ALL)
    assert log.describe_group("billing").lag == 20
    source.latestOffset(end, ALL)
    assert log.describe_group("billing").lag == 0
    before = log.stats().applied_index
    source.latestOffset(end, ALL)
    assert log.stats().applied_index == before, "what has not changed is not said again"
    monkeypatch.setattr(stream, "_SHOWN_SECONDS", 0.0)
    source.latestOffset(end, ALL)
    assert log.stats().applied_index > before, "but after a while, so that the group is known"
    assert reader(log).initialOffset()["group"].startswith("spark-")


def test_progress_that_cannot_be_shown_is_an_error_only_if_it_was_asked_for(
    log: lakebed.Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ServerUnavailableError("refused")

    asked, other = reader(log, consumerGroup="billing"), reader(log)
    starts = asked.initialOffset(), other.initialOffset()
    monkeypatch.setattr(type(connect(asked._options.target)), "commit_offsets", refuse)
    with pytest.raises(LakebedError, match="refused"):
        asked.latestOffset(starts[0], ALL)
    with caplog.at_level(logging.WARNING, "lakebed.spark"):
        other.latestOffset(starts[1], ALL)
    assert "progress cannot be shown" in caplog.text


def test_a_topic_that_is_gone_stops_a_stream_unless_that_is_allowed(log: lakebed.Log) -> None:
    careful, easy = reader(log), reader(log, failOnDataLoss=False)
    start = careful.initialOffset()
    end = careful.latestOffset(start, ALL)
    log.delete_topic("in")
    for call in (lambda: careful.latestOffset(end, ALL), lambda: careful.partitions(start, end)):
        with pytest.raises(DataLossError, match="topic=in topic_was=deleted"):
            call()
    assert read(easy, start, end) == []
    without = easy.latestOffset(end, ALL)
    assert without["offsets"] == without["ids"] == {}
    with pytest.raises(TopicNotFoundError):
        careful.initialOffset()
    log.create_topic("in", 1)
    fill(log, "in", 3, prefix="new")
    for begun in (end, without):  # fewer records than the old one had, and read all the same
        assert read(easy, begun, easy.latestOffset(begun, ALL)) == values(3, "new")
    assert read(easy, start, end) == [], "a batch of the old one has nothing of the new one"
    with pytest.raises(DataLossError, match="deleted and created again"):
        careful.latestOffset(end, ALL)


def test_a_pattern_takes_up_and_lets_go_of_topics(log: lakebed.Log) -> None:
    source = reader(log, subscribePattern="i.*", failOnDataLoss=False)
    start = source.initialOffset()
    log.create_topic("into", 1)
    fill(log, "into", 2, prefix="into")
    end = source.latestOffset(start, ALL)
    assert set(end["ids"]) == {"in", "into"}
    assert read(source, start, end) == sorted(values(20) + values(2, "into"))
    log.delete_topic("into")
    after = source.latestOffset(end, ALL)
    assert set(after["ids"]) == {"in"}
    assert read(source, end, after) == []


def test_a_start_beyond_the_end_is_refused(log: lakebed.Log) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"beyond the end .*offset=99"):
        reader(log, startingOffsets='{"in": {"0": 99}}').initialOffset()


def test_a_log_that_has_less_than_was_read_from_it_is_noticed(log: lakebed.Log) -> None:
    """It was restored from an older backup: what is written there now has not been read."""
    start = reader(log).initialOffset()
    ends = log.offsets("in")
    ahead = {**start, "offsets": {"in": {"0": ends[0][1] + 2, "1": ends[1][1]}}}
    with pytest.raises(DataLossError, match="were removed"):
        reader(log).latestOffset(ahead, ALL)
    easy = reader(log, failOnDataLoss=False)
    back = easy.latestOffset(ahead, ALL)
    assert read(easy, ahead, back) == []
    fill(log, "in", 6, prefix="new")
    assert read(easy, back, easy.latestOffset(back, ALL)) == values(6, "new")


def test_records_that_retention_took_are_told_or_passed_over(log: lakebed.Log) -> None:
    source = reader(log)
    start = source.initialOffset()
    log.purge_topic("in")
    fill(log, "in", 4, prefix="kept")
    end = source.latestOffset(start, ALL)
    with pytest.raises(DataLossError, match="from_offset=0"):
        source.partitions(start, end)
    easy = reader(log, failOnDataLoss=False, maxOffsetsPerTrigger=2)
    middle = easy.latestOffset(start, ReadMaxRows(2))
    first = read(easy, start, middle)
    assert len(first) == 2
    assert sorted(first + read(easy, middle, easy.latestOffset(middle, ALL))) == values(4, "kept")
