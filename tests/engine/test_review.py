"""What a review found: each of these went wrong once."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import Log, LogConfig, TopicConfig, WalConfig
from lakebed.engine.core import _Redo
from lakebed.errors import (
    DiskFullError,
    EntryTooLargeError,
    InvalidArgumentError,
    TransactionClosedError,
    from_os_error,
)
from lakebed.state.commands import Write
from tests.engine.support import inner, quiet, rows


def _in_callback(log: Log, call: Any) -> Any:
    """Run something in the thread that commits; give what it gave or raised."""
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


@pytest.mark.parametrize("grouped", [True, False])
def test_a_consumer_reads_a_topic_that_was_made_anew_from_its_start(grouped: bool) -> None:
    log = quiet()
    log.create_topic("t", 1)
    log.append_batch("t", [{"value": b"old"}] * 5)
    consumer = log.consumer("g", **({"topics": ["t"]} if grouped else {"partitions": [("t", 0)]}))
    assert consumer.poll().num_rows == 5
    log.delete_topic("t")
    log.create_topic("t", 1)
    log.append_batch("t", [{"value": b"new"}] * 10)
    assert consumer.given() == {}
    assert consumer.poll().num_rows == 10
    consumer.commit()
    assert log.committed("g") == {("t", 0): 10}


def test_offsets_of_a_deleted_topic_are_not_committed_to_the_one_made_anew() -> None:
    log = quiet()
    log.create_topic("t", 1)
    log.append_batch("t", [{"value": b"old"}] * 5)
    consumer = log.consumer("g", partitions=[("t", 0)])
    consumer.poll()
    log.delete_topic("t")
    log.create_topic("t", 1)
    log.append_batch("t", [{"value": b"new"}] * 10)
    consumer.commit()
    assert log.committed("g") == {}


def test_a_handover_whose_entry_was_interrupted_is_written_by_the_next_heartbeat() -> None:
    log = quiet()
    log.create_topic("t", 2)
    for partition in (0, 1):
        log.append("t", b"x", partition=partition)
    first = log.consumer("g", topics=["t"])
    first.poll()
    second = log.consumer("g", topics=["t"])
    first.poll()  # gives up one of its two partitions
    submit = log._groups._submit

    def interrupted(_: object) -> None:
        log._groups._submit = submit
        raise KeyboardInterrupt

    log._groups._submit = interrupted
    with pytest.raises(KeyboardInterrupt):
        second.poll()
    assert second.poll().num_rows == 1
    second.commit()
    assert len(log.committed("g")) == 1


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


def _guarded(log: Log, call: Any) -> Any:
    """Call it only where it would be harmful."""
    return lambda: call() if log._wal.in_callback else None


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


def test_a_reader_does_not_mind_a_field_added_while_it_reads() -> None:
    log = quiet()
    schema = pa.schema([("x", pa.int64())])
    log.create_topic("t", 1, schema)
    log.append("t", {"x": 1})
    reading = inner(log)._reading
    before = reading.topic("t")
    log.alter_topic("t", schema=schema.append(pa.field("y", pa.int64())))
    log.append("t", {"x": 2, "y": 3})
    bounds = log.consumer(partitions=[("t", 0)])._bounds
    table, following = reading.read(before, 0, 0, bounds, None)
    assert table.column("value").to_pylist() == [{"x": 1, "y": None}, {"x": 2, "y": 3}]
    assert following == 2


def test_closing_can_be_repeated_after_it_was_interrupted(tmp_path: Path) -> None:
    log = lakebed.open(tmp_path / "log")
    stop = log._maintenance.stop

    def interrupted() -> None:
        log._maintenance.stop = stop  # type: ignore[method-assign]
        raise KeyboardInterrupt

    log._maintenance.stop = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        log.close()
    log.close()
    lakebed.open(tmp_path / "log").close()


def test_a_checkpoint_that_cannot_stage_a_transaction_leaves_no_segments(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "log", threaded=False)
    log.create_topic("t", 1)
    log.append("t", b"seen")
    transaction = log.transaction("a")
    transaction.append("t", b"unseen")
    transaction._collect(1 << 30)
    write = log._staging.write

    def full(number: int, bodies: Any) -> Any:
        raise from_os_error(OSError(errno.ENOSPC, "full"), "staging", tmp_path)

    log._staging.write = full  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(DiskFullError):
            log.checkpoint()
    assert list(tmp_path.glob("log/lake/*/*.parquet")) == []
    log._staging.write = write  # type: ignore[method-assign]
    assert log.checkpoint().segments == 1
    transaction.commit()
    assert rows(log, "t") == [b"seen", b"unseen"]
    log.close()


def test_a_batch_too_large_for_an_entry_does_not_spoil_its_transaction() -> None:
    log = quiet()
    log.create_topic("t", 1)
    with log.transaction("a") as transaction:
        transaction.append("t", b"before")
        with pytest.raises(EntryTooLargeError):
            transaction.append_batch("t", [{"value": bytes(7 << 20)}] * 10)
        transaction.append("t", b"after")
    assert rows(log, "t") == [b"before", b"after"]


def test_an_entry_that_flushes_nothing_does_not_use_up_the_budget_for_good() -> None:
    log = quiet(config=LogConfig(wal_bytes=64 << 10))
    log.create_topic("t", 1)
    encoded = log._writing.encode_rows(log._writing.target("t"), [{"value": bytes(400 << 10)}], 0)
    assert encoded is not None
    log.delete_topic("t")
    log.checkpoint()
    log._writing.submit(Write(0, (encoded.part,)), (encoded.body,))
    assert log._budget.used() > 1
    log.checkpoint()
    assert log._budget.used() < 1


def test_an_offset_beyond_64_bits_is_refused_as_bad_input() -> None:
    log = quiet()
    log.create_topic("t", 1)
    with pytest.raises(InvalidArgumentError, match=r"whole number|no form on the wire"):
        log.commit_offsets("g", {("t", 0): 2**70})
    assert log.groups() == []


def test_what_has_no_name_leaves_nothing_behind(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t")
        for _ in range(3):
            with log.transaction() as transaction:
                transaction.append("t", b"x")
            log.transaction().abort()
            with log.producer() as producer:
                producer.send("t", b"y")
        assert log.stats().producers == 0
        assert not inner(log)._core.state.sequences
        with log.producer("named") as producer:
            producer.send("t", b"z")
        assert log.stats().producers == 1
    with lakebed.open(tmp_path / "log") as log:
        assert log.stats().producers == 1
        assert log.read("t").num_rows == 7


def test_a_transaction_that_was_seen_in_one_partition_is_seen_in_all(tmp_path: Path) -> None:
    """Readers come between the steps of a commit; none sees one step without the others."""
    partitions = 16
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=partitions)
        ended = threading.Event()
        torn: list[tuple[int, int]] = []

        def look() -> None:
            while not ended.is_set():
                first = log.offsets("t")[0][1]
                last = log.offsets("t")[partitions - 1][1]
                if last < first:
                    torn.append((first, last))

        reader = threading.Thread(target=look)
        reader.start()
        for _ in range(150):
            with log.transaction("w") as transaction:
                for partition in range(partitions):
                    transaction.append("t", b"x", partition=partition)
        ended.set()
        reader.join()
        assert torn == []


def test_readers_wait_for_changes_that_are_half_carried_out(tmp_path: Path) -> None:
    """Ctrl-C in the middle of applying: the next reader finishes it before it looks."""
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t", partitions=2)
        core = log._core
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


def test_a_commit_that_was_cut_short_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("t")
        transaction = log.transaction("w")
        transaction.append("t", b"x")

        def struck(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(log._writing, "submit", struck)
            with pytest.raises(KeyboardInterrupt):
                transaction.commit()
        assert transaction.outcome == "unknown"
        with pytest.raises(TransactionClosedError, match="outcome=unknown"):
            transaction.abort()


def test_work_that_failed_is_given_out_again_after_a_rewind(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("in")
        log.create_topic("out")
        log.append_batch("in", [b"%d" % number for number in range(10)])
        with log.consumer("g", ["in"]) as consumer:
            with pytest.raises(RuntimeError), log.transaction() as transaction:
                assert consumer.poll(5000).num_rows == 10
                transaction.append("out", b"half")
                raise RuntimeError("flaky")
            consumer.rewind()
            log.append("in", b"10")
            with log.transaction() as transaction:
                transaction.append_batch("out", consumer.poll(5000).select(["value"]))
                transaction.commit_offsets(consumer)
            assert consumer.poll().num_rows == 0
        assert log.read("out")["value"].to_pylist() == [b"%d" % number for number in range(11)]


def test_a_rewind_without_a_commit_goes_back_to_the_beginning(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("in")
        log.append("in", b"before")
        with log.consumer("g", ["in"], start="latest") as consumer:
            assert consumer.poll().num_rows == 0
            log.append("in", b"after")
            assert consumer.poll(5000)["value"].to_pylist() == [b"after"]
            consumer.rewind()
            assert consumer.poll(5000)["value"].to_pylist() == [b"after"]


def test_a_wake_ends_one_wait_and_a_consumer_may_be_closed_last(tmp_path: Path) -> None:
    log = lakebed.open(tmp_path / "log")
    log.create_topic("t")
    consumer = log.consumer("g", ["t"])
    consumer.wake()
    assert consumer.poll(None).num_rows == 0
    log.append("t", b"x")
    assert consumer.poll(None).num_rows == 1
    with pytest.raises(InvalidArgumentError, match="wait_ms"):
        consumer.poll("1")  # type: ignore[arg-type]
    log.close()
    consumer.close()


def test_settings_are_taken_as_they_are_shown(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log", LogConfig(wal=WalConfig(sync="interval"))) as log:  # type: ignore[arg-type]
        assert log.stats().wal.sync == "interval"
        made = log.create_topic("t", config=TopicConfig(compression="lz4"))
        assert made.config["compression"] == "lz4"
        log.append_batch("t", [b"a", b"b"])
        log.purge_topic("t")
        assert log.read("t").num_rows == 0
