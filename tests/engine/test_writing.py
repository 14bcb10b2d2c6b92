"""Appending: where records go, what callers are told, and many callers in one entry."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed import Ack, Log
from lakebed.engine import writing
from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    LakebedError,
    PartitionNotFoundError,
    SchemaMismatchError,
    TopicNotFoundError,
)
from lakebed.host import SimDisk
from lakebed.topic.routing import partitions_of
from tests.engine.support import (
    PRICE,
    armed,
    everything,
    in_threads,
    inner,
    is_gathering,
    quiet,
    rows,
)
from tests.waiting import until
from tests.wal.support import entries_waiting


def entries(log: lakebed.Log) -> int:
    return log.stats().wal.last_index


def test_append_returns_where_the_record_is() -> None:
    with quiet() as log:
        log.create_topic("t", 3)
        for number in range(9):
            value = b"%d" % number
            topic, partition, offset = log.append("t", value)
            assert log.read(topic, partition, offset).column("value").to_pylist()[0] == value


def test_records_without_a_key_go_round_the_partitions() -> None:
    with quiet() as log:
        log.create_topic("t", 3)
        places = [log.append("t", b"x").partition for _ in range(9)]
        assert Counter(places) == {0: 3, 1: 3, 2: 3}
        assert places[:3] == places[3:6]
        log.append_batch("t", [b"x"] * 300)
        assert all(end >= 90 for _, end in log.offsets("t").values())


def test_a_key_always_goes_to_the_partition_of_its_hash() -> None:
    keys = [b"key %d" % number for number in range(50)]
    with quiet() as log:
        log.create_topic("t", 7)
        expected = partitions_of(pa.array(keys), 7).tolist()
        assert [log.append("t", b"x", key).partition for key in keys] == expected
        acks = log.append_batch("t", [{"key": key, "value": b"y"} for key in keys])
        assert [ack.partition for ack in acks] == expected
        with log.producer() as producer:
            sent = [producer.send("t", b"z", key) for key in keys]
        assert [each.result(600).partition for each in sent] == expected
        with log.transaction() as tx:
            for key in keys:
                tx.append("t", b"tx", key)
            (told,) = tx.commit()
        assert [ack.partition for ack in told] == expected


def test_a_record_goes_to_the_partition_that_is_named() -> None:
    with quiet() as log:
        log.create_topic("t", 3)
        assert log.append("t", b"x", b"key", partition=2) == Ack("t", 2, 0)
        acks = log.append_batch("t", [{"key": b"a", "value": b"y"}] * 3, partition=1)
        assert list(acks) == [Ack("t", 1, 0), Ack("t", 1, 1), Ack("t", 1, 2)]


@pytest.mark.parametrize("partition", [-1, 3, "0", 1.0, True])
def test_a_partition_that_is_not_there_is_refused_everywhere(partition: Any) -> None:
    with quiet() as log:
        log.create_topic("t", 3)
        with pytest.raises(PartitionNotFoundError):
            log.append("t", b"x", partition=partition)
        with pytest.raises(PartitionNotFoundError):
            log.append_batch("t", [b"x"], partition=partition)
        with pytest.raises(PartitionNotFoundError):
            log.read("t", partition)
        with log.producer() as producer, pytest.raises(PartitionNotFoundError):
            producer.send("t", b"x", partition=partition)
        assert everything(log, "t") == []


def test_key_headers_and_timestamp_come_back_as_given() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("t")
        log.append("t", b"v", "key", headers={"trace": b"1", "text": "é"}, timestamp=1_000_000)
        log.append("t", None, b"gone")
        log.append("t", b"plain")
        expected = [
            (b"key", [("trace", b"1"), ("text", "é".encode())], 1_000_000, b"v"),
            (b"gone", None, inner(log).parts.core.clock.time_us(), None),
            (None, None, inner(log).parts.core.clock.time_us(), b"plain"),
        ]
        assert shown(log) == expected
        log.checkpoint()
        assert shown(log) == expected
    with quiet(disk=disk) as log:
        assert shown(log) == expected


def shown(log: lakebed.Log) -> list[tuple[Any, ...]]:
    table = log.read("t")
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    named = [table.column(name).to_pylist() for name in ("key", "headers", "value")]
    return list(zip(named[0], named[1], times, named[2], strict=True))


@pytest.mark.parametrize("form", ["rows", "dicts", "batch", "table", "chunked"])
def test_a_batch_may_be_rows_a_record_batch_or_a_table(form: str) -> None:
    values = [b"a", b"b", b"c"]
    table = pa.table({"value": values})
    given: Any = {
        "rows": values,
        "dicts": [{"value": value} for value in values],
        "batch": table.to_batches()[0],
        "table": table,
        "chunked": pa.concat_tables([table.slice(0, 1), table.slice(1)]),
    }[form]
    with quiet() as log:
        log.create_topic("t")
        acks = log.append_batch("t", given)
        assert (len(acks), acks.offsets) == (3, {0: range(3)})
        assert rows(log, "t") == values


@pytest.mark.parametrize("given", [[], pa.table({"value": pa.array([], pa.binary())})])
def test_an_empty_batch_writes_nothing(given: Any) -> None:
    with quiet() as log:
        log.create_topic("t", 2)
        log.append("t", b"first", partition=0)
        before = entries(log)
        acks = log.append_batch("t", given)
        assert (len(acks), list(acks), acks.offsets) == (0, [], {})
        assert log.append_async("t", b"x", partition=0).result(600).offset == 1
        assert entries(log) == before + 1


def test_acks_tell_the_place_of_each_row_in_the_order_given() -> None:
    generator = np.random.default_rng(7)
    keys = [b"%d" % number for number in generator.integers(0, 40, 1000)]
    with quiet() as log:
        log.create_topic("t", 5)
        log.append_batch("t", [{"key": key, "value": b"before"} for key in keys[:100]])
        given = [{"key": key, "value": b"%d" % row} for row, key in enumerate(keys)]
        acks = log.append_batch("t", given)
        held = {number: rows(log, "t", number) for number in range(5)}
        for row, ack in enumerate(acks):
            assert held[ack.partition][ack.offset] == b"%d" % row
        assert acks[-1] == list(acks)[-1]
        assert acks[10:12] == list(acks)[10:12]
        assert sum(map(len, acks.offsets.values())) == 1000
        with pytest.raises(IndexError):
            acks[1000]


def test_a_batch_over_many_partitions_is_one_entry() -> None:
    with quiet() as log:
        log.create_topic("t", 16)
        log.append("t", b"first")
        before = entries(log)
        acks = log.append_batch("t", [b"x"] * 1000)
        assert len(acks.offsets) == 16
        assert entries(log) == before + 1


def test_a_bad_row_refuses_the_whole_batch() -> None:
    with quiet() as log:
        log.create_topic("t", 4)
        before = entries(log)
        for bad in ([b"a", 7], [{"value": b"a"}, {"key": b"k", "nope": 1}], [b"a", None]):
            with pytest.raises(LakebedError):
                log.append_batch("t", bad)
        with pytest.raises(SchemaMismatchError, match="nope"):
            log.append_batch("t", pa.table({"value": [b"a"], "nope": [1]}))
        with pytest.raises(InvalidArgumentError):
            log.append_batch("t", b"abc")
        assert (entries(log), everything(log, "t")) == (before, [])


def test_many_threads_share_entries_and_each_record_is_there_once(tmp_path: Path) -> None:
    each = 60
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 4)
        before = log.stats().wal.counters.appends

        def work(thread: int) -> list[Ack]:
            return [log.append("t", b"%d-%d" % (thread, number)) for number in range(each)]

        outcomes = in_threads(32, work)
        held = {number: rows(log, "t", number) for number in range(4)}
        for thread, acks in enumerate(outcomes):
            for number, ack in enumerate(acks):
                assert held[ack.partition][ack.offset] == b"%d-%d" % (thread, number)
        assert sum(map(len, held.values())) == 32 * each
        assert log.stats().wal.counters.appends - before < 32 * each // 3


def test_threads_of_several_topics_typed_and_raw_share_entries(tmp_path: Path) -> None:
    """A record that is refused harms nobody else's."""
    with lakebed.open(tmp_path) as log:
        log.create_topic("raw", 2)
        log.create_topic("typed", 2, PRICE)

        def work(thread: int) -> list[Any]:
            acks: list[Any] = []
            for number in range(30):
                if thread % 4 == 3:
                    with pytest.raises(SchemaMismatchError):
                        log.append("typed", {"item": 7, "price": "bad"})
                elif thread % 2:
                    acks.append(log.append("raw", b"%d-%d" % (thread, number), b"k"))
                else:
                    acks.append(log.append("typed", {"item": str(thread), "price": number}))
            return acks

        outcomes = in_threads(16, work)
        raw = {number: rows(log, "raw", number) for number in range(2)}
        typed = {number: rows(log, "typed", number) for number in range(2)}
        for thread, acks in enumerate(outcomes):
            assert isinstance(acks, list), acks
            for number, (topic, partition, offset) in enumerate(acks):
                if topic == "raw":
                    assert raw[partition][offset] == b"%d-%d" % (thread, number)
                else:
                    expected = {"item": str(thread), "price": number}
                    assert typed[partition][offset] == expected
        assert sum(map(len, raw.values())) == 4 * 30
        assert sum(map(len, typed.values())) == 8 * 30


