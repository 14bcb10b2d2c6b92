"""Compaction by Spark leaves what a dictionary would, at the same offsets."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import lakebed
import lakebed.spark
from lakebed import LogConfig
from lakebed.errors import InvalidArgumentError
from lakebed.reports.maintenance import PartitionCompaction
from lakebed.reports.topics import SealedFile
from lakebed.spark.jobs import compact as job
from lakebed.spark.jobs import survivors as finding
from lakebed.spark.jobs.survivors import BLOCK, _blocks, _Held, _unpack
from lakebed.spark.jobs.target import resolve_log
from lakebed.topic.survivors import Survivors
from tests.engine.support import inner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = LogConfig(retention_interval_ms=86_400_000)
"""The log compacts nothing automatically."""
DAY_US = 86_400_000_000
SCHEMA = pa.schema([("name", pa.string()), ("id", pa.int64())])
COMPACTED = {"cleanup": "compact", "tombstone_retention_ms": 86_400_000, "compact_hold_ms": 0}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    with lakebed.Log.open(tmp_path / "log", QUIET) as opened:
        yield opened


def write_randomly(log: lakebed.Log, topic: str, *, typed: bool) -> None:
    """Write segments: keys again and again, records without one, old and new tombstones."""
    rng = random.Random(7)
    now_us = inner(log).parts.core.clock.time_us()
    for _ in range(4):
        rows = []
        for number in range(300):
            key = None if rng.random() < 0.05 else f"k{rng.randrange(120)}".encode()
            gone = key is not None and rng.random() < 0.25
            value: Any = {"id": number, "name": None} if typed else b"v%d" % number
            age_us = rng.choice([0, 3 * DAY_US])
            rows.append(
                {"key": key, "value": None if gone else value, "timestamp": now_us - age_us}
            )
        log.append_batch(topic, rows)
        log.checkpoint()


def records(log: lakebed.Log, topic: str) -> list[dict[str, Any]]:
    return [
        row
        for number in log.offsets(topic)
        for row in log.table(topic).scan(partitions=[number]).read_all().to_pylist()
    ]


def surviving(rows: list[dict[str, Any]], before_us: int) -> list[dict[str, Any]]:
    """Return what a compaction leaves, by a dictionary."""
    last = {(row["partition"], row["key"]): row["offset"] for row in rows}
    return [
        row
        for row in rows
        if row["key"] is None
        or (
            last[row["partition"], row["key"]] == row["offset"]
            and not (row["value"] is None and row["timestamp"].timestamp() * 1e6 < before_us)
        )
    ]


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
def test_what_is_left_is_what_a_dictionary_would_keep(
    spark: SparkSession, log: lakebed.Log, typed: bool
) -> None:
    log.create_topic("t", 2, SCHEMA if typed else None, COMPACTED)
    write_randomly(log, "t", typed=typed)
    log.append("t", {"id": -1} if typed else b"hot", key="k1")
    before = records(log, "t")
    ends = log.offsets("t")
    told: list[str] = []
    report = lakebed.spark.compact(
        spark, log, "t", progress=lambda doing, _done, _total: told.append(doing)
    )
    sealed = [row for row in before if row["value"] not in (b"hot", {"name": None, "id": -1})]
    hot = [row for row in before if row not in sealed]
    kept = surviving(sealed, inner(log).parts.core.clock.time_us() - DAY_US)
    assert records(log, "t") == sorted(
        [*kept, *hot], key=lambda row: (row["partition"], row["offset"])
    )
    assert log.offsets("t") == ends
    assert report.records_read == len(sealed)
    assert report.records_dropped == len(sealed) - len(kept)
    assert report.partitions == 2
    assert report.segments_removed == 8
    assert report.segments_written == 2
    assert "rewriting partitions" in told
    again = lakebed.spark.compact(spark, log, "t", force=True)
    assert (again.partitions, again.records_dropped) == (0, 0)
    log.verify()


def test_a_topic_that_is_not_compacted_by_key_is_refused(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("t")
    with pytest.raises(InvalidArgumentError, match="not compacted by key"):
        lakebed.spark.compact(spark, log, "t")


def test_a_job_that_died_between_two_partitions_is_finished_by_the_next(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("t", 2, config=COMPACTED)
    write_randomly(log, "t", typed=False)
    before = records(log, "t")

    def die(doing: str, done: int, _total: int) -> None:
        if doing == "rewriting partitions" and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lakebed.spark.compact(spark, log, "t", progress=die)
    report = lakebed.spark.compact(spark, log, "t")
    assert report.partitions == 1
    assert records(log, "t") == surviving(before, inner(log).parts.core.clock.time_us() - DAY_US)


def test_segments_that_the_log_compacts_meanwhile_are_planned_anew(
    spark: SparkSession, log: lakebed.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t", config=COMPACTED)
    write_randomly(log, "t", typed=False)
    before = records(log, "t")
    found = finding.survivors

    def late(*arguments: Any) -> Any:
        bits = found(*arguments)
        log.retain("t")
        return bits

    monkeypatch.setattr(job, "survivors", late)
    report = lakebed.spark.compact(spark, log, "t")
    assert report.records_dropped == 0
    assert records(log, "t") == surviving(before, inner(log).parts.core.clock.time_us() - DAY_US)


def looked_through(
    spark: SparkSession, log: lakebed.Log, *, lost: bool = False
) -> tuple[finding._LastRecords, list[pa.RecordBatch]]:
    """Return what the tasks of a compaction give away, worked out in this process."""
    _, target = resolve_log(spark, log)
    plan = log.plan_compaction("t")
    parts = plan.partitions
    if lost:
        gone = [replace(each, location=each.location + "-gone") for each in parts[0].files]
        parts = (replace(parts[0], files=tuple(gone)),)
    info = log.describe_topic("t")
    pieces = tuple(finding._pieces(info, parts))
    look = finding._LastRecords(target, finding._columns(info), plan.tombstone_before_us, pieces)
    numbers = pa.record_batch({"id": list(range(len(pieces)))})
    return look, list(look.run(iter([numbers])))


def kept(batches: list[pa.RecordBatch]) -> list[int]:
    """Return the offsets that survive what tasks gave away, by a dictionary."""
    last: dict[Any, int] = {}
    for batch in batches:
        for row in batch.to_pylist():
            key = row["key"], row["alone"]
            last[key] = max(last.get(key, 0), row["mark"])
    return sorted(mark >> 1 for mark in last.values() if not mark & 1)


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
def test_files_that_are_out_of_reach_are_looked_through_by_way_of_the_owner(
    spark: SparkSession, log: lakebed.Log, typed: bool
) -> None:
    log.create_topic("t", 1, SCHEMA if typed else None, COMPACTED)
    write_randomly(log, "t", typed=typed)
    expected = surviving(records(log, "t"), inner(log).parts.core.clock.time_us() - DAY_US)
    for lost in (False, True):
        _, given = looked_through(spark, log, lost=lost)
        assert kept(given) == [row["offset"] for row in expected]


def test_a_task_holds_a_bounded_number_of_keys_and_takes_a_bounded_number_of_records(
    spark: SparkSession, log: lakebed.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t", 1, config=COMPACTED)
    write_randomly(log, "t", typed=False)
    at_once, whole = looked_through(spark, log)
    monkeypatch.setattr(finding, "_HELD_BYTES", 1000)
    monkeypatch.setattr(finding, "_TASK_RECORDS", 600)
    monkeypatch.setattr(finding, "_GIVEN_BYTES", 500)
    in_pieces, given = looked_through(spark, log)
    assert (len(at_once.pieces), len(in_pieces.pieces)) == (1, 2)
    assert max(batch.nbytes for batch in given) < 2000 < max(batch.nbytes for batch in whole)
    assert kept(given) == kept(whole)


def test_bits_of_many_blocks_are_the_offsets_they_were_made_of() -> None:
    rng = np.random.default_rng(3)
    offsets = rng.choice(5 << BLOCK, 40_000, replace=False)
    rows = pa.record_batch(
        {
            "partition": pa.array(offsets % 2, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )
    found: dict[int, list[int]] = {0: [], 1: []}
    for batch in _blocks(iter([rows.slice(0, 10_000), rows.slice(10_000)])):
        ((partition, block, bits),) = zip(*batch.to_pydict().values(), strict=True)
        flags = np.unpackbits(_unpack(bits), bitorder="little")
        found[partition] += (np.flatnonzero(flags) + (block << BLOCK)).tolist()
    for partition, numbers in found.items():
        assert sorted(numbers) == sorted(offsets[offsets % 2 == partition].tolist())


def test_a_task_gives_away_what_it_holds_and_holds_nothing_afterwards() -> None:
    held = _Held()
    rows = {"partition": [0], "offset": [9]}
    held.add(pa.table(rows, schema=pa.schema([(name, pa.int64()) for name in rows])))
    assert len(list(held.drain())) == 1
    assert held.blocks == {}


def test_a_large_partition_is_rewritten_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_CALL_OFFSETS", 100)
    spans = [(7, 60), (60, 107), (107, 109), (109, 500), (500, 501)]
    files = tuple(SealedFile(0, "", start, until, 1, 1) for start, until in spans)
    part = PartitionCompaction(0, (1, 2, 3, 4, 5), 7, 501, files, 100)
    assert list(job._calls(part)) == [
        ([1, 2], 7, 107),
        ([3], 107, 109),
        ([4], 109, 500),
        ([5], 500, 501),
    ]


def test_bits_are_packed_for_the_range_that_a_call_is_about() -> None:
    offsets = np.array([13, 14, 29, 37])
    flags = np.zeros(64, dtype=np.uint8)
    flags[offsets] = 1
    packed = job._pack(np.packbits(flags, bitorder="little"), first=0, base=13, end=38)
    survivors = Survivors.unpack(packed, base=13, end=38)
    assert survivors.count() == 4
    assert survivors.contain(offsets).all()
