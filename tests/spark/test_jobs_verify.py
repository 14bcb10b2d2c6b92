"""A verification reads everything, and tells each damage with its place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import lakebed
import lakebed.spark
from lakebed.reports.topics import SegmentInfo
from lakebed.spark.jobs import verify as job
from tests.cli.logs import flip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def file_of(segment: SegmentInfo) -> Path:
    return Path(urlsplit(segment.location).path)


def test_a_flipped_bit_a_missing_and_a_swapped_file_are_found(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("a", 5)
    log.create_topic("b")
    for partition in range(5):
        log.append_batch("a", [{"value": b"v%d" % n} for n in range(50)], partition=partition)
    log.append("b", b"fine")
    log.checkpoint()
    report = lakebed.spark.verify(spark, log, progress=lambda *_: None)
    assert report.fine
    assert (report.topics, report.segments, report.records) == (2, 6, 251)
    flipped, gone, one, other = (log.segments("a", number)[0] for number in range(4))
    flip(file_of(flipped), 100)
    file_of(gone).unlink()
    data = file_of(one).read_bytes()
    file_of(one).write_bytes(file_of(other).read_bytes())
    file_of(other).write_bytes(data)
    report = lakebed.spark.verify(spark, log, ["a"], tables=False)
    found = {each.partition: each for each in report.damages}
    assert sorted(found) == [0, 1, 2, 3]
    assert not report.fine
    assert found[0].code == "corruption"
    assert "byte=" in found[0].problem
    assert found[1].code == "missing_file"
    assert found[1].file == gone.location
    assert lakebed.spark.verify(spark, log, ["b"]).fine


def test_a_segment_that_was_merged_before_its_turn_is_no_damage(
    spark: SparkSession, log: lakebed.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("a")
    log.append("a", b"1")
    log.checkpoint()
    check = job._check_segments

    def late(*arguments: object) -> list[tuple[int, str, str]]:
        log.purge_topic("a")
        log.lake.sync()
        log.lake.gc(now=True)
        return check(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(job, "_check_segments", late)
    report = lakebed.spark.verify(spark, log)
    assert report.fine
    assert (report.segments, report.gone) == (0, 1)


def test_a_table_that_somebody_else_has_changed_is_told(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("a")
    log.append("a", b"1")
    log.checkpoint()
    table = log.lake.table("a")
    table.delete()
    report = lakebed.spark.verify(spark, log)
    assert [(each.topic, each.partition) for each in report.damages] == [("a", -1)]
