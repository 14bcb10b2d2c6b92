"""Transactions: everything together or nothing, whatever comes in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import lakebed
from lakebed import Log
from lakebed.api import transaction
from lakebed.errors import (
    ClosedError,
    EntryTooLargeError,
    FencedError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    TransactionClosedError,
    TransactionTimedOutError,
)
from lakebed.host import Disk, ManualClock, SimDisk
from tests.engine.support import (
    PRICE,
    armed,
    at_next_command,
    everything,
    inner,
    quiet,
    rows,
    state_of,
)
from tests.waiting import until

LARGE = [b"%04d" % number + b"x" * 1000 for number in range(200)]


@pytest.fixture
def small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a transaction write, unseen, whenever it has collected a little."""
    monkeypatch.setattr(transaction, "_WRITE_BYTES", 20_000)


def staged_files(disk: Disk) -> list[str]:
    return disk.names(Path("/log/staging"))


def arrived(log: Log) -> None:
    """Wait until what a transaction wrote is there, unseen; on its way to a server that takes."""
    until(lambda: log.stats().memtable_bytes > 50_000)


def test_records_of_several_topics_become_visible_together() -> None:
    with quiet() as log:
        log.create_topic("a", 2)
        log.create_topic("b", 1, PRICE)
        with log.transaction("settle") as tx:
            tx.append("a", b"1", b"k")
            tx.append("b", {"item": "tea", "price": 1})
            tx.append_batch("a", [b"2", b"3"])
            tx.append("a", b"4", partition=0, headers={"h": b"1"})
            assert everything(log, "a") == everything(log, "b") == []
            assert log.stats().open_transactions == 1
        assert sorted(everything(log, "a")) == [b"1", b"2", b"3", b"4"]
        assert everything(log, "b") == [{"item": "tea", "price": 1}]
        assert (tx.outcome, log.stats().open_transactions) == ("committed", 0)


def test_a_small_transaction_commits_with_one_entry() -> None:
    with quiet() as log:
        log.create_topic("a", 3)
        tx = log.transaction()
        before = log.stats().wal.last_index
        for number in range(20):
            tx.append("a", b"%d" % number, b"%d" % number)
        tx.commit()
        assert log.stats().wal.last_index == before + 1


def test_a_commit_tells_the_places() -> None:
    with quiet() as log:
        log.create_topic("a", 3)
        tx = log.transaction()
        for number in range(20):
            tx.append("a", b"%d" % number, b"%d" % number)
        (acks,) = tx.commit()
        held = {number: rows(log, "a", number) for number in range(3)}
        assert [held[ack.partition][ack.offset] for ack in acks] == [b"%d" % n for n in range(20)]


def test_an_exception_in_the_block_aborts_and_is_the_one_raised() -> None:
    with quiet() as log:
        log.create_topic("a")
        with pytest.raises(ZeroDivisionError), log.transaction() as tx:
            tx.append("a", b"1")
            raise ZeroDivisionError
        assert (tx.outcome, rows(log, "a")) == ("aborted", [])
        assert log.append("a", b"2").offset == 0


def test_an_exception_in_the_block_is_raised_even_if_aborting_fails() -> None:
    log = quiet()
    log.create_topic("a")
    with pytest.raises(ZeroDivisionError) as caught, log.transaction() as tx:
        tx.append("a", b"1")
        log.close()
        raise ZeroDivisionError
    assert any("aborting" in note for note in caught.value.__notes__)


def test_nothing_can_be_done_with_a_transaction_that_has_ended() -> None:
    with quiet() as log:
        log.create_topic("a")
        with log.transaction() as tx:
            tx.abort()
        for call in (
            tx.commit,
            tx.abort,
            lambda: tx.append("a", b"1"),
            lambda: tx.append_batch("a", [b"1"]),
            lambda: tx.commit_offsets("g", {("a", 0): 0}),
        ):
            with pytest.raises(TransactionClosedError):
                call()
        tx.close()
        assert rows(log, "a") == []


def test_a_transaction_without_records_commits() -> None:
    with quiet() as log:
        with log.transaction() as tx:
            pass
        assert tx.outcome == "committed"
        assert log.stats().open_transactions == 0


