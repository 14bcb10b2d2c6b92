"""Read replicas: what they show, how they follow, and what they refuse."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed
import lakebed.aio
from lakebed import limits
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import (
    InvalidArgumentError,
    LockedError,
    NotALogError,
    NotOwnerError,
    TopicNotFoundError,
)
from tests.engine.shipped import Machines, values
from tests.engine.support import waiting_readers
from tests.waiting import until

POLL_MS = 20


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@pytest.fixture
def owner(machines: Machines) -> Iterator[EmbeddedLog]:
    with machines.open("a") as log:
        log.create_topic("orders")
        yield log


def follow(machines: Machines, folder: Path | None = None, **wal: Any) -> EmbeddedLog:
    config = machines.config(**{"replica_poll_ms": POLL_MS, **wal})
    log = lakebed.open(f"file://{machines.store}", config, folder=folder, replica=True)
    assert isinstance(log, EmbeddedLog)
    return log


def catch_up(replica: EmbeddedLog) -> None:
    assert replica.parts.replica is not None
    replica.parts.replica.catch_up()


def test_a_replica_shows_what_the_owner_has_acknowledged(
    machines: Machines, owner: EmbeddedLog
) -> None:
    owner.append_batch("orders", [b"%d" % number for number in range(100)])
    with follow(machines) as replica:
        assert values(replica) == [b"%d" % number for number in range(100)]
        owner.append("orders", b"more")
        until(lambda: values(replica)[-1] == b"more")
        owner.create_topic("late", 2)
        until(lambda: "late" in replica.topics())
        owner.delete_topic("late")
        until(lambda: "late" not in replica.topics())


def test_records_come_from_segments_and_from_the_tail(
    machines: Machines, owner: EmbeddedLog
) -> None:
    owner.append("orders", b"in a segment", "k")
    owner.checkpoint()
    owner.append("orders", b"in the tail", "k")
    owner.append("orders", b"other", "l")
    with follow(machines) as replica:
        table = replica.table("orders")
        assert values(replica) == [b"in a segment", b"in the tail", b"other"]
        assert table.scan().read_all().column("value").to_pylist() == values(replica)
        assert table.get("k") == b"in the tail"
        assert table.latest().column("value").to_pylist() == [b"in the tail", b"other"]
        assert table.as_of(offset={0: 1}).column("value").to_pylist() == [b"in a segment"]
        owner.checkpoint()
        catch_up(replica)
        assert replica.stats().memtable_records == 0
        assert values(replica) == [b"in a segment", b"in the tail", b"other"]
        assert replica.verify() > 0


def test_a_reader_that_waits_is_woken(machines: Machines, owner: EmbeddedLog) -> None:
    with follow(machines) as replica:
        got: list[Any] = []
        reader = threading.Thread(target=lambda: got.append(replica.read("orders", wait_ms=None)))
        reader.start()
        until(lambda: bool(waiting_readers(replica)))
        owner.append("orders", b"1")
        reader.join(600)
        assert got[0].column("value").to_pylist() == [b"1"]


def test_a_consumer_without_a_group_follows(machines: Machines, owner: EmbeddedLog) -> None:
    owner.append("orders", b"1")
    with (
        follow(machines) as replica,
        replica.consumer(partitions=[("orders", 0)]) as consumer,
    ):
        first = consumer.poll(wait_ms=None)
        owner.append("orders", b"2")
        second = consumer.poll(wait_ms=None)
        assert [table.column("value").to_pylist() for table in (first, second)] == [[b"1"], [b"2"]]


def test_transactions_are_seen_when_they_are_committed(
    machines: Machines, owner: EmbeddedLog
) -> None:
    """Also if their data was staged in the store when the replica was opened."""
    with owner.transaction("t") as transaction:
        transaction.append("orders", b"staged")
        owner.checkpoint()
        transaction.append("orders", b"in the tail")
        with follow(machines) as replica:
            assert values(replica) == []
            transaction.commit()
            until(lambda: len(values(replica)) == 2)
            assert values(replica) == [b"staged", b"in the tail"]
            owner.checkpoint()
            owner.checkpoint()
            owner.append("orders", b"behind")
            until(lambda: len(values(replica)) == 3)
            assert replica.parts.staging._remote == {}


REFUSED: dict[str, Callable[[lakebed.Log], object]] = {
    "append": lambda log: log.append("orders", b"1"),
    "append_async": lambda log: log.append_async("orders", b"1").result(),
    "append_batch": lambda log: log.append_batch("orders", [b"1"]),
    "create_topic": lambda log: log.create_topic("more"),
    "alter_topic": lambda log: log.alter_topic("orders", {"retention_ms": 1000}),
    "add_partitions": lambda log: log.add_partitions("orders", 3),
    "purge_topic": lambda log: log.purge_topic("orders"),
    "delete_topic": lambda log: log.delete_topic("orders"),
    "producer": lambda log: log.producer("p"),
    "transaction": lambda log: log.transaction("t"),
    "consumer": lambda log: log.consumer("g", ["orders"]),
    "commit_offsets": lambda log: log.commit_offsets("g", {("orders", 0): 0}),
    "reset_group": lambda log: log.reset_group("g", {("orders", 0): 0}),
    "checkpoint": lambda log: log.checkpoint(),
    "retain": lambda log: log.retain(),
    "backup": lambda log: log.backup("nowhere"),
    "token": lambda log: log.access.create_token("ann"),
    "grant": lambda log: log.access.grant("ann", "admin"),
    "tick": lambda log: log.tick(),
    "rewrite": lambda log: log.rewrite_segments("orders", 0, [1], b""),
    "sync": lambda log: log.lake.sync(),
    "gc": lambda log: log.lake.gc(),
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_only_the_owner_does_is_refused_and_names_it(
    machines: Machines, owner: EmbeddedLog, call: str
) -> None:
    assert owner.parts.shipping is not None
    owner.parts.shipping.lease.announce("lakebed://owner:4747")
    with follow(machines) as replica:
        before = sorted(path for path in machines.store.rglob("*") if path.name != "lease")
        with pytest.raises(NotOwnerError) as refused:
            REFUSED[call](replica)
        assert refused.value.facts["address"] == "lakebed://owner:4747"
        assert values(replica) == []
        after = sorted(path for path in machines.store.rglob("*") if path.name != "lease")
        assert after == before


def test_a_replica_writes_nothing_into_the_store(machines: Machines, owner: EmbeddedLog) -> None:
    owner.append("orders", b"1")
    owner.close()
    before = {path: path.stat().st_mtime_ns for path in machines.store.rglob("*")}
    with follow(machines) as replica:
        assert values(replica) == [b"1"]
        catch_up(replica)
    assert {path: path.stat().st_mtime_ns for path in machines.store.rglob("*")} == before


def test_a_replica_that_slept_through_a_checkpoint_begins_with_its_base(
    machines: Machines, owner: EmbeddedLog
) -> None:
    with follow(machines, replica_poll_ms=600_000) as replica:
        seen: list[Any] = []
        waits = threading.Thread(target=lambda: seen.append(replica.read("orders", wait_ms=None)))
        waits.start()
        for number in range(4):  # the slots that it would read next are removed
            owner.append("orders", b"%d" % number)
            owner.checkpoint()
        assert values(replica) == []
        catch_up(replica)
        waits.join(600)
        assert values(replica) == [b"0", b"1", b"2", b"3"]
        assert seen[0].num_rows == 4
        stats = replica.stats().replica
        assert stats is not None
        assert stats.loads == 2
        owner.append("orders", b"4")
        catch_up(replica)
        assert values(replica)[-1] == b"4"
        stats = replica.stats().replica
        assert stats is not None
        assert (stats.loads, stats.lag_slots, stats.lag_entries) == (2, 1, 1)


def test_a_walk_that_begins_again_does_not_go_back(machines: Machines, owner: EmbeddedLog) -> None:
    """A walk may begin at a base that is older than what was shown already."""
    owner.append("orders", b"1")
    owner.checkpoint()
    owner.append("orders", b"2")
    with follow(machines) as replica:
        follower = replica.parts.replica
        assert follower is not None
        assert values(replica) == [b"1", b"2"]
        follower._walk.restart()
        catch_up(replica)
        owner.append("orders", b"3")
        until(lambda: values(replica) == [b"1", b"2", b"3"])
        assert follower.stats().loads == 1


def test_a_segment_that_the_owner_has_replaced_is_looked_for_again(
    machines: Machines, owner: EmbeddedLog
) -> None:
    """A replica names a segment until it reads the entry that drops it; its file may be gone."""
    for number in range(limits.MERGE_SEGMENTS_MIN):
        owner.append("orders", b"%d" % number, "k")
        owner.checkpoint()
    with follow(machines, replica_poll_ms=600_000) as replica:
        assert owner.retain("orders").segments_merged
        remove_replaced(machines, owner, replica)
        assert values(replica) == values(owner)


def remove_replaced(machines: Machines, owner: EmbeddedLog, replica: EmbeddedLog) -> None:
    """Remove from the store, as garbage collection does, what only a replica names still."""
    named = [
        {segment.location.rpartition("/")[2] for segment in log.segments("orders", 0)}
        for log in (owner, replica)
    ]
    gone = [path for path in machines.store.rglob("*.parquet") if path.name in named[1] - named[0]]
    assert gone
    for path in gone:
        path.unlink()


def test_a_lookup_finds_a_segment_that_was_replaced(machines: Machines, owner: EmbeddedLog) -> None:
    for number in range(limits.MERGE_SEGMENTS_MIN):
        owner.append("orders", b"%d" % number, "k")
        owner.checkpoint()
    with follow(machines, replica_poll_ms=600_000) as replica:
        assert owner.retain("orders").segments_merged
        remove_replaced(machines, owner, replica)
        assert replica.table("orders").get("k") == values(owner)[-1]
        assert replica.table("orders").scan().read_all().num_rows == limits.MERGE_SEGMENTS_MIN


def test_a_replica_follows_a_takeover(machines: Machines, owner: EmbeddedLog) -> None:
    owner.append("orders", b"a")
    with follow(machines) as replica:
        first = replica.stats().replica
        owner.close()
        with machines.open("b") as second:
            second.append("orders", b"b")
            until(lambda: values(replica) == [b"a", b"b"])
            now = replica.stats().replica
            assert first is not None
            assert now is not None
            assert second.parts.shipping is not None
            assert first.term < now.term == second.parts.shipping.stats().term


def test_stats_say_how_far_it_is_behind(machines: Machines, owner: EmbeddedLog) -> None:
    assert owner.stats().role == "owner"
    with follow(machines, lease_ms=300, replica_poll_ms=10) as replica:
        assert replica.stats().role == "replica"
        until(lambda: replica.stats().replica.is_current)  # type: ignore[union-attr]
        machines.take_away_store()
        until(lambda: replica.stats().replica.lag_ms > 300)  # type: ignore[union-attr]
        until(lambda: replica.stats().replica.failing_ms > 0)  # type: ignore[union-attr]
        assert not replica.stats().replica.is_current  # type: ignore[union-attr]
        assert replica.topics() == ["orders"], "it serves what it has"
        machines.bring_back_store()
        until(lambda: replica.stats().replica.is_current)  # type: ignore[union-attr]


def test_setting_replica_poll_ms(machines: Machines, owner: EmbeddedLog) -> None:
    with follow(machines, replica_poll_ms=600_000) as slow, follow(machines) as quick:
        owner.append("orders", b"1")
        until(lambda: values(quick) == [b"1"])
        assert values(slow) == []
        catch_up(slow)
        assert values(slow) == [b"1"]


def test_replicas_on_one_machine_do_not_collide(
    machines: Machines, owner: EmbeddedLog, tmp_path: Path
) -> None:
    owner.append("orders", b"1")
    with follow(machines) as one, follow(machines) as two:
        assert one.folder != two.folder
        assert values(one) == values(two) == [b"1"]
    assert not one.folder.exists()
    with (
        follow(machines, tmp_path / "cache"),
        pytest.raises(LockedError),
    ):
        follow(machines, tmp_path / "cache")
    with follow(machines, tmp_path / "cache") as again:
        assert values(again) == [b"1"]
    with pytest.raises(InvalidArgumentError, match="another folder"):
        owner.close()
        follow(machines, tmp_path / "a")


def test_what_cannot_be_followed_is_refused(machines: Machines, tmp_path: Path) -> None:
    with pytest.raises(NotALogError):
        follow(machines)
    with pytest.raises(InvalidArgumentError, match="`replica` is for a log in a store"):
        lakebed.open(tmp_path / "folder", replica=True)
    assert not (tmp_path / "folder").exists()


def test_a_closed_replica_ends_who_waits(machines: Machines, owner: EmbeddedLog) -> None:
    replica = follow(machines, replica_poll_ms=600_000)
    failed = threading.Event()

    def wait() -> None:
        with pytest.raises(lakebed.LakebedError):
            replica.read("orders", wait_ms=None)
        failed.set()

    reader = threading.Thread(target=wait)
    reader.start()
    until(lambda: bool(waiting_readers(replica)))
    replica.close()
    reader.join(600)
    assert failed.is_set()
    assert owner.topics() == ["orders"]


def test_asyncio(machines: Machines, owner: EmbeddedLog) -> None:
    owner.append("orders", b"1")

    async def run() -> None:
        config = machines.config(replica_poll_ms=POLL_MS)
        async with lakebed.aio.open(f"file://{machines.store}", config, replica=True) as replica:
            assert (await replica.read("orders")).num_rows == 1
            waiting = asyncio.create_task(replica.read("orders", offset=1, wait_ms=None))
            await asyncio.to_thread(owner.append, "orders", b"2")
            assert (await waiting).column("value").to_pylist() == [b"2"]
            with pytest.raises(NotOwnerError):
                await replica.append("orders", b"3")
            with pytest.raises(NotOwnerError):
                await replica.append_batch("orders", [b"3"])
            with pytest.raises(TopicNotFoundError):
                await replica.read("none")

    asyncio.run(run())