def gathered(log: lakebed.Log, calls: list[Any]) -> list[Future[Ack]]:
    """Make calls that all go into one entry: the disk is slow while they come."""
    with armed("wal.group.before_write=delay:300"):
        first = log.append_async(*calls[0])
        until(lambda: not is_gathering(log))
        rest = [log.append_async(*call) for call in calls[1:]]
    return [first, *rest]


def test_a_topic_deleted_while_its_record_waits_refuses_that_record_alone(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("kept")
        log.create_topic("gone")
        before = entries(log)
        with armed("wal.group.before_write=delay:300"):
            first = log.append_async("kept", b"first")
            until(lambda: not is_gathering(log))
            # The deletion stands before the entry in which both records wait.
            deleting = threading.Thread(target=log.delete_topic, args=("gone",))
            deleting.start()
            until(lambda: bool(entries_waiting(inner(log).parts.wal)))
            kept = log.append_async("kept", b"second")
            gone = log.append_async("gone", b"lost")
        deleting.join(600)
        assert (first.result(600).offset, kept.result(600).offset) == (0, 1)
        assert isinstance(gone.exception(30), TopicNotFoundError)
        if inner(log) is log:  # each topic has a stream of its own to a server
            assert entries(log) == before + 3
        assert rows(log, "kept") == [b"first", b"second"]
    with lakebed.open(tmp_path) as log:
        assert log.topics() == ["kept"]
        assert rows(log, "kept") == [b"first", b"second"]


def test_what_waits_together_is_one_entry_with_partitions_as_asked(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 3)
        before = entries(log)
        calls = [("t", b"%d" % number, b"%d" % (number % 5)) for number in range(50)]
        futures = gathered(log, calls)
        places = [future.result(600) for future in futures]
        assert entries(log) == before + 2
        held = {number: rows(log, "t", number) for number in range(3)}
        for (_, value, key), ack in zip(calls, places, strict=True):
            assert held[ack.partition][ack.offset] == value
            assert ack.partition == partitions_of(pa.array([key]), 3)[0]


def test_a_schema_that_grows_while_records_wait_harms_none_of_them(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 1, PRICE)
        with armed("wal.group.before_write=delay:300"):
            futures = [log.append_async("t", {"item": "a", "price": 1})]
            until(lambda: not is_gathering(log))
            altering = threading.Thread(
                target=lambda: log.alter_topic("t", schema=PRICE.append(pa.field("n", pa.int32())))
            )
            altering.start()
            until(lambda: bool(entries_waiting(inner(log).parts.wal)))
            futures += [log.append_async("t", {"item": "b", "price": 2})]
        altering.join(600)
        futures += [log.append_async("t", {"item": "c", "price": 3, "n": 4})]
        assert [future.result(600).offset for future in futures] == [0, 1, 2]
        assert [row["n"] for row in rows(log, "t")] == [None, None, 4]


def test_a_callback_may_append_without_waiting_and_is_told_if_it_would_wait(
    tmp_path: Path,
) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        caught: list[Exception] = []
        follow: list[Future[Ack]] = []

        def callback(_: Future[Ack]) -> None:
            follow.append(log.append_async("t", b"from a callback"))
            try:
                log.append("t", b"never")
            except InvalidArgumentError as error:
                caught.append(error)

        log.append_async("t", b"first").add_done_callback(callback)
        until(lambda: bool(follow) and follow[0].done() and bool(caught))
        log.append("t", b"last")
        assert rows(log, "t") == [b"first", b"from a callback", b"last"]


def test_closing_while_others_append_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for turn in range(3):
        folder = tmp_path / str(turn)
        log = lakebed.open(folder)
        log.create_topic("t", 2)
        acknowledged: list[list[bytes]] = [[] for _ in range(8)]

        def work(thread: int, log: lakebed.Log = log, told: Any = acknowledged) -> Exception:
            number = 0
            while True:
                value = b"%d-%d" % (thread, number)
                try:
                    if thread % 2:
                        log.append("t", value)
                    else:
                        log.append_async("t", value).result(600)
                except ClosedError as error:
                    return error
                told[thread].append(value)
                number += 1

        def close(log: lakebed.Log = log, told: Any = acknowledged) -> None:
            until(lambda: all(told))
            log.close()

        closing = threading.Thread(target=close)
        closing.start()
        outcomes = in_threads(8, work)
        closing.join()
        assert all(isinstance(outcome, ClosedError) for outcome in outcomes)
        with lakebed.open(folder) as again:
            held = Counter(everything(again, "t"))
            assert set(held.values()) == {1}
            assert all(value in held for values in acknowledged for value in values)


def test_a_writer_that_waits_for_room_is_told_when_the_log_closes(tmp_path: Path) -> None:
    config = lakebed.LogConfig(memtable_bytes=64 * 1024, write_timeout_ms=60_000)
    log = lakebed.open(tmp_path, config)
    log.create_topic("t")
    with armed("engine.checkpoint.frozen=delay:1500"):
        outcome: list[Exception] = []

        def work() -> None:
            try:
                for _ in range(100):
                    log.append_batch("t", [b"x" * 9000])
            except LakebedError as error:
                outcome.append(error)

        writer = threading.Thread(target=work)
        writer.start()
        until(lambda: log.stats().stopped_writes > 0)
        log.close()
        writer.join(600)
    assert isinstance(outcome[0], ClosedError)


def test_a_gathered_entry_ends_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GATHERED_RECORDS_MAX", 10)
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        before = entries(log)
        futures = gathered(log, [("t", b"%d" % number) for number in range(41)])
        assert [future.result(600).offset for future in futures] == list(range(41))
        assert entries(log) - before == 5
        assert rows(log, "t") == [b"%d" % number for number in range(41)]


def test_a_log_reads_what_it_replayed_after_its_wal_files_were_used_again(tmp_path: Path) -> None:
    """A table that a reader holds does not change when the file below it is freed."""
    config = lakebed.LogConfig(wal=lakebed.WalConfig(file_bytes=64 * 1024))
    with lakebed.open(tmp_path, config) as log:
        log.create_topic("t")
        for number in range(20):
            log.append_batch("t", [b"%d" % number * 1000])
    with lakebed.open(tmp_path, config) as log:
        held = log.read("t")
        before = held.column("value").to_pylist()
        for turn in range(4):
            for _ in range(20):
                log.append_batch("t", [b"%d" % turn * 3000])
            log.checkpoint()
        assert log.stats().wal.counters.reclaimed_files > 0
        assert held.column("value").to_pylist() == before
        assert before == [b"%d" % number * 1000 for number in range(20)]


def _guarded(log: Log, call: Any) -> Any:
    """Call it only where it would be harmful."""
    return lambda: call() if inner(log).parts.wal.commits.in_callback else None


def _in_callback(log: Log, call: Any) -> Any:
    """Run something in the thread that commits; return what it gave or raised."""
    told: list[Any] = []
    done = threading.Event()

    def callback(_: object) -> None:
        try:
            told.append(call())
        except InvalidArgumentError as error:
            told.append(error)
        done.set()

    future = log.append_async("t", b"x")
    future.add_done_callback(callback)
    assert done.wait(600), "the log hangs"
    return told[0]


def test_a_callback_that_would_wait_for_its_own_commit_is_refused(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t", 1)
        log.commit_offsets("g", {("t", 0): 0})
        calls = [
            lambda: log.describe_group("g"),
            lambda: log.consumer("g", topics=["t"]),
            lambda: log.read("t", 0, "latest", wait_ms=None),
            log.checkpoint,
            log.retain,
            log.close,
        ]
        for call in calls:
            # A callback runs in its caller's thread if the commit was quicker than it: try again.
            for _ in range(50):
                if isinstance(_in_callback(log, _guarded(log, call)), InvalidArgumentError):
                    break
            else:
                pytest.fail("no callback ran in the committing thread")
        log.append("t", b"still open")