def test_offsets_commit_with_the_records_or_not_at_all() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("in")
        log.create_topic("out")
        log.append_batch("in", [b"1", b"2", b"3"])
        with log.transaction() as tx:
            tx.append("out", b"sum")
            tx.commit_offsets("g", {"in": {0: 2}})
            tx.commit_offsets("g", {("in", 0): 3})
            assert log.groups() == []
        assert log.committed("g") == {("in", 0): 3}
        with pytest.raises(ZeroDivisionError), log.transaction() as tx:
            tx.commit_offsets("g", {("in", 0): 0})
            raise ZeroDivisionError
        tx = log.transaction()
        tx.append("out", b"never")
        tx.commit_offsets("g", {("in", 0): 4})
        with pytest.raises(OffsetOutOfRangeError):
            tx.commit()
        assert (tx.outcome, rows(log, "out")) == ("aborted", [b"sum"])
    with quiet(disk=disk) as log:
        assert log.committed("g") == {("in", 0): 3}
        assert rows(log, "out") == [b"sum"]


def test_a_transaction_may_commit_the_offset_of_a_record_it_writes_itself() -> None:
    with quiet() as log:
        log.create_topic("a")
        with log.transaction() as tx:
            tx.append("a", b"1")
            tx.commit_offsets("g", {("a", 0): 1})
        assert log.committed("g") == {("a", 0): 1}


@pytest.mark.parametrize(
    "offsets", [{"a": 1}, {("a",): 1}, [("a", 0, 1)], {("a", 0): "1"}, {("a", 0): -1}]
)
def test_offsets_of_another_shape_are_refused(offsets: object) -> None:
    with quiet() as log:
        log.create_topic("a")
        with log.transaction() as tx, pytest.raises(InvalidArgumentError, match="offset"):
            tx.commit_offsets("g", offsets)  # type: ignore[arg-type]
        assert log.groups() == []


def test_a_later_transaction_of_a_name_fences_the_one_before() -> None:
    with quiet() as log:
        log.create_topic("a")
        old = log.transaction("settle")
        old.append("a", b"old")
        new = log.transaction("settle")
        new.append("a", b"new")
        with pytest.raises(FencedError):
            old.commit()
        new.commit()
        assert rows(log, "a") == [b"new"]


@pytest.mark.usefixtures("small_writes")
def test_the_late_abort_of_a_fenced_transaction_leaves_the_newer_one_alone() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("a")
        old = log.transaction("settle")
        old.append_batch("a", LARGE)
        new = log.transaction("settle")
        new.append_batch("a", LARGE)
        old.abort()
        new.append("a", b"last")
        new.commit()
        assert rows(log, "a") == [*LARGE, b"last"]
        log.checkpoint()
        assert log.stats().memtable_bytes == 0
        before = state_of(log)
    with quiet(disk=disk) as log:
        assert state_of(log) == before
        assert rows(log, "a") == [*LARGE, b"last"]


def test_a_transaction_that_is_open_for_too_long_is_told_and_leaves_nothing() -> None:
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("a")
        late = log.transaction("late", timeout_ms=1000)
        late.append("a", b"1")
        clock.advance(1.1)
        with pytest.raises(TransactionTimedOutError):
            late.commit()
        expelled = log.transaction("expelled", timeout_ms=1000)
        expelled.append("a", b"2")
        clock.advance(1.1)
        log.tick()
        assert (log.stats().open_transactions, log.stats().transactions_timed_out) == (0, 1)
        with pytest.raises(TransactionTimedOutError):
            expelled.commit()
        assert rows(log, "a") == []
        with pytest.raises(InvalidArgumentError):
            log.transaction(timeout_ms=0)


@pytest.mark.usefixtures("small_writes")
def test_a_large_transaction_is_unseen_until_it_commits_and_then_whole() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("a", 3)
        with log.transaction() as tx:
            for number, value in enumerate(LARGE):
                tx.append("a", value, b"%d" % number)
            tx.append_batch("a", [b"end"])
            until(lambda: log.stats().memtable_bytes > 100_000)
            assert everything(log, "a") == []
            acks = tx.commit()
        held = {number: rows(log, "a", number) for number in range(3)}
        told = [held[ack.partition][ack.offset] for each in acks for ack in each]
        assert told == [*LARGE, b"end"]
        before = state_of(log)
    with quiet(disk=disk) as log:
        assert state_of(log) == before
        assert sorted(everything(log, "a")) == sorted(told)


