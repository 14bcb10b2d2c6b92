"""Reading: one sequence of offsets, whatever moves below it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.engine.core import _Redo
from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
)
from tests.engine.support import in_threads, inner, quiet, rows, waiting_readers
from tests.proof.scale import trials
from tests.waiting import until

COLUMNS = ["partition", "offset", "timestamp", "key", "headers", "value"]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_a_reader_gets_the_columns_of_the_design_also_when_there_is_nothing() -> None:
    with quiet() as log:
        log.create_topic("t", 2)
        empty = log.read("t", 1)
        log.append("t", b"x", partition=1)
        full = log.read("t", 1)
        for table in (empty, full):
            assert table.schema.names == COLUMNS
            assert table.schema.field("partition").type == pa.int32()
            assert table.schema.field("offset").type == pa.int64()
            assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
            assert table.schema.field("headers").type == pa.map_(pa.string(), pa.binary())
        assert full.column("partition").to_pylist() == [1]


def test_earliest_latest_and_numbers_name_offsets() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", numbers(0, 10))
        log.checkpoint()
        log.append_batch("t", numbers(10, 20))
        assert rows(log, "t") == numbers(0, 20)
        assert log.read("t", 0, "earliest").num_rows == 20
        assert log.read("t", 0, "latest").num_rows == 0
        assert log.read("t", 0, 20).num_rows == 0
        for start in (0, 5, 10, 15, 19):
            assert log.read("t", 0, start).column("value").to_pylist() == numbers(start, 20)


def test_an_offset_that_is_gone_or_not_there_yet_says_what_there_is() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", numbers(0, 5))
        log.purge_topic("t")
        log.append("t", b"x")
        for offset, words in ((4, "below"), (7, "above"), (-1, "below")):
            with pytest.raises(OffsetOutOfRangeError, match=words) as caught:
                log.read("t", 0, offset)
            assert (caught.value.facts["low"], caught.value.facts["end"]) == (5, 6)


@pytest.mark.parametrize(
    "given",
    [
        {"offset": "first"},
        {"offset": 1.5},
        {"offset": True},
        {"max_records": 0},
        {"max_bytes": 0},
        {"max_records": "1"},
        {"columns": ["nope"]},
        {"columns": "value"},
        {"columns": []},
        {"wait_ms": -1},
        {"wait_ms": "1"},
    ],
)
def test_a_read_refuses_arguments_that_make_no_sense(given: dict[str, Any]) -> None:
    with quiet() as log:
        log.create_topic("t")
        with pytest.raises(InvalidArgumentError, match=next(iter(given))) as caught:
            log.read("t", **given)
        assert caught.value.facts["got"] == repr(next(iter(given.values())))


@pytest.mark.parametrize("sealed", [False, True])
def test_max_records_is_exact_over_memtable_and_segments(*, sealed: bool) -> None:
    with quiet() as log:
        log.create_topic("t")
        for start in range(0, 100, 7):
            log.append_batch("t", numbers(start, min(100, start + 7)))
            if sealed and start % 2:
                log.checkpoint()
        for wanted in (1, 6, 7, 8, 50, 99, 100):
            table = log.read("t", 0, 0, max_records=wanted)
            assert table.column("value").to_pylist() == numbers(0, wanted)
        assert log.read("t", 0, 30, max_records=3).column("offset").to_pylist() == [30, 31, 32]


@pytest.mark.parametrize("sealed", [False, True])
def test_max_bytes_bounds_a_read_and_one_record_always_comes(*, sealed: bool) -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", [b"x" * 1000] * 100)
        log.append_batch("t", [b"y" * 100_000] * 2)
        if sealed:
            log.checkpoint()
        assert 10 <= log.read("t", max_bytes=20_000).num_rows <= 20
        assert log.read("t", max_bytes=1).num_rows == 1
        assert log.read("t", 0, 100, max_bytes=1).num_rows == 1
        assert log.read("t", 0, 100, max_bytes=150_000).num_rows == 1


def test_columns_are_projected_also_after_compaction() -> None:
    with quiet() as log:
        log.create_topic("t", config={"cleanup": "compact"})
        for number in range(20):
            log.append("t", b"%d" % number, b"%d" % (number % 4))
        assert log.read("t", columns=["value", "offset"]).schema.names == ["offset", "value"]
        log.checkpoint()
        log.retain()
        log.append("t", b"20", b"0")
        table = log.read("t", columns=["value"])
        assert table.schema.names == ["value"]
        assert table.column("value").to_pylist() == [b"16", b"17", b"18", b"19", b"20"]
        assert rows(log, "t", column="offset") == [16, 17, 18, 19, 20]
        assert log.read("t", 0, 3, columns=["key"], max_records=2).num_rows == 2
        assert log.read("t", 0, 18, columns=["value"], max_records=1).to_pylist() == [
            {"value": b"18"}
        ]


def test_a_partition_of_which_compaction_left_nothing_reads_as_empty() -> None:
    with quiet() as log:
        log.create_topic("t", config={"cleanup": "compact", "tombstone_retention_ms": 0})
        log.append("t", b"x", b"k", timestamp=1)
        log.append("t", None, b"k", timestamp=2)
        log.checkpoint()
        log.retain()
        assert rows(log, "t") == []
        assert log.offsets("t") == {0: (0, 2)}
        log.append("t", b"y", b"k")
        assert rows(log, "t", column="offset") == [2]
        with log.consumer("g", ["t"]) as consumer:
            assert consumer.poll().column("value").to_pylist() == [b"y"]
            consumer.commit()
        assert log.committed("g") == {("t", 0): 3}


def test_a_waiting_read_wakes_up_for_a_record(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 2)
        answers: list[Any] = []
        reader = threading.Thread(
            target=lambda: answers.append((log.read("t", 1, wait_ms=30_000), time.monotonic()))
        )
        reader.start()
        until(lambda: bool(waiting_readers(log)))
        log.append("t", b"elsewhere", partition=0)
        assert reader.is_alive()
        started = time.monotonic()
        log.append("t", b"x", partition=1)
        reader.join(600)
        table, ended = answers[0]
        assert table.column("value").to_pylist() == [b"x"]
        assert ended - started < 1
        assert log.read("t", 1, 1, wait_ms=10).num_rows == 0
        assert waiting_readers(log) == {}


def test_a_waiting_read_ends_when_the_log_closes_or_the_topic_goes(tmp_path: Path) -> None:
    log = lakebed.open(tmp_path)
    log.create_topic("t")
    log.create_topic("gone")
    answered = threading.Event()

    def act(number: int) -> object:
        if number == 2:
            until(lambda: len(waiting_readers(log)) == 2)
            log.delete_topic("gone")
            assert answered.wait(600)
            until(lambda: len(waiting_readers(log)) == 1)
            log.close()
            return None
        try:
            return log.read(("t", "gone")[number], wait_ms=None)
        finally:
            if number == 1:
                answered.set()

    closed, gone, _ = in_threads(3, act)
    assert isinstance(closed, ClosedError)
    assert isinstance(gone, TopicNotFoundError)


def test_readers_see_every_record_once_while_checkpoints_move_them(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", config={"segment_bytes": 1024 * 1024})
        total = 3000
        finished = threading.Event()

        def work(number: int) -> object:
            if number == 0:
                for start in range(0, total, 50):
                    log.append_batch("t", numbers(start, start + 50))
                return None
            if number == 1:
                while not finished.is_set():
                    log.checkpoint()
                    log.retain()
                return None
            offset, seen = 0, []
            while offset < total:
                table = log.read("t", 0, offset, max_records=37 * number, wait_ms=5000)
                seen += table.column("value").to_pylist()
                offset += table.num_rows
            if number == 2:
                finished.set()
            return seen

        outcomes = in_threads(4, work)
        assert outcomes[:2] == [None, None]
        assert outcomes[2] == outcomes[3] == numbers(0, total)


def test_the_offset_for_a_time_is_found_in_segments_and_memtable() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", [{"value": b"x", "timestamp": n * 1_000_000} for n in range(10)])
        log.checkpoint()
        log.append_batch("t", [{"value": b"x", "timestamp": n * 1_000_000} for n in range(10, 20)])
        for second in range(20):
            assert log.offset_for_time("t", timestamp=second * 1_000_000) == second
            assert log.offset_for_time("t", timestamp=second * 1_000_000 - 1) == second
        assert log.offset_for_time("t", timestamp=19_000_001) == 20
        assert log.offset_for_time("t", timestamp=datetime(1970, 1, 1, 0, 0, 7)) == 7
        assert log.offset_for_time("t", timestamp=datetime(1970, 1, 1, 0, 0, 12, tzinfo=UTC)) == 12
        for wrong in ("now", 1.5, None, True):
            with pytest.raises(InvalidArgumentError):
                log.offset_for_time("t", timestamp=wrong)


def test_times_out_of_order_give_the_first_record_that_is_late_enough() -> None:
    times = [5, 3, 9, 1, 9, 2]
    with quiet() as log:
        log.create_topic("t")
        for at, checkpoint in zip(times, [False, True, False, True, False, False], strict=True):
            log.append("t", b"x", timestamp=at)
            if checkpoint:
                log.checkpoint()
        for wanted in range(12):
            expected = next((n for n, at in enumerate(times) if at >= wanted), len(times))
            assert log.offset_for_time("t", timestamp=wanted) == expected


def test_the_offset_for_a_time_is_right_while_checkpoints_move_records(tmp_path: Path) -> None:
    records = trials(25, 1_000)
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")

        def work(number: int) -> object:
            if number == 0:
                for at in range(records):
                    log.append("t", b"x", timestamp=at)
                    log.checkpoint()
                return None
            while log.offsets("t")[0][1] < records:
                end = log.offsets("t")[0][1]
                if end:
                    assert log.offset_for_time("t", timestamp=end - 1) == end - 1
            return None

        assert in_threads(2, work) == [None, None]


def test_a_reader_does_not_mind_a_field_added_while_it_reads() -> None:
    log = quiet()
    schema = pa.schema([("x", pa.int64())])
    log.create_topic("t", 1, schema)
    log.append("t", {"x": 1})
    reading = inner(log).parts.reading
    before = reading.topic("t")
    log.alter_topic("t", schema=schema.append(pa.field("y", pa.int64())))
    log.append("t", {"x": 2, "y": 3})
    bounds = log.consumer(partitions=[("t", 0)])._bounds
    table, following = reading.read(before, 0, 0, bounds, None)
    assert table.column("value").to_pylist() == [{"x": 1, "y": None}, {"x": 2, "y": 3}]
    assert following == 2


def test_readers_wait_for_changes_that_are_half_carried_out(tmp_path: Path) -> None:
    """Ctrl-C in the middle of applying: the next reader finishes it before it looks."""
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=2)
        core = inner(log).parts.core
        key, other = (1, 0), (1, 1)
        before = core.state.partitions[key]
        changes = [
            (core.state.partitions, each, before._replace(low=0, end=0, compacted_to=9))
            for each in (key, other)
        ]
        core.state.partitions[key] = changes[0][2]  # the first of two changes, then the strike
        core._redo = _Redo(changes, (), (), None, None)
        assert core.partition(key) == changes[0][2]
        assert core.state.partitions[other] == changes[1][2]
