"""The asyncio twin does what the log does, and never blocks the event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakebed
import lakebed.aio
from lakebed import errors
from lakebed.aio import (
    AsyncAccess,
    AsyncConsumer,
    AsyncDerived,
    AsyncLake,
    AsyncLog,
    AsyncProducer,
    AsyncTable,
    AsyncTransaction,
)
from lakebed.aio.remote import AsyncRemoteLog
from lakebed.config import LogConfig, ServeConfig, WalConfig
from lakebed.engine.access import Access
from lakebed.engine.log import EmbeddedLog
from lakebed.iceberg.derived_table import Derived
from lakebed.iceberg.lake import Lake
from lakebed.serve.server import Server
from lakebed.topic.survivors import pack_survivors
from lakebed.types import TopicPartition
from tests.engine.support import inner, waiting_readers

TWINS = [
    (lakebed.Log, AsyncLog),
    (lakebed.Consumer, AsyncConsumer),
    (lakebed.Producer, AsyncProducer),
    (lakebed.Transaction, AsyncTransaction),
    (lakebed.Table, AsyncTable),
    (Lake, AsyncLake),
    (Derived, AsyncDerived),
    (Access, AsyncAccess),
]
INSIDE: dict[type, set[str]] = {
    Lake: {"start", "nudge", "delete_segments", "stop", "locate"},
    Derived: {"list_names", "load", "expire", "exclusive", "check_open", "close"},
    Access: {"authenticate", "permissions"},
    lakebed.Producer: {"after_fork"},
    lakebed.Transaction: {"after_fork"},
    # Tasks that call append_batch at the same time have their batches under way together.
    lakebed.Log: {"append_batch_async"},
}
"""What the log and its server call themselves, and what another method covers."""
SECONDS = 600
"""More than any of these takes, unless it hangs."""


Body = Callable[[AsyncLog], Awaitable[Any]]
Run = Callable[..., Any]


def run(target: Path | str, body: Body, config: Any = None) -> Any:
    """Run a test in an event loop, with an open log."""

    async def main() -> Any:
        async with asyncio.timeout(SECONDS), lakebed.aio.open(target, config) as log:
            return await body(log)

    return asyncio.run(main())


def run_served(folder: Path, body: Body, config: Any = None) -> Any:
    """Run a test in an event loop, with a log that is served."""
    with serving(folder, config) as server:
        return run(server.url, body)


def serving(folder: Path, config: Any = None) -> Server:
    log = lakebed.Log.open(folder, config)
    return Server(log, ServeConfig(port=0, http_port=-1)).start()


@pytest.fixture(params=[run, run_served], ids=["embedded", "served"])
def run_on(request: pytest.FixtureRequest) -> Run:
    """Run a test with an embedded log, and with a served one."""
    chosen: Run = request.param
    return chosen


def values(table: pa.Table) -> list[bytes]:
    found: list[bytes] = table.column("value").to_pylist()
    return found


def parameters(function: Any) -> list[tuple[str, object, object]]:
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def methods(kind: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_") and not inspect.ismethod(member)  # Log.open is lakebed.open
    }


@pytest.mark.parametrize(("plain", "twin"), TWINS, ids=lambda kind: kind.__name__)
def test_both_have_the_same_methods_with_the_same_parameters(plain: type, twin: type) -> None:
    inside = INSIDE.get(plain, set())
    there = {name: method for name, method in methods(plain).items() if name not in inside}
    assert len(there) >= 3
    assert methods(twin).keys() == there.keys()
    for name, method in there.items():
        assert parameters(getattr(twin, name)) == parameters(method), name


def test_both_are_opened_alike() -> None:
    assert parameters(lakebed.aio.open) == parameters(lakebed.open)


# Writing


def test_five_thousand_tasks_append_into_few_entries(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", partitions=3)
        before = (await log.stats()).applied_index
        threads = threading.active_count()
        appending = [
            asyncio.create_task(log.append("orders", b"%d" % number)) for number in range(5000)
        ]
        await asyncio.sleep(0)
        assert threading.active_count() <= threads + 1  # the committer's
        acks = await asyncio.gather(*appending)
        assert len(set(acks)) == 5000
        assert (await log.stats()).applied_index - before < 100
        found = {}
        for partition in range(3):
            table = await log.read("orders", partition)
            for offset, value in zip(table["offset"].to_pylist(), values(table), strict=True):
                found[(partition, offset)] = value
        assert [found[ack[1:]] for ack in acks] == [b"%d" % number for number in range(5000)]

    run(tmp_path / "log", body)


def test_what_was_acknowledged_is_there_for_the_plain_log(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        ack = await log.append("orders", b"one", key=b"k", headers={"h": b"v"})
        acks = await log.append_batch("orders", [{"value": b"two"}, {"value": b"three"}])
        assert (ack, list(acks)) == (
            lakebed.Ack("orders", 0, 0),
            [lakebed.Ack("orders", 0, 1), lakebed.Ack("orders", 0, 2)],
        )
        assert list(await log.append_batch("orders", [])) == []

    run_on(tmp_path / "log", body)
    with lakebed.open(tmp_path / "log") as log:
        table = log.read("orders")
        assert values(table) == [b"one", b"two", b"three"]
        assert table["headers"][0].as_py() == [("h", b"v")]


def test_an_append_that_nobody_awaits_is_written(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        log.append_async("orders", b"forgotten")

    run_on(tmp_path / "log", body)
    with lakebed.open(tmp_path / "log") as log:
        assert values(log.read("orders")) == [b"forgotten"]


def test_a_cancelled_append_is_written_or_not_and_harms_nobody(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        tasks = [asyncio.create_task(log.append("orders", b"%d" % n)) for n in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        kept = {b"%d" % n for n in range(1, 100, 2)}
        assert all(isinstance(outcome, lakebed.Ack) for outcome in outcomes[1::2])
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
        found = values(await log.read("orders"))
        assert kept <= set(found)
        assert len(found) == len(set(found))
        assert (await log.append("orders", b"more")).offset == len(found)

    run_on(tmp_path / "log", body)


def test_writers_that_outrun_the_disk_are_slowed_and_nothing_is_lost(
    tmp_path: Path, run_on: Run
) -> None:
    config = LogConfig(WalConfig(), memtable_bytes=256 * 1024, write_timeout_ms=20_000)

    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        value = b"x" * 4000
        for _ in range(4):
            await asyncio.gather(*(log.append("orders", value) for _ in range(200)))
            await asyncio.gather(
                *(log.append_batch("orders", [{"value": value}] * 20) for _ in range(10))
            )
        stats = await log.stats()
        assert (await log.offsets("orders"))[0] == (0, 1600)
        assert stats.throttled_ms > 0
        assert stats.checkpoints > 0

    run_on(tmp_path / "log", body, config)


def test_the_loop_goes_on_while_writers_wait_for_room(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        held = lock_of_checkpoints(log)
        await asyncio.to_thread(held.acquire)
        await log.append("orders", b"x" * 70_000)
        waiting = [
            asyncio.create_task(log.append("orders", b"waits")),
            asyncio.create_task(log.append_batch("orders", [{"value": b"waits"}])),
            *(asyncio.create_task(log.append("orders", b"waits")) for _ in range(500)),
        ]
        async with Ticker() as ticks:
            await until(lambda: ticks.count >= 20)
            assert not any(task.done() for task in waiting)
            assert values(await log.read("orders")) == [b"x" * 70_000]
        held.release()
        await asyncio.gather(*waiting)
        assert (await log.offsets("orders"))[0] == (0, 503)

    run(tmp_path / "log", body, LogConfig(memtable_bytes=64 * 1024))


def test_records_that_waited_for_room_keep_their_order(tmp_path: Path, run_on: Run) -> None:
    config = LogConfig(memtable_bytes=64 * 1024)

    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        futures = [log.append_async("orders", b"%d" % n + b"x" * 500) for n in range(400)]
        await futures[0]
        futures += [log.append_async("orders", b"%d" % n + b"x" * 500) for n in range(400, 1000)]
        acks = await asyncio.gather(*futures)
        assert [ack.offset for ack in acks] == list(range(1000))

    run_on(tmp_path / "log", body, config)


def test_a_writer_that_gets_no_room_is_told_so(tmp_path: Path) -> None:
    config = LogConfig(memtable_bytes=64 * 1024, write_timeout_ms=50)

    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        held = lock_of_checkpoints(log)
        await asyncio.to_thread(held.acquire)
        try:
            await log.append("orders", b"x" * 70_000)
            with pytest.raises(errors.OverloadedError):
                await log.append("orders", b"one too many")
            with pytest.raises(errors.OverloadedError):
                await log.append_batch("orders", [{"value": b"one too many"}])
        finally:
            held.release()
        assert (await log.stats()).rejected_writes == 2

    run(tmp_path / "log", body, config)


# Reading


class Ticker:
    """A task that does nothing but count how often it comes to run."""

    async def __aenter__(self) -> Ticker:
        self.count = 0
        self._task = asyncio.create_task(self._tick())
        return self

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.count += 1

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


def test_the_loop_goes_on_during_a_checkpoint(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        rows = pa.table({"value": [b"%064d" % number for number in range(300_000)]})
        await log.append_batch("orders", rows)
        held = lock_of_checkpoints(log)
        await asyncio.to_thread(held.acquire)
        async with Ticker() as ticks:
            checkpoint = asyncio.create_task(log.checkpoint())
            await until(lambda: ticks.count >= 20)
            assert not checkpoint.done()
            assert (await log.append("orders", b"meanwhile")).offset == 300_000
            held.release()
            before = ticks.count
            report = await checkpoint
            assert ticks.count >= before + 3
            assert await log.verify() == report.segments == 1
        assert report.records == 300_001

    run(tmp_path / "log", body)


def test_a_waiting_read_wakes_up_for_a_record(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", partitions=2)
        threads = threading.active_count()
        waiting = [asyncio.create_task(log.read("orders", 1, wait_ms=None)) for _ in range(100)]
        await asyncio.sleep(0)
        other = await log.append("orders", b"elsewhere", partition=0)
        assert other.partition == 0
        await until(lambda: watchers(log) == 100)
        assert threading.active_count() <= threads + 9  # none for those who wait
        assert not any(task.done() for task in waiting)
        await log.append("orders", b"here", partition=1)
        assert [values(await task) for task in waiting] == [[b"here"]] * 100
        assert watchers(log) == 0

    run(tmp_path / "log", body)


def embedded(log: AsyncLog) -> EmbeddedLog:
    """Return the log that an asynchronous one uses."""
    return inner(log._log)


def lock_of_checkpoints(log: AsyncLog) -> threading.Lock:
    """Return what a checkpoint waits for while it is held."""
    return embedded(log).parts.maintenance._working


def watchers(log: AsyncLog) -> int:
    return sum(len(each) for each in waiting_readers(embedded(log)).values())


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def test_a_read_that_waits_in_vain_gives_an_empty_table(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        started = asyncio.get_running_loop().time()
        table = await log.read("orders", wait_ms=30)
        assert table.num_rows == 0
        assert asyncio.get_running_loop().time() - started >= 0.025
        assert watchers(log) == 0

    run(tmp_path / "log", body)


def test_a_cancelled_read_leaves_nothing_behind(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.read("orders", wait_ms=None), 0.05)
        assert watchers(log) == 0

    run(tmp_path / "log", body)


# Consumers


def test_two_tasks_of_a_group_share_a_topic(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", partitions=4)
        seen: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
        both = asyncio.Event()

        async def consume(name: str) -> None:
            async with log.consumer("billing", ["orders"]) as consumer:
                async for batch in consumer:
                    places = zip(
                        batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True
                    )
                    seen[name] += places
                    await consumer.commit()
                    if all(seen.values()):
                        both.set()

        tasks = [asyncio.create_task(consume(name)) for name in seen]
        sent = 0
        while not both.is_set():
            await log.append_batch("orders", [{"value": b"x"}] * 40)
            sent += 40
        await until(lambda: len(seen["a"]) + len(seen["b"]) >= sent)
        while (await log.describe_group("billing")).lag:  # the last commit is on its way
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        everything = seen["a"] + seen["b"]
        assert len(everything) == len(set(everything)) == sent
        info = await log.describe_group("billing")
        assert (info.members, info.lag) == ((), 0)

    run_on(tmp_path / "log", body)


def test_a_cancelled_poll_loses_no_record(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        await log.append_batch("orders", [{"value": b"%d" % number} for number in range(50)])
        async with log.consumer("billing", ["orders"], max_records=1) as consumer:
            found: list[bytes] = []
            while len(found) < 50:
                task = asyncio.create_task(consumer.poll(None))
                for _ in range(len(found) % 4):
                    await asyncio.sleep(0)
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(outcome, asyncio.CancelledError):
                    given = await consumer.given()
                    assert given.get(TopicPartition("orders", 0), 0) == len(found)
                    outcome = await consumer.poll(None)
                found += values(outcome)
            assert found == [b"%d" % number for number in range(50)]

    run_on(tmp_path / "log", body)


def test_partitions_change_hands_with_callbacks_in_the_loop(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", partitions=2)
        await log.append_batch("orders", [{"value": b"x"}] * 10)
        told: list[tuple[str, int]] = []

        async def revoked(places: list[TopicPartition]) -> None:
            await first.commit()
            told.append(("revoked", len(places)))

        def assigned(places: list[TopicPartition]) -> None:
            asyncio.get_running_loop()
            told.append(("assigned", len(places)))

        first = await log.consumer("g", ["orders"], on_assign=assigned, on_revoke=revoked)
        assert (await first.poll(None)).num_rows == 10
        async with log.consumer("g", ["orders"]) as second:
            await first.poll()
            await second.heartbeat()
            assert told == [("assigned", 2), ("revoked", 1)]
            assert len(await first.assignment()) == len(await second.assignment()) == 1
            assert sum((await second.lag()).values()) == 0  # the first one committed all it had
        await first.close()

    run_on(tmp_path / "log", body)


def test_waking_a_consumer_ends_its_iteration(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        async with log.consumer(partitions=[("orders", 0)]) as consumer:
            asyncio.get_running_loop().call_later(0.02, consumer.wake)
            assert [batch async for batch in consumer] == []

    run_on(tmp_path / "log", body)


# Producers and transactions


def test_a_producer_gives_each_record_its_place(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        async with log.producer("till-7", memory_bytes=20_000, batch_bytes=5_000) as producer:
            sent = [producer.send("orders", b"%05d" % n * 20) for n in range(2000)]
            acks = await asyncio.gather(*sent)
            assert [ack.offset for ack in acks] == list(range(2000))
            producer.send("orders", b"and one that nobody awaits")
            await producer.flush()
            assert (await log.offsets("orders"))[0][1] == 2001
        with pytest.raises(errors.ClosedError):
            producer.send("orders", b"too late")

    run_on(tmp_path / "log", body)


def test_a_fenced_producer_is_told_so(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        old = await log.producer("till-7")
        await old.send("orders", b"one")
        async with log.producer("till-7") as new:
            assert (new.id, new.epoch) == (old.id, old.epoch + 1)
            with pytest.raises(errors.FencedError):
                await old.send("orders", b"two")
            with pytest.raises(errors.FencedError):
                await old.flush()
            await new.send("orders", b"three")
        assert values(await log.read("orders")) == [b"one", b"three"]

    run_on(tmp_path / "log", body)


def test_a_transaction_is_seen_whole_or_not_at_all(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        for name in ("orders", "invoices"):
            await log.create_topic(name)
        await log.append("orders", b"order")
        async with log.consumer("billing", ["orders"]) as consumer:
            await consumer.poll(None)
            async with log.transaction("settle") as tx:
                await tx.append("invoices", b"invoice")
                await tx.append_batch("invoices", [{"value": b"copy"}])
                await tx.commit_offsets(consumer)
                assert (await log.offsets("invoices"))[0] == (0, 0)
            assert tx.outcome == "committed"
        assert values(await log.read("invoices")) == [b"invoice", b"copy"]
        assert await log.committed("billing") == {TopicPartition("orders", 0): 1}

    run_on(tmp_path / "log", body)


def test_prepared_transactions_are_committed_together_once(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("t")
        named = []
        for value in (b"1", b"2"):
            async with log.transaction() as tx:
                await tx.append("t", value)
                named.append(await tx.prepare())
            assert tx.outcome == "prepared"
        assert await log.committed_number("job") is None
        done = await log.commit_together(named, name="job", number=3)
        assert (done.duplicate, done.records) == (False, 2)
        assert (await log.commit_together(named, name="job", number=3)).duplicate
        assert await log.committed_number("job") == 3
        assert (await log.read("t")).column("value").to_pylist() == [b"1", b"2"]

    run_on(tmp_path / "log", body)


def test_a_transaction_whose_block_raises_or_is_cancelled_leaves_nothing(
    tmp_path: Path, run_on: Run
) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        with pytest.raises(ZeroDivisionError):
            async with log.transaction() as tx:
                await tx.append("orders", b"never")
                raise ZeroDivisionError

        async def work() -> None:
            async with log.transaction() as tx:
                await tx.append("orders", b"x" * 5_000_000)  # written, unseen, before the commit
                started.set()
                await asyncio.Event().wait()

        started = asyncio.Event()
        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await log.stats()).open_transactions == 0
        assert (await log.offsets("orders"))[0] == (0, 0)

    run_on(tmp_path / "log", body)


# Tables and the lake


def test_a_table_is_scanned_batch_by_batch_and_looked_up(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", partitions=2)
        sealed = [{"key": b"%d" % n, "value": b"old-%d" % n} for n in range(100)]
        await log.append_batch("orders", sealed)
        await log.checkpoint()
        await log.append("orders", b"new-7", key=b"7")
        table = log.table("orders")
        assert (table.name, table.schema.names[:2]) == ("orders", ["partition", "offset"])
        found = [batch async for batch in table.scan(["value"])]
        assert len(found) >= 2
        assert sorted(values(pa.Table.from_batches(found))) == sorted(
            [row["value"] for row in sealed] + [b"new-7"]
        )
        assert await table.get("7") == b"new-7"
        assert await table.get("nobody", b"none") == b"none"
        assert (await table.record("8") or {})["value"] == b"old-8"
        assert (await table.latest()).num_rows == 100
        assert (await table.as_of({0: 1, 1: 0})).num_rows == 1

    run_on(tmp_path / "log", body)


def test_a_scan_that_is_left_early_or_called_wrongly_harms_nobody(
    tmp_path: Path, run_on: Run
) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", partitions=3)
        for partition in range(3):
            await log.append_batch("orders", [b"x"] * 10, partition=partition)
        await log.checkpoint()
        table = log.table("orders")
        async for batch in table.scan():
            assert batch.num_rows == 10
            break
        with pytest.raises(errors.InvalidArgumentError):
            await anext(aiter(table.scan(["nothing"])))
        reading = asyncio.ensure_future(anext(aiter(table.scan())))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert sum([batch.num_rows async for batch in table.scan()]) == 30
        with pytest.raises(errors.TopicNotFoundError):
            await anext(aiter(log.table("nothing").scan()))

    run_on(tmp_path / "log", body)


def test_a_table_of_a_closed_log_says_so(tmp_path: Path) -> None:
    async def body() -> None:
        async with lakebed.aio.open(tmp_path / "log") as log:
            await log.create_topic("orders")
            table = log.table("orders")
        with pytest.raises(errors.ClosedError):
            await table.get("x")
        with pytest.raises(errors.ClosedError):
            await log.lake.sync()

    asyncio.run(body())


def test_the_lake_is_synced_and_looked_at(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def progress(doing: str, done: int, total: int) -> None:
        asyncio.get_running_loop()
        told.append((doing, done, total))

    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        await log.append("orders", b"x")
        await log.checkpoint()
        report = await log.lake.sync(progress=progress)
        assert report.failures == []
        assert told == [("syncing tables", 0, 1)]
        (info,) = await log.lake.tables()
        assert info == await log.lake.describe("orders")
        assert (info.records, info.lag_records) == (1, 0)
        (snapshot,) = await log.lake.history("orders")
        assert snapshot.snapshot == info.snapshot
        table = await log.lake.table("orders")
        assert (await asyncio.to_thread(table.scan().to_arrow)).num_rows == 1
        assert (await log.lake.gc(now=True)).segments_removed == 0
        assert (await log.lake.stats()).lag_records == 0

    run(tmp_path / "log", body)


# Errors and the end


def test_errors_are_those_of_the_plain_log(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", config={"record_bytes_max": 10})
        wrong_calls: list[tuple[type[Exception], Callable[[], Awaitable[Any]]]] = [
            (errors.TopicExistsError, lambda: log.create_topic("orders")),
            (errors.InvalidNameError, lambda: log.create_topic("../x")),
            (errors.TopicNotFoundError, lambda: log.append("none", b"")),
            (errors.TopicNotFoundError, lambda: log.read("none")),
            (errors.RecordTooLargeError, lambda: log.append("orders", b"x" * 11)),
            (errors.PartitionNotFoundError, lambda: log.append("orders", b"", partition=1)),
            (errors.OffsetOutOfRangeError, lambda: log.read("orders", 0, 1)),
            (errors.InvalidArgumentError, lambda: log.read("orders", wait_ms=-1)),
            (errors.GroupNotFoundError, lambda: log.describe_group("none")),
            (errors.TopicNotFoundError, lambda: log.consumer("g", ["none"])),
            (errors.InvalidArgumentError, lambda: log.consumer("g")),
            (errors.InvalidArgumentError, lambda: log.transaction(timeout_ms=0)),
            (errors.InvalidNameError, lambda: log.producer("a b")),
            (errors.InvalidArgumentError, lambda: lakebed.aio.open("mysql://host:1")),
            (errors.InvalidArgumentError, lambda: lakebed.aio.open("x", lakebed.ClientConfig())),
        ]
        for wrong, call in wrong_calls:
            with pytest.raises(wrong):
                await call()

    run_on(tmp_path / "log", body)


def test_a_folder_that_somebody_has_open_is_locked(tmp_path: Path) -> None:
    async def body(_: AsyncLog) -> None:
        with pytest.raises(errors.LockedError):
            await lakebed.aio.open(tmp_path / "log")

    run(tmp_path / "log", body)


def test_closing_tells_everybody_who_waits(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        # The second member of the group gets no partition, and waits for one.
        members = [await log.consumer("g", ["orders"]) for _ in range(2)]
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(log.read("orders", wait_ms=None)),
            *(asyncio.create_task(member.poll(None)) for member in members),
        ]
        await until(lambda: watchers(log) == 2)
        await log.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [errors.ClosedError] * 3
        for call in (log.append("orders", b""), log.read("orders"), log.topics(), log.stats()):
            with pytest.raises(errors.ClosedError):
                await call
        await log.close()

    run(tmp_path / "log", body)


def test_an_opening_that_is_cancelled_releases_the_folder(tmp_path: Path) -> None:
    async def body() -> None:
        for _ in range(5):
            opening: asyncio.Future[AsyncLog] = asyncio.ensure_future(
                lakebed.aio.open(tmp_path / "log")
            )
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        while True:
            try:
                async with lakebed.aio.open(tmp_path / "log") as log:
                    assert await log.topics() == []
                return
            except errors.LockedError:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(body(), SECONDS))


def test_progress_of_recovery_is_told_in_the_loop(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("orders")
        for number in range(1100):
            log.append_async("orders", b"%d" % number).result()
    told: list[tuple[str, int, int]] = []

    async def body() -> None:
        def progress(doing: str, done: int, total: int) -> None:
            asyncio.get_running_loop()
            told.append((doing, done, total))

        async with lakebed.aio.open(tmp_path / "log", progress=progress) as log:
            assert (await log.stats()).replayed_entries > 1000

    asyncio.run(body())
    assert {doing for doing, *_ in told} >= {"replaying entries"}


# Over the wire


def test_the_folder_of_a_server_is_opened_by_connecting_to_it(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        assert isinstance(log, AsyncRemoteLog)
        assert (log.url, log.principal) == (server.url, "anonymous")
        await log.create_topic("orders")

    with serving(tmp_path / "log") as server:
        run(tmp_path / "log", body)
        assert server.log.topics() == ["orders"]


def test_thousands_of_tasks_append_to_a_server_in_few_entries(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", partitions=3)
        before = (await log.stats()).applied_index
        acks = await asyncio.gather(*(log.append("orders", b"%d" % n) for n in range(3000)))
        assert len(set(acks)) == 3000
        assert (await log.stats()).applied_index - before < 100
        found = {}
        for partition in range(3):
            table = await log.read("orders", partition)
            for offset, value in zip(table["offset"].to_pylist(), values(table), strict=True):
                found[(partition, offset)] = value
        assert [found[ack[1:]] for ack in acks] == [b"%d" % n for n in range(3000)]

    run_served(tmp_path / "log", body)


def test_calls_go_on_while_many_tasks_wait_for_records(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", partitions=2)
        waiting = [asyncio.create_task(log.read("orders", 1, wait_ms=None)) for _ in range(20)]
        await until(lambda: waiters(server) == 20)
        assert await log.topics() == ["orders"]
        await log.append("orders", b"elsewhere", partition=0)
        assert not any(task.done() for task in waiting)
        await log.append("orders", b"here", partition=1)
        assert [values(await task) for task in waiting] == [[b"here"]] * 20
        assert (await log.read("orders", 1, "latest", wait_ms=30)).num_rows == 0

    with serving(tmp_path / "log") as server:
        run(server.url, body)


def waiters(server: Server) -> int:
    return sum(len(each) for each in waiting_readers(server.log).values())


def test_cancelled_waits_leave_nothing_behind_at_the_server(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        consumer = await log.consumer("g", ["orders"])
        tasks = [
            asyncio.create_task(log.read("orders", wait_ms=None)),
            asyncio.create_task(consumer.poll(None)),
        ]
        await until(lambda: waiters(server) == 2)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in outcomes] == [asyncio.CancelledError] * 2
        await until(lambda: waiters(server) == 0)
        await log.append_batch("orders", [{"value": b"0"}, {"value": b"1"}])
        await consumer.seek("orders", 0, 1)
        assert values(await consumer.poll(None)) == [b"1"]
        await consumer.rewind()
        assert values(await consumer.poll(None)) == [b"0", b"1"]
        await consumer.close()

    with serving(tmp_path / "log") as server:
        run(server.url, body)


def test_closing_a_served_log_tells_everybody_who_waits(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        await log.create_topic("invoices")
        members = [await log.consumer("g", ["orders"]) for _ in range(2)]
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(log.read("orders", wait_ms=None)),
            *(asyncio.create_task(member.poll(None)) for member in members),
        ]
        await until(lambda: waiters(server) == 2)
        last = log.append_async("invoices", b"appended before")
        await log.close()
        assert (await last).offset == 0
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [errors.ClosedError] * 3
        for call in (log.append("orders", b""), log.read("orders"), log.topics(), log.stats()):
            with pytest.raises(errors.ClosedError):
                await call
        await log.close()

    with serving(tmp_path / "log") as server:
        run(server.url, body)
        assert values(server.log.read("invoices")) == [b"appended before"]


def test_a_topic_that_was_changed_by_another_client_is_looked_at_again(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders", config={"record_bytes_max": 10})
        await log.append("orders", b"small")
        async with lakebed.aio.open(server.url) as other:
            await other.alter_topic("orders", {"record_bytes_max": 1000}, partitions=2)
            assert (await log.append("orders", b"x" * 500, partition=1)).partition == 1
            await other.delete_topic("orders")
            with pytest.raises(errors.TopicNotFoundError):
                await log.append("orders", b"nowhere")
            await other.create_topic("orders")
            assert (await log.append_batch("orders", [b"anew"]))[0].offset == 0

    with serving(tmp_path / "log") as server:
        run(server.url, body)


def test_a_producer_is_fenced_by_one_of_another_client(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        old = await log.producer("till-7")
        await old.send("orders", b"one")
        async with lakebed.aio.open(server.url) as other, other.producer("till-7") as new:
            assert (new.id, new.epoch) == (old.id, old.epoch + 1)
            with pytest.raises(errors.FencedError):
                await old.send("orders", b"two")
            with pytest.raises(errors.FencedError):
                await old.flush()
            await new.send("orders", b"three")
        assert values(await log.read("orders")) == [b"one", b"three"]

    with serving(tmp_path / "log") as server:
        run(server.url, body)


def test_a_compaction_is_planned_and_carried_out(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("states", config={"cleanup": "compact"})
        for value in (b"old", b"new"):
            await log.append("states", value, b"k")
        await log.checkpoint()
        (part,) = (await log.plan_compaction("states", force=True)).partitions
        bits = pack_survivors(np.array([1], dtype=np.int64), base=part.base, end=part.end)
        report = await log.rewrite_segments("states", 0, part.segments, bits)
        assert (report.records_kept, report.records_dropped) == (1, 1)
        assert values(await log.read("states")) == [b"new"]
        with pytest.raises(errors.StalePlanError):
            await log.rewrite_segments("states", 0, part.segments, bits)

    run_on(tmp_path / "log", body)


def test_a_served_log_is_looked_after(tmp_path: Path) -> None:
    told: list[str] = []

    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        await log.append("orders", b"sealed")
        await log.checkpoint()
        await log.append("orders", b"hot")
        plan = await log.table("orders").plan()
        assert [(each.start, each.until) for each in plan.files] == [(0, 1)]
        assert [(each.start, each.until) for each in plan.hot] == [(1, 2)]
        assert plan.hot[0].bytes > 0
        report = await log.lake.sync(progress=lambda doing, *_: told.append(doing))
        assert report.failures == []
        assert (await log.lake.describe("orders")).records == 1
        assert "orders" in [each.topic for each in await log.lake.tables()]
        assert len(await log.lake.history("orders")) == 1
        assert (await log.lake.stats()).lag_records >= 1
        assert (await log.lake.gc()).segments_removed == 0
        assert (await log.verify("orders"), (await log.stats()).topics) == (1, 1)
        assert await log.groups() == []

    run_served(tmp_path / "log", body)
    assert len(told) == 1


def test_access_is_looked_after(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        access = log.access
        with pytest.raises(errors.InvalidArgumentError, match="create an administrator first"):
            await access.allow("clerk", "read", "orders")
        await access.allow("clerk", "read", "orders", force=True)
        await access.grant("ann", "clerk")
        assert [tuple(vars(each).values()) for each in await access.rules()] == [
            ("clerk", "read", "orders")
        ]
        assert [each.principal for each in await access.grants()] == ["ann"]
        with pytest.raises(errors.InvalidArgumentError):
            await access.forbid("clerk", "write", "orders")
        await access.deny("clerk", "read", "secret*")
        assert [denial.pattern for denial in await access.denials()] == ["secret*"]
        await access.lift("clerk", "read", "secret*")
        assert await access.denials() == []

    async def with_token(log: AsyncLog) -> None:
        access = log.access
        token = await access.create_token("ann", roles=["admin"])
        assert str(token).startswith("lkb_")
        (info,) = await access.tokens()
        await access.revoke_token(info.id, force=True)
        assert [each.valid for each in await access.tokens()] == [False]

    run(tmp_path / "log", with_token)
    run(tmp_path / "rules", body)


def test_a_token_is_shown_to_the_server(tmp_path: Path) -> None:
    async def body(log: AsyncLog) -> None:
        assert isinstance(log, AsyncRemoteLog)
        assert log.principal == "ann"
        with pytest.raises(errors.UnauthenticatedError):
            await lakebed.aio.open(log.url)
        secret = await log.access.create_token("bob", roles=["reader"])
        async with lakebed.aio.open(log.url, lakebed.ClientConfig(token=str(secret))) as other:
            with pytest.raises(errors.AccessDeniedError):
                await other.create_topic("orders")

    with serving(tmp_path / "log") as server:
        token = server.log.access.create_token("ann", roles=["admin"])
        run(server.url, body, lakebed.ClientConfig(token=str(token)))


def test_tasks_go_on_when_the_server_is_started_again(tmp_path: Path) -> None:
    """Those that wait for records, and those that append meanwhile."""

    def start_again(port: int) -> Server:
        server.stop()
        return Server(lakebed.Log.open(tmp_path / "log"), ServeConfig(port=port, http_port=-1))

    async def body(log: AsyncLog) -> None:
        await log.create_topic("orders")
        async with log.consumer("billing", ["orders"]) as consumer:
            waiting: list[asyncio.Task[Any]] = [
                asyncio.create_task(consumer.poll(None)),
                asyncio.create_task(log.read("orders", wait_ms=None)),
            ]
            await until(lambda: waiters(server) == 2)
            again = await asyncio.to_thread(start_again, server.port)
            appending = asyncio.create_task(log.append("orders", b"after"))
            with await asyncio.to_thread(again.start):
                assert [values(await task) for task in waiting] == [[b"after"]] * 2
                assert (await appending).offset == 0
                await consumer.commit()
                assert await log.committed("billing") == {TopicPartition("orders", 0): 1}
                await consumer.close()
                await log.close()

    with serving(tmp_path / "log") as server:
        run(server.url, body, lakebed.ClientConfig(retry_ms=SECONDS * 1000))


def test_times_outside_the_years_1_to_9999_are_refused(tmp_path: Path, run_on: Run) -> None:
    async def body(log: AsyncLog) -> None:
        await log.create_topic("t")
        async with await log.producer() as producer:
            with pytest.raises(errors.InvalidArgumentError):
                await producer.send("t", b"x", timestamp=2**62)
        with pytest.raises(errors.InvalidArgumentError):
            await log.append("t", b"x", timestamp=2**62)
        with pytest.raises(errors.InvalidArgumentError):
            await log.append_batch("t", [{"value": b"x", "timestamp": 2**62}])
        async with await log.transaction() as transaction:
            with pytest.raises(errors.InvalidArgumentError):
                await transaction.append("t", b"x", timestamp=2**62)
        assert values(await log.read("t")) == []

    run_on(tmp_path / "log", body)


# Derived tables


def test_a_derived_table_is_made_and_read_by_tasks(tmp_path: Path, run_on: Run) -> None:
    schema = pa.schema([("id", pa.int64()), ("amount", pa.int64())])

    async def body(log: AsyncLog) -> None:
        made = await log.derived.create("totals", schema, key=["id"], buckets=1)
        assert await log.derived.tables() == ["totals"]
        assert (await log.derived.describe("totals")).location == made.location
        places = [await log.derived.place("totals") for _ in range(2)]
        assert len(set(places)) == 2
        assert all(place.startswith(made.location) for place in places)
        assert (await log.derived.files("totals")).files == ()
        done = await log.derived.commit("totals", writer="job", number=1, expected=made.version)
        assert done.duplicate is False
        assert (await log.derived.describe("totals")).writers == {"job": 1}
        assert (await log.derived.iceberg("totals")).schema().column_names
        assert await log.derived.drop("totals")
        assert await log.derived.tables() == []
        with pytest.raises(errors.LakebedError):
            await log.derived.describe("totals")

    run_on(tmp_path / "log", body)


def test_a_log_in_a_store_is_opened_by_its_url(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    url = f"file://{tmp_path}/store"

    async def write() -> None:
        async with lakebed.aio.open(url, folder=tmp_path / "one") as log:
            await log.create_topic("orders")
            await log.append("orders", b"first")

    async def read() -> int:
        async with lakebed.aio.open(url, folder=tmp_path / "two") as log:
            rows: int = (await log.read("orders")).num_rows
            return rows

    asyncio.run(write())
    assert asyncio.run(read()) == 1