@pytest.mark.usefixtures("small_writes")
@pytest.mark.parametrize("moment", ["at once", "after a checkpoint", "after two checkpoints"])
def test_what_was_staged_at_a_checkpoint_is_there_after_the_commit(moment: str) -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("a")
        tx = log.transaction()
        tx.append_batch("a", LARGE[:100])
        arrived(log)
        log.checkpoint()
        assert len(staged_files(disk)) == 1
        assert log.stats().memtable_bytes == 0
        tx.append_batch("a", LARGE[100:])
        arrived(log)
        log.checkpoint()
        tx.append("a", b"end")
        tx.commit()
        assert rows(log, "a") == [*LARGE, b"end"]
        table = log.read("a", max_bytes=5000)
        assert 1 <= table.num_rows < 20
        for _ in range({"at once": 0, "after a checkpoint": 1}.get(moment, 3)):
            log.append("a", b"more")
            log.checkpoint()
        before, held = state_of(log), rows(log, "a")
        assert held[:201] == [*LARGE, b"end"]
        if moment == "after two checkpoints":
            assert staged_files(disk) == []
    with quiet(disk=disk) as log:
        assert state_of(log) == before
        assert rows(log, "a") == held
        log.checkpoint()
        assert rows(log, "a") == held


@pytest.mark.usefixtures("small_writes")
def test_an_open_transaction_survives_reopening_and_is_aborted_when_its_time_is_up() -> None:
    disk, clock = SimDisk(), ManualClock()
    with quiet(disk=disk, clock=clock) as log:
        log.create_topic("a")
        tx = log.transaction()
        tx.append_batch("a", LARGE)
        arrived(log)
        log.checkpoint()
        tx.append_batch("a", LARGE)
    with quiet(disk=disk, clock=clock) as log:
        assert log.stats().open_transactions == 1
        assert rows(log, "a") == []
        clock.advance(61)
        log.tick()
        assert log.stats().open_transactions == 0
        assert log.stats().memtable_bytes == 0
        for _ in range(3):
            log.append("a", b"x")
            log.checkpoint()
        assert staged_files(disk) == []


@pytest.mark.usefixtures("small_writes")
def test_the_staged_files_of_an_aborted_transaction_are_removed() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("a")
        tx = log.transaction()
        tx.append_batch("a", LARGE)
        arrived(log)
        log.checkpoint()
        assert len(staged_files(disk)) == 1
        tx.abort()
        for _ in range(3):
            log.append("a", b"x")
            log.checkpoint()
        assert staged_files(disk) == []
        assert rows(log, "a") == [b"x"] * 3


@pytest.mark.usefixtures("small_writes")
def test_two_transactions_at_once_commit_each_as_a_whole() -> None:
    with quiet() as log:
        log.create_topic("a")
        first, second = log.transaction("first"), log.transaction("second")
        for value in LARGE[:60]:
            first.append("a", b"1" + value)
            second.append("a", b"2" + value)
            log.append("a", b"0")
        second.commit()
        assert rows(log, "a") == [b"0"] * 60 + [b"2" + value for value in LARGE[:60]]
        first.commit()
        assert rows(log, "a")[120:] == [b"1" + value for value in LARGE[:60]]


@pytest.mark.usefixtures("small_writes")
@pytest.mark.parametrize("staged", [False, True])
def test_a_commit_to_a_topic_that_was_deleted_is_refused_as_a_whole(*, staged: bool) -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("gone")
        log.create_topic("kept")
        tx = log.transaction()
        tx.append_batch("gone", LARGE)
        tx.append("kept", b"1")
        arrived(log)
        if staged:
            log.checkpoint()
        log.delete_topic("gone")
        log.create_topic("gone")
        with pytest.raises(TopicNotFoundError):
            tx.commit()
        assert everything(log, "kept") == everything(log, "gone") == []
        assert log.stats().memtable_bytes == 0
        before = state_of(log)
    with quiet(disk=disk) as log:
        assert state_of(log) == before


@pytest.mark.usefixtures("small_writes")
def test_a_deleted_topic_in_an_open_transaction_does_not_stop_the_next_opening() -> None:
    disk, clock = SimDisk(), ManualClock()
    with quiet(disk=disk, clock=clock) as log:
        log.create_topic("gone")
        log.create_topic("kept")
        tx = log.transaction()
        tx.append_batch("gone", LARGE)
        arrived(log)
        log.checkpoint()
        log.delete_topic("gone")
        log.append("kept", b"x")
        log.checkpoint()
    with quiet(disk=disk, clock=clock) as log:
        log.append("kept", b"y")
        log.checkpoint()
        clock.advance(100)
        log.tick()
        assert log.stats().open_transactions == 0
        assert rows(log, "kept") == [b"x", b"y"]


