"""Consumers and groups: everything once, hand-over without a second holder, offsets that stay."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed import Consumer, TopicPartition
from lakebed.errors import (
    ClosedError,
    FencedError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidArgumentError,
    InvalidNameError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from lakebed.host import ManualClock, SimDisk
from tests.engine.support import at_next_command, inner, quiet, rows, waiting_readers
from tests.waiting import until


def values(consumer: Consumer) -> list[bytes]:
    """Poll until nothing comes."""
    found: list[bytes] = []
    while (table := consumer.poll()).num_rows:
        found += table.column("value").to_pylist()
    return found


def test_a_group_reads_everything_once_while_members_come_and_go() -> None:
    with quiet() as log:
        log.create_topic("t", 8)
        members: list[Consumer] = []
        seen: list[bytes] = []
        sent = 0
        plan = {0: "join", 3: "join", 6: "join", 9: "leave", 12: "join", 15: "leave", 18: "leave"}
        for turn in range(24):
            if plan.get(turn) == "join":
                members.append(log.consumer("g", ["t"], max_records=7))
            elif plan.get(turn) == "leave":
                members.pop(0).close()
            log.append_batch("t", [b"%d" % number for number in range(sent, sent + 40)])
            sent += 40
            for consumer in members:
                table = consumer.poll()
                seen += table.column("value").to_pylist()
                if consumer.given():
                    consumer.commit()
                held = [place for each in members for place in each.assignment()]
                assert len(held) == len(set(held))
        for _ in range(200):
            for consumer in members:
                seen += consumer.poll().column("value").to_pylist()
                consumer.commit()
        assert sorted(map(int, seen)) == list(range(sent))
        assert sum(len(each.assignment()) for each in members) == 8
        assert log.describe_group("g").lag == 0


def test_three_members_share_eight_partitions_evenly() -> None:
    with quiet() as log:
        log.create_topic("t", 8)
        members = [log.consumer("g", ["t"]) for _ in range(3)]
        for _ in range(4):
            for consumer in members:
                consumer.poll()
        assert sorted(len(each.assignment()) for each in members) == [2, 3, 3]
        info = log.describe_group("g")
        assert len(info.members) == 3
        assert {row.member for row in info.partitions} == set(info.members)


def test_committed_offsets_survive_reopening() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("t", 2)
        log.append_batch("t", [b"a", b"b", b"c"], partition=0)
        with log.consumer("g", ["t"]) as consumer:
            assert values(consumer) == [b"a", b"b", b"c"]
            consumer.commit()
            log.append("t", b"d", partition=0)
            assert values(consumer) == [b"d"]
    for checkpoint in (True, False):
        with quiet(disk=disk) as log:
            assert log.committed("g") == {("t", 0): 3}
            with log.consumer("g", ["t"]) as consumer:
                assert values(consumer) == [b"d"]
            if checkpoint:
                log.checkpoint()


def test_a_silent_member_is_expelled_and_its_late_commit_refused() -> None:
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t")
        log.append_batch("t", [b"a", b"b"])
        silent = log.consumer("g", ["t"], session_timeout_ms=1000)
        assert values(silent) == [b"a", b"b"]
        other = log.consumer("g", ["t"], session_timeout_ms=60_000)
        assert values(other) == []
        clock.advance(1.5)
        log.tick()
        assert values(other) == [b"a", b"b"]
        with pytest.raises(FencedError):
            silent.commit()
        with pytest.raises(FencedError):
            silent.poll()
        other.commit()
        silent.close()
        assert log.committed("g") == {("t", 0): 2}
        assert other.assignment() == [TopicPartition("t", 0)]


def test_a_heartbeat_keeps_a_busy_member() -> None:
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("t")
        consumer = log.consumer("g", ["t"], session_timeout_ms=1000)
        for _ in range(5):
            clock.advance(0.8)
            consumer.heartbeat()
            log.tick()
        assert consumer.assignment() == [TopicPartition("t", 0)]


def test_a_standalone_consumer_reads_exactly_its_partitions() -> None:
    with quiet() as log:
        log.create_topic("t", 3)
        for partition in range(3):
            log.append("t", b"%d" % partition, partition=partition)
        with log.consumer(partitions=[("t", 2), ("t", 0)]) as consumer:
            assert sorted(values(consumer)) == [b"0", b"2"]
            with pytest.raises(InvalidArgumentError):
                consumer.commit()
        assert log.groups() == []
        with log.consumer("g", partitions=[("t", 1)]) as consumer:
            assert values(consumer) == [b"1"]
            consumer.commit()
        assert log.committed("g") == {("t", 1): 1}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, InvalidArgumentError),
        ({"group": "g"}, InvalidArgumentError),
        ({"topics": ["t"]}, InvalidArgumentError),
        ({"group": "g", "topics": []}, InvalidArgumentError),
        ({"group": "g", "topics": ["t"], "partitions": [("t", 0)]}, InvalidArgumentError),
        ({"group": "g", "topics": ["nowhere"]}, TopicNotFoundError),
        ({"group": "g/g", "topics": ["t"]}, InvalidNameError),
        ({"partitions": [("t", 9)]}, PartitionNotFoundError),
        ({"group": "g", "topics": ["t"], "start": "middle"}, InvalidArgumentError),
        ({"group": "g", "topics": ["t"], "strategy": "luck"}, InvalidArgumentError),
        ({"group": "g", "topics": ["t"], "max_records": 0}, InvalidArgumentError),
        ({"group": "g", "topics": ["t"], "session_timeout_ms": 0}, InvalidArgumentError),
    ],
)
def test_a_consumer_refuses_what_makes_no_sense(given: dict[str, Any], error: type) -> None:
    with quiet() as log:
        log.create_topic("t")
        with pytest.raises(error):
            log.consumer(**given)
        assert log.groups() == []


def test_seek_goes_elsewhere_and_is_what_is_committed() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", [b"a", b"b", b"c"])
        with log.consumer("g", ["t"]) as consumer:
            assert values(consumer) == [b"a", b"b", b"c"]
            consumer.seek("t", 0, 1)
            assert values(consumer) == [b"b", b"c"]
            consumer.seek("t", 0, "latest")
            assert values(consumer) == []
            consumer.seek("t", 0, "earliest")
            consumer.commit()
            assert log.committed("g") == {("t", 0): 0}
            with pytest.raises(OffsetOutOfRangeError):
                consumer.seek("t", 0, 4)
            with pytest.raises(InvalidArgumentError):
                consumer.seek("t", 1, 0)


def test_lag_counts_what_was_not_given_out_or_not_committed() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", [b"a", b"b", b"c"])
        with log.consumer("g", ["t"], max_records=2) as consumer:
            consumer.poll()
            assert consumer.lag() == {("t", 0): 1}
            assert consumer.positions() == {("t", 0): 2}
            assert log.describe_group("g").lag == 3
            consumer.commit()
            assert log.describe_group("g").lag == 1
            row = log.describe_group("g").partitions[0]
            assert (row.committed, row.earliest, row.end, row.member) == (2, 0, 3, consumer.member)


def test_a_group_is_reset_and_deleted_only_without_members() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", [b"a", b"b"])
        consumer = log.consumer("g", ["t"])
        values(consumer)
        consumer.commit()
        with pytest.raises(GroupNotEmptyError):
            log.reset_group("g", {("t", 0): 0})
        with pytest.raises(GroupNotEmptyError):
            log.delete_group("g")
        consumer.close()
        log.reset_group("g", {"t": {0: 1}})
        with log.consumer("g", ["t"]) as again:
            assert values(again) == [b"b"]
        with pytest.raises(OffsetOutOfRangeError):
            log.reset_group("g", {("t", 0): 3})
        log.delete_group("g")
        assert (log.groups(), log.committed("g")) == ([], {})
        for call in (log.delete_group, log.describe_group):
            with pytest.raises(GroupNotFoundError):
                call("g")


def test_a_group_whose_members_died_with_their_process_can_be_deleted() -> None:
    disk = SimDisk()
    with quiet(disk=disk) as log:
        log.create_topic("t")
        log.consumer("g", ["t"]).poll()
    with quiet(disk=disk) as log:
        assert log.describe_group("g").members == ()
        log.delete_group("g")
        assert log.groups() == []


def test_a_group_may_start_at_the_latest_record() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append("t", b"before")
        with log.consumer("g", ["t"], start="latest") as consumer:
            assert values(consumer) == []
            log.append("t", b"after")
            assert values(consumer) == [b"after"]


def test_records_that_retention_took_first_are_counted_as_skipped() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", [b"a", b"b", b"c", b"d"])
        with log.consumer("g", ["t"], max_records=1) as consumer:
            consumer.poll()
            log.purge_topic("t")
            log.append("t", b"e")
            assert values(consumer) == [b"e"]
            assert consumer.skipped_records == 3


def test_iterating_waits_for_records_and_ends_with_break_or_wake(tmp_path: Path) -> None:
    with lakebed.open(tmp_path) as log:
        log.create_topic("t")
        log.append("t", b"a")
        with log.consumer("g", ["t"]) as consumer:
            for table in consumer:
                assert table.column("value").to_pylist() == [b"a"]
                assert table.schema.metadata == {b"topic": b"t"}
                break
            seen: list[bytes] = []

            def work() -> None:
                for table in consumer:
                    seen.extend(table.column("value").to_pylist())

            reader = threading.Thread(target=work)
            reader.start()
            log.append("t", b"b")
            until(lambda: seen == [b"b"])
            consumer.wake()
            reader.join(600)
            assert not reader.is_alive()
        with pytest.raises(ClosedError):
            consumer.poll()


def test_a_transaction_with_a_consumer_whose_partition_was_taken_leaves_nothing() -> None:
    clock = ManualClock()
    with quiet(clock=clock) as log:
        log.create_topic("in")
        log.create_topic("out")
        log.append_batch("in", [b"a", b"b"])
        consumer = log.consumer("g", ["in"], session_timeout_ms=1000)
        with log.transaction() as tx:
            tx.append_batch("out", consumer.poll())
            tx.commit_offsets(consumer)
        assert (rows(log, "out"), log.committed("g")) == ([b"a", b"b"], {("in", 0): 2})
        log.append("in", b"c")
        tx = log.transaction()
        tx.append_batch("out", consumer.poll())
        tx.commit_offsets(consumer)
        clock.advance(2)
        log.tick()
        other = log.consumer("g", ["in"])
        assert values(other) == [b"c"]
        with pytest.raises(FencedError):
            tx.commit()
        assert (rows(log, "out"), log.committed("g")) == ([b"a", b"b"], {("in", 0): 2})


def test_partitions_that_a_topic_gains_are_picked_up_and_told() -> None:
    with quiet() as log:
        log.create_topic("t", 1)
        told: list[tuple[str, list[TopicPartition]]] = []
        first = log.consumer(
            "g",
            ["t"],
            on_assign=lambda places: told.append(("+", places)),
            on_revoke=lambda places: told.append(("-", places)),
        )
        first.poll()
        log.add_partitions("t", 3)
        log.append("t", b"new", partition=2)
        assert values(first) == [b"new"]
        assert told == [("+", [("t", 0)]), ("+", [("t", 1), ("t", 2)])]
        second = log.consumer("g", ["t"])
        for _ in range(3):
            first.poll()
            second.poll()
        assert told[2][0] == "-"
        assert sorted(first.assignment() + second.assignment()) == [("t", n) for n in range(3)]
        assert second.assignment() == told[2][1]


def test_a_member_can_commit_when_a_partition_is_taken_from_it() -> None:
    with quiet() as log:
        log.create_topic("t", 2)
        log.append_batch("t", [b"a"] * 4)
        first = log.consumer("g", ["t"], on_revoke=lambda _: first.commit())
        assert len(values(first)) == 4
        second = log.consumer("g", ["t"])
        for _ in range(3):
            first.poll()
            assert values(second) == []
        assert len(second.assignment()) == 1
        assert len(log.committed("g")) == 2


def test_a_consumer_goes_on_when_one_of_its_topics_is_deleted() -> None:
    with quiet() as log:
        log.create_topic("a")
        log.create_topic("b")
        with log.consumer("g", ["a", "b"]) as consumer:
            assert values(consumer) == []
            log.delete_topic("a")
            log.append("b", b"x")
            assert values(consumer) == [b"x"]
            consumer.commit()
            assert consumer.poll(1).num_rows == 0


def test_a_consumer_reads_and_commits_a_topic_that_was_made_anew() -> None:
    with quiet() as log:
        log.create_topic("t")
        log.append_batch("t", [b"a", b"b"])
        with log.consumer("g", ["t"]) as consumer:
            assert values(consumer) == [b"a", b"b"]
            log.delete_topic("t")
            log.create_topic("t")
            log.append("t", b"c")
            assert values(consumer) == [b"c"]
            consumer.commit()
        assert log.committed("g") == {("t", 0): 1}


def test_a_waiting_consumer_wakes_up_for_records_and_for_the_end_of_the_log(
    tmp_path: Path,
) -> None:
    log = lakebed.open(tmp_path)
    log.create_topic("t")
    consumer = log.consumer("g", ["t"])
    outcomes: list[Any] = []

    def work() -> None:
        try:
            while True:
                outcomes.append(consumer.poll(None).num_rows)
        except ClosedError as error:
            outcomes.append(error)

    reader = threading.Thread(target=work)
    reader.start()
    until(lambda: bool(waiting_readers(log)))
    log.append("t", b"x")
    until(lambda: outcomes == [1])
    log.close()
    reader.join(600)
    assert isinstance(outcomes[-1], ClosedError)


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


def test_a_consumer_commits_no_offset_of_a_deleted_topic_after_reading_the_recreated_one() -> None:
    log = quiet()
    log.create_topic("t", 2)
    for partition in (0, 1):
        log.append_batch("t", [b"old"] * 5, partition=partition)
    consumer = log.consumer("g", ["t"])
    assert consumer.poll().num_rows == 10
    log.delete_topic("t")
    log.create_topic("t", 2)
    log.append("t", b"new", partition=0)
    assert values(consumer) == [b"new"]
    consumer.commit()
    assert log.committed("g") == {("t", 0): 1}


def test_a_handover_whose_entry_was_interrupted_is_written_by_the_next_heartbeat() -> None:
    log = quiet()
    log.create_topic("t", 2)
    for partition in (0, 1):
        log.append("t", b"x", partition=partition)
    first = log.consumer("g", topics=["t"])
    first.poll()
    second = log.consumer("g", topics=["t"])
    first.poll()  # gives up one of its two partitions

    def interrupt() -> None:
        raise KeyboardInterrupt

    with (
        at_next_command(inner(log).parts.groups, interrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        second.poll()
    assert second.poll().num_rows == 1
    second.commit()
    assert len(log.committed("g")) == 1


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
