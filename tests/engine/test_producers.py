"""Producers: batching, exactly one copy of each batch, fencing, and what callers are told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import LogConfig, Producer, Sent
from lakebed.errors import (
    ClosedError,
    FencedError,
    InvalidArgumentError,
    InvalidNameError,
    LakebedError,
    SequenceGapError,
    TopicNotFoundError,
)
from lakebed.host import ManualClock, SimDisk
from lakebed.state.commands import ProducerWrite, RegisterProducer
from lakebed.state.decision import Written
from tests.engine.support import PRICE, armed, everything, in_threads, quiet, rows, state_of, submit
from tests.waiting import until


def written(log: lakebed.Log, identity: tuple[int, int], sequence: int, *values: bytes) -> Any:
    """Write a batch as a producer does; return the offset it got."""
    writing = log._backend.writing
    target = writing.target("t")
    encoded = writing.encode_rows(target, list(values), 0)
    assert encoded is not None
    command = ProducerWrite(1, *identity, (sequence,), encoded.part)
    result: Written = writing.submit(command, (encoded.body,))
    (placed,) = result.parts
    assert not isinstance(placed, LakebedError)
    return placed[0].base


def test_a_repeated_batch_is_told_its_first_place_and_written_once() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("t")
        identity = submit(log, RegisterProducer("till", 1))
        first = [written(log, identity, 2 * number, b"a", b"b") for number in range(5)]
        assert [written(log, identity, 2 * number, b"a", b"b") for number in range(5)] == first
        assert len(rows(log, "t")) == 10
        log.checkpoint()
    with quiet(disk=disk) as log:
        assert [written(log, identity, 2 * number, b"a", b"b") for number in range(5)] == first
        assert written(log, identity, 10, b"c") == 10
        with pytest.raises(SequenceGapError):
            written(log, identity, 0, b"a", b"b")  # it is not among the last five any more
        assert len(rows(log, "t")) == 11


def test_a_gap_and_an_old_epoch_are_refused_and_change_nothing() -> None:
    with quiet() as log:
        log.create_topic("t")
        identity = submit(log, RegisterProducer("till", 1))
        written(log, identity, 0, b"a", b"b")
        for sequence in (1, 3, 100):
            with pytest.raises(SequenceGapError) as caught:
                written(log, identity, sequence, b"x")
            assert caught.value.facts["expected"] == 2
        newer = submit(log, RegisterProducer("till", 2))
        assert newer == (identity[0], identity[1] + 1)
        with pytest.raises(FencedError):
            written(log, identity, 2, b"x")
        assert written(log, newer, 0, b"c") == 2
        assert rows(log, "t") == [b"a", b"b", b"c"]
        with pytest.raises(FencedError):
            written(log, (99, 1), 0, b"x")


def test_sequences_survive_a_snapshot_and_the_state_is_the_same_after_reopening() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("t")
        identity = submit(log, RegisterProducer("till", 1))
        for number in range(7):
            written(log, identity, number, b"x")
        log.checkpoint()
        written(log, identity, 7, b"y")
        before = state_of(log)
    with quiet(disk=disk) as log:
        assert log.stats().snapshot_index > 0
        assert state_of(log) == before
        assert written(log, identity, 5, b"x") == 5
        assert written(log, identity, 8, b"z") == 8


def test_each_record_has_its_own_result_and_batches_are_shared(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 4)
        before = log.stats().wal.last_index
        with log.producer("till", linger_ms=1000) as producer:
            sent = [producer.send("t", b"%d" % n, b"%d" % (n % 9)) for n in range(1000)]
            assert not sent[-1].done()
            producer.flush(30)
            assert all(each.done() for each in sent)
        held = {number: rows(log, "t", number) for number in range(4)}
        for number, each in enumerate(sent):
            ack = each.result(600)
            assert held[ack.partition][ack.offset] == b"%d" % number
            assert each.exception() is None
        assert log.stats().wal.last_index - before < 10


def test_records_of_a_key_keep_the_order_in_which_they_were_sent(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 3)
        with log.producer(linger_ms=0, batch_bytes=500) as producer:
            for number in range(2000):
                producer.send("t", b"%d" % number, b"one key")
        assert [int(each) for each in everything(log, "t")] == list(range(2000))


def test_linger_writes_a_batch_without_being_asked(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer(linger_ms=20) as producer:
            assert producer.send("t", b"x").result(600).offset == 0
        with log.producer(linger_ms=60_000) as producer:
            sent = producer.send("t", b"y")
            with pytest.raises(TimeoutError):
                sent.result(0.05)
        assert sent.result().offset == 1


def test_a_batch_is_written_when_it_has_batch_bytes(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer(linger_ms=60_000, batch_bytes=10_000) as producer:
            sent = [producer.send("t", b"x" * 1000) for _ in range(12)]
            assert sent[0].result(600).offset == 0
            assert not sent[-1].done()


def test_a_producer_holds_no_more_than_its_memory(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer(linger_ms=0, batch_bytes=1000, memory_bytes=5000) as producer:
            with armed("wal.group.before_write=delay:300"):
                highest = 0
                for _ in range(100):
                    producer.send("t", b"x" * 400)
                    highest = max(highest, producer._held_bytes)
            assert highest <= 5000 + 2000
        assert log.offsets("t") == {0: (0, 100)}


@pytest.mark.parametrize(
    "settings",
    [{"linger_ms": -1}, {"batch_bytes": 0}, {"memory_bytes": 0}, {"linger_ms": "5"}],
)
def test_a_producer_refuses_settings_out_of_bounds(settings: dict[str, Any]) -> None:
    with quiet() as log:
        with pytest.raises(InvalidArgumentError, match=f"{next(iter(settings))} must be from"):
            log.producer("till", **settings)
        assert log.stats().producers == 0


def test_a_producer_needs_a_valid_name() -> None:
    with quiet() as log:
        with pytest.raises(InvalidNameError):
            log.producer("not/a name")
        assert log.stats().producers == 0


def test_callbacks_are_called_once_with_the_outcome_and_may_fail(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        told: list[int] = []

        def fail(_: Sent) -> None:
            raise ValueError("of the caller")

        with log.producer(linger_ms=1000, memory_bytes=2000) as producer:
            sent = producer.send("t", b"x")
            sent.add_done_callback(fail)
            sent.add_done_callback(lambda each: told.append(each.result().offset))
            producer.flush(30)
            until(lambda: told == [0])
            sent.add_done_callback(lambda each: told.append(each.result().offset + 100))
            assert told == [0, 100]
            for _ in range(50):  # a callback that failed holds no memory
                producer.send("t", b"y" * 500)


def test_a_later_producer_of_a_name_fences_the_one_before(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        old = log.producer("till")
        old.send("t", b"old").result(600)
        with log.producer("till") as new:
            new.send("t", b"new").result(600)
            late = old.send("t", b"late")
            assert isinstance(late.exception(30), FencedError)
            with pytest.raises(FencedError):
                late.result()
            with pytest.raises(FencedError):
                old.send("t", b"later")
            with pytest.raises(FencedError):
                old.flush(30)
            new.send("t", b"newer").result(600)
        with pytest.raises(FencedError):
            old.close()
        assert rows(log, "t") == [b"old", b"new", b"newer"]


def test_closing_reports_a_failure_that_nobody_looked_at(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        producer = log.producer(linger_ms=0)
        sent = producer.send("t", b"x")
        sent.result(600)
        producer2 = log.producer(linger_ms=60_000)
        producer2.send("t", b"y")
        log.delete_topic("t")
        with pytest.raises(TopicNotFoundError):
            producer2.close()
        producer2.close()
        producer.close()


def test_the_error_of_the_block_is_the_one_that_is_raised(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        with pytest.raises(ZeroDivisionError) as caught, log.producer(linger_ms=60_000) as producer:
            producer.send("t", b"x")
            log.delete_topic("t")
            raise ZeroDivisionError
        assert any("producer" in note for note in caught.value.__notes__)


def test_threads_share_a_producer(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t", 3)
        with log.producer(linger_ms=1, batch_bytes=2000) as producer:

            def work(thread: int) -> list[Sent]:
                return [producer.send("t", b"%d-%d" % (thread, n)) for n in range(300)]

            outcomes = in_threads(8, work)
        held = {number: rows(log, "t", number) for number in range(3)}
        for thread, sent in enumerate(outcomes):
            for number, each in enumerate(sent):
                ack = each.result(600)
                assert held[ack.partition][ack.offset] == b"%d-%d" % (thread, number)
        assert sum(map(len, held.values())) == 8 * 300


def test_typed_records_headers_and_named_partitions_go_through_a_producer(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("typed", 2, PRICE)
        log.create_topic("raw", 3)
        with log.producer() as producer:
            for number in range(10):
                producer.send("typed", {"item": "tea", "price": number}, partition=number % 2)
                producer.send(
                    "raw", b"%d" % number, headers={"n": b"%d" % number}, partition=number % 3
                )
            plain = producer.send("raw", "text", "key", timestamp=5)
        assert [row["price"] for row in rows(log, "typed", 1)] == [1, 3, 5, 7, 9]
        for partition in range(3):
            values, headers = rows(log, "raw", partition), rows(log, "raw", partition, "headers")
            numbers = [value for value in values if value != b"text"]
            assert numbers == [b"%d" % n for n in range(10) if n % 3 == partition]
            pairs = zip(values, headers, strict=True)
            assert all(found == [("n", value)] for value, found in pairs if value != b"text")
        place = plain.result(600)
        table = log.read("raw", place.partition, place.offset)
        assert table.column("key").to_pylist() == [b"key"]


def test_a_bad_record_is_refused_at_once_and_the_producer_goes_on(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.send("t", b"a")
            for bad in (7, {"a": 1}, None):
                with pytest.raises(LakebedError):
                    producer.send("t", bad)
            with pytest.raises(TopicNotFoundError):
                producer.send("nowhere", b"x")
            with pytest.raises(InvalidArgumentError):
                producer.send(["t"], b"x")  # type: ignore[arg-type]
            producer.send("t", b"b")
        assert rows(log, "t") == [b"a", b"b"]


def test_a_closed_producer_and_a_closed_log_refuse_records(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        producer = log.producer()
        producer.send("t", b"x")
        producer.close()
        with pytest.raises(ClosedError):
            producer.send("t", b"y")
        last = log.producer()
        last.send("t", b"z").result(600)
    failed: list[Any] = []
    try:
        failed.append(last.send("t", b"late").exception(30))
        last.close()
    except ClosedError as error:
        failed.append(error)
    assert all(isinstance(error, ClosedError) for error in failed)
    with pytest.raises(ClosedError):
        log.producer()


def test_a_producer_that_sent_nothing_closes_at_once() -> None:
    with quiet() as log:
        with log.producer("idle") as producer:
            assert isinstance(producer, Producer)
            producer.flush()
        assert threading.active_count() >= 1


def test_a_topic_made_anew_gets_the_records_sent_from_then_on(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"old").result(600)
            until(lambda: not producer._open)
            log.delete_topic("t")
            log.create_topic("t")
            assert producer.send("t", b"new").result(600).offset == 0
        assert rows(log, "t") == [b"new"]


def test_a_callback_may_send_although_the_producer_is_full(tmp_path: Path) -> None:
    with (
        lakebed.open(tmp_path / "log") as log,
        log.producer("p", memory_bytes=1, batch_bytes=100) as producer,
    ):
        log.create_topic("t", 1)
        sent: list[Any] = []
        done = threading.Event()

        def again(_: object) -> None:
            sent.append(producer.send("t", b"z" * 200))
            done.set()

        producer.send("t", b"x" * 200).add_done_callback(again)
        assert done.wait(600), "the log hangs"
        assert sent[0].result(600).offset == 1


def test_a_producer_that_wrote_while_the_clock_was_behind_is_not_forgotten() -> None:
    """Idleness counts by both clocks; the producer is forgotten when it has been idle by both."""
    years = 30 * 365 * 86_400
    clock = ManualClock()
    config = LogConfig(producer_expiry_ms=60_000, retention_interval_ms=1000)
    disk = SimDisk()
    with quiet(config=config, clock=clock, disk=disk) as log:
        log.create_topic("t")
        producer = log.producer("p")
        clock.jump(-years)
        producer.send("t", b"x").result(600)
        clock.jump(years)
        clock.advance(30)
        log.tick()
        assert log.stats().producers == 1
        producer.send("t", b"y").result(600)
        clock.jump(-years)
        producer.send("t", b"z").result(600)
        clock.jump(years)
        clock.advance(30)
        log.tick()
        producer.send("t", b"last").result(600)
        clock.jump(-years)
        log.producer("late").send("t", b"x").result(600)
        clock.jump(years)
        clock.advance(61)
        log.tick()
        assert log.stats().producers == 2, "the last write was noted just now"
        clock.advance(61)
        log.tick()
        assert log.stats().producers == 0
        before = state_of(log)
    with quiet(config=config, clock=clock, disk=disk) as log:
        assert state_of(log) == before, "replay forgets the same producers"