@pytest.mark.usefixtures("small_writes")
def test_a_write_that_was_refused_refuses_the_commit_too() -> None:
    with quiet() as log:
        log.create_topic("gone")
        log.create_topic("kept")
        tx = log.transaction()
        tx.append("kept", b"1")
        target = inner(log).parts.writing.target("gone")
        log.delete_topic("gone")
        inner(log).parts.writing._targets["gone"] = target
        inner(log).parts.core.state.names["gone"] = target.topic.id
        inner(log).parts.core.state.topics[target.topic.id] = target.topic
        try:
            tx.append_batch("gone", LARGE[:10])
        finally:
            del (
                inner(log).parts.core.state.names["gone"],
                inner(log).parts.core.state.topics[target.topic.id],
            )
        with pytest.raises(TopicNotFoundError):
            tx.append_batch("kept", LARGE)
        with pytest.raises(TopicNotFoundError):
            tx.commit()
        assert rows(log, "kept") == []


def test_a_commit_after_the_log_was_closed_is_refused() -> None:
    disk = SimDisk()
    log = quiet(disk=disk)
    log.create_topic("a")
    tx = log.transaction()
    tx.append("a", b"1")
    log.close()
    with pytest.raises(ClosedError):
        tx.commit()
    with pytest.raises(ClosedError):
        log.transaction()
    with quiet(disk=disk) as log:
        assert rows(log, "a") == []


@pytest.mark.usefixtures("small_writes")
def test_readers_are_not_held_up_by_an_open_transaction(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("a")
        with log.transaction() as tx:
            tx.append_batch("a", LARGE)
            assert log.append("a", b"1").offset == 0
            assert log.read("a", wait_ms=5000).column("value").to_pylist() == [b"1"]
            with log.consumer("g", ["a"]) as consumer:
                assert consumer.poll(5000).num_rows == 1
        assert log.offsets("a") == {0: (0, 201)}


@pytest.mark.usefixtures("small_writes")
@pytest.mark.parametrize("act", ["commit", "abort", "fence", "delete", "purge"])
def test_what_happens_between_freeze_and_flush_is_the_same_after_reopening(
    tmp_path: Path, act: str
) -> None:
    def play(log: Log) -> None:
        log.create_topic("a")
        log.append_batch("a", LARGE[:5])
        tx = log.transaction("settle")
        tx.append_batch("a", LARGE)
        arrived(log)
        during: dict[str, Callable[[], object]] = {
            "commit": tx.commit,
            "abort": tx.abort,
            "fence": lambda: log.transaction("settle"),
            "delete": lambda: log.delete_topic("a"),
            "purge": lambda: log.purge_topic("a"),
        }
        with at_next_command(inner(log).parts.checkpointer, before=during[act]):
            log.checkpoint()

    with lakebed.open(tmp_path) as log:
        play(log)
        before = state_of(log)
        held = everything(log, "a") if act != "delete" else []
    with lakebed.open(tmp_path) as log:
        assert state_of(log) == before
        assert (everything(log, "a") if act != "delete" else []) == held
        log.get_or_create_topic("a")
        for _ in range(3):
            log.append("a", b"x")
            log.checkpoint()
        before, held = state_of(log), everything(log, "a")
        assert log.verify() >= 1
    with lakebed.open(tmp_path) as log:
        assert (state_of(log), everything(log, "a")) == (before, held)


@pytest.mark.usefixtures("small_writes")
def test_a_failing_stage_leaves_the_transaction_as_it_was() -> None:
    with quiet() as log:
        log.create_topic("a")
        with log.transaction() as tx:
            tx.append_batch("a", LARGE)
            arrived(log)
            with armed("engine.staged.renamed=error"), pytest.raises(lakebed.LakebedError):
                log.checkpoint()
        assert rows(log, "a") == LARGE
        log.checkpoint()
        assert rows(log, "a") == LARGE


def test_a_batch_too_large_for_an_entry_does_not_spoil_its_transaction() -> None:
    log = quiet()
    log.create_topic("t", 1)
    with log.transaction("a") as transaction:
        transaction.append("t", b"before")
        with pytest.raises(EntryTooLargeError):
            transaction.append_batch("t", [{"value": bytes(7 << 20)}] * 10)
        transaction.append("t", b"after")
    assert rows(log, "t") == [b"before", b"after"]


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
            patch.setattr(log._backend.writing, "submit", struck)
            with pytest.raises(KeyboardInterrupt):
                transaction.commit()
        assert transaction.outcome == "unknown"
        with pytest.raises(TransactionClosedError, match="outcome=unknown"):
            transaction.abort()
