"""Cleanup: one damaged topic holds up no other, and what is deleted meanwhile is no damage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import LakeConfig, Log, LogConfig
from lakebed.engine.rewriting import Rewriting
from lakebed.errors import CorruptionError, MissingFileError
from lakebed.reports.maintenance import CleanupFailure
from lakebed.serve.meters import Meters
from tests.engine.support import at_next_command, inner, rows
from tests.waiting import until

PLAIN = LogConfig(lake=LakeConfig(iceberg=False))
COMPACT = {"cleanup": "compact", "compact_hold_ms": 0}


def filled(log: Log, *topics: str, partitions: int = 1) -> None:
    """Make topics whose partitions have two segments, which compaction makes one of."""
    for topic in topics:
        log.create_topic(topic, partitions, config=COMPACT)
    for value in (b"old", b"new"):
        for topic in topics:
            for number in range(partitions):
                log.append(topic, value, b"k", partition=number)
        log.checkpoint()


def segment_files(log: Log, topic: str, partition: int = 0) -> list[Path]:
    """List the files of a partition's segments."""
    number = log.describe_topic(topic).id
    found = inner(log).parts.core.state.partitions[(number, partition)].segments
    return [
        inner(log).parts.segment_folder.path(number, partition, segment.id) for segment in found
    ]


def damage(path: Path) -> bytes:
    """Overwrite a file with zeros; return what it was."""
    before = path.read_bytes()
    path.write_bytes(bytes(len(before)))
    return before


def test_a_damaged_topic_holds_up_no_other_and_is_tried_again(tmp_path: Path) -> None:
    with lakebed.open(tmp_path, PLAIN) as log:
        filled(log, "first", "second")
        path = segment_files(log, "first")[0]
        before = damage(path)
        report = log.retain()
        assert isinstance(report.errors.pop("first"), CorruptionError)
        assert (report.errors, report.segments_compacted) == ({}, 2)
        assert rows(log, "second") == [b"new"]
        (failure,) = log.stats().cleanup_failures
        assert (failure.topic, failure.failures, failure.failing) == ("first", 1, True)
        assert str(path) in failure.last_failure
        with pytest.raises(CorruptionError):
            log.retain("first")
        assert log.stats().cleanup_failures[0].failures == 2
        assert log.stats().maintenance_failures == 2
        path.write_bytes(before)
        assert log.retain().errors == {}
        assert rows(log, "first") == [b"new"]
        assert not log.stats().cleanup_failures[0].failing


def test_a_damaged_partition_holds_up_no_other(tmp_path: Path) -> None:
    with lakebed.open(tmp_path, PLAIN) as log:
        filled(log, "t", partitions=3)
        damage(segment_files(log, "t", 0)[0])
        with pytest.raises(CorruptionError):
            log.retain("t")
        assert [rows(log, "t", number) for number in (1, 2)] == [[b"new"], [b"new"]]


def test_a_failure_that_is_no_error_of_ours_holds_up_no_other_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Rewriting.write

    def failing(self: Rewriting, topic: Any, *args: Any, **options: Any) -> Any:
        if topic.name == "first":
            raise ZeroDivisionError("a defect")
        return write(self, topic, *args, **options)

    monkeypatch.setattr(Rewriting, "write", failing)
    with lakebed.open(tmp_path, PLAIN) as log:
        filled(log, "first", "second")
        report = log.retain()
        assert list(report.errors) == ["first"] and "ZeroDivisionError" in str(report.errors)
        assert rows(log, "second") == [b"new"]


def test_the_schedule_goes_on_behind_a_damaged_topic(tmp_path: Path) -> None:
    config = LogConfig(lake=LakeConfig(iceberg=False), retention_interval_ms=10)
    with lakebed.open(tmp_path, PLAIN) as log:
        filled(log, "first", "second")
        damage(segment_files(log, "first")[0])
    with lakebed.open(tmp_path, config) as log:
        until(lambda: rows(log, "second") == [b"new"])
        until(lambda: any(each.failures > 1 for each in log.stats().cleanup_failures))
        (failure,) = log.stats().cleanup_failures
        assert (failure.topic, failure.failing) == ("first", True)
        assert log.append("second", b"more").offset == 2


def test_metrics_tell_which_topic_fails(tmp_path: Path) -> None:
    with Log.open(tmp_path, PLAIN) as log:
        filled(log, "first", "second")
        damage(segment_files(log, "first")[0])
        log.retain()
        text = Meters().render(log).body.decode()
        assert 'lakebed_topic_cleanup_failures_total{topic="first"} 1.0' in text
        assert 'lakebed_topic_cleanup_failing{topic="first"} 1.0' in text
        assert 'cleanup_failing{topic="second"}' not in text
        log.delete_topic("first")
        assert log.stats().cleanup_failures == ()


def test_a_failure_is_plain_data(tmp_path: Path) -> None:
    with lakebed.open(tmp_path, PLAIN) as log:
        filled(log, "first", "second")
        damage(segment_files(log, "first")[0])
        log.retain()
        stats = log.stats()
        assert isinstance(stats.cleanup_failures[0], CleanupFailure)
        assert stats.as_dict()["cleanup_failures"][0]["topic"] == "first"


DROPS: dict[str, Callable[[Log], None]] = {
    "delete": lambda log: log.delete_topic("t"),
    "purge": lambda log: log.purge_topic("t"),
}


@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
@pytest.mark.parametrize("cleanup", ["compact", "delete"])
def test_a_topic_that_goes_during_a_cleanup_is_no_damage(
    drop: Callable[[Log], None], cleanup: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = Rewriting.scan
    reached, dropped = threading.Event(), threading.Event()

    def scan_after_the_drop(self: Rewriting, *args: Any) -> Iterator[pa.RecordBatch]:
        reached.set()
        assert dropped.wait(60)
        return scan(self, *args)

    monkeypatch.setattr(Rewriting, "scan", scan_after_the_drop)
    with lakebed.open(tmp_path, PLAIN) as log:
        log.create_topic("t", config={"cleanup": cleanup, "compact_hold_ms": 0})
        for number in range(10):
            log.append("t", b"%d" % number, b"k")
            log.checkpoint()
        outcome: list[Any] = []

        def clean() -> None:
            try:
                outcome.append(log.retain("t"))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=clean)
        thread.start()
        assert reached.wait(60)
        paths = segment_files(log, "t")
        for segment in range(1, inner(log).parts.core.state.numbers["segment"]):
            inner(log).parts.segment_reader.forget(
                segment
            )  # so that the files must be opened again
        drop(log)
        assert not any(path.exists() for path in paths)
        dropped.set()
        thread.join(60)
        (report,) = outcome
        assert not isinstance(report, Exception), report
        assert log.stats().cleanup_failures == ()


def test_a_segment_that_is_gone_while_the_log_names_it_is_damage(tmp_path: Path) -> None:
    with lakebed.open(tmp_path, PLAIN) as log:
        filled(log, "t")
        segment_files(log, "t")[0].unlink()
        with pytest.raises(MissingFileError):
            log.retain("t")


def test_a_topic_that_is_deleted_before_it_is_trimmed_is_no_failure(tmp_path: Path) -> None:
    with Log.open(tmp_path, PLAIN) as log:
        log.create_topic("t", config={"retention_bytes": 1})
        for _ in range(3):
            log.append("t", b"x" * 100)
            log.checkpoint()
        with at_next_command(log.parts.cleanup, lambda: log.delete_topic("t")):
            assert log.retain("t").errors == {}
