"""Records appended one by one are merged in memory, and replayed in runs, with nothing changed."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pyarrow as pa
import pytest

from lakebed import Log, LogConfig, WalConfig
from lakebed.engine import write_runs
from lakebed.errors import RejectedError
from lakebed.host import ManualClock, SimDisk
from lakebed.limits import KIB
from lakebed.topic import memtable
from tests.engine.support import PRICE, at_next_command, everything, inner, quiet, rows, state_of

COUNT = 1500


def accounted(log: Log) -> int:
    return inner(log).parts.core.used["memory_bytes"]


def held(log: Log) -> int:
    """Return the memory of every body that a memtable or an open transaction refers to."""
    core = inner(log).parts.core
    bodies = {id(body): body for body in core.bodies.values()}
    for each in core.memtables.values():
        bodies |= {id(chunk.body): chunk.body for chunk in each.chunks()}
    return sum(body.memory_bytes for body in bodies.values())


def chunks(log: Log, topic: int = 1, partition: int = 0) -> list[memtable.Chunk]:
    return inner(log).parts.core.memtables[(topic, partition)].chunks()


def test_single_records_take_at_most_twice_their_payload() -> None:
    with quiet() as log:
        log.create_topic("t")
        values = [b"%d" % number * 30 for number in range(1000, 1000 + 2 * COUNT)]
        for value in values:
            log.append("t", value)
        payload = sum(map(len, values))
        assert log.stats().memtable_bytes <= 2 * payload
        assert accounted(log) == held(log)
        assert len(chunks(log)) < 300
        assert rows(log, "t") == values
        log.checkpoint()
        assert (rows(log, "t"), log.stats().memtable_bytes) == (values, 0)


def test_small_batches_over_several_partitions_are_counted_until_every_one_is_merged() -> None:
    with quiet() as log:
        log.create_topic("t", partitions=3)
        written: list[bytes] = []
        for number in range(700):
            some = [b"%d.%d" % (number, row) for row in range(6 if number % 5 else 3)]
            log.append_batch("t", some, partition=None if number % 3 else 1)
            written += some
            assert accounted(log) == held(log)
        assert sorted(everything(log, "t")) == sorted(written)
        assert len(chunks(log, partition=1)) < 400
        log.checkpoint()
        assert accounted(log) == held(log) == 0
        assert sorted(everything(log, "t")) == sorted(written)


def test_records_written_during_a_checkpoint_are_merged_across_its_end() -> None:
    """The flush covers a part of a merged chunk: the rest stays, and is flushed once."""
    with quiet() as log:
        log.create_topic("t")
        for number in range(200):
            log.append("t", b"%d" % number)
        checkpointer = inner(log).parts.checkpointer

        def write_before() -> None:
            for number in range(200, 300):
                log.append("t", b"%d" % number)
            assert chunks(log)[0].end > 200

        with at_next_command(checkpointer, write_before):
            log.checkpoint()
        want = [b"%d" % number for number in range(300)]
        assert chunks(log)[0].base == 200
        assert rows(log, "t") == want
        assert rows(log, "t", column="offset") == list(range(300))
        assert accounted(log) == held(log) > 0
        log.checkpoint()
        partition = inner(log).parts.core.state.partitions[(1, 0)]
        assert [(each.base, each.end) for each in partition.segments] == [(0, 200), (200, 300)]
        assert rows(log, "t") == want
        assert accounted(log) == 0


def test_readers_see_every_record_once_while_chunks_are_merged() -> None:
    with quiet() as log:
        log.create_topic("t")
        done = threading.Event()
        problems: list[str] = []

        def read() -> None:
            while not done.is_set():
                table = log.read("t", 0, 0, max_records=100_000, max_bytes=1 << 30)
                found = table.column("value").to_pylist()
                if found != [b"%d" % number for number in range(len(found))]:
                    problems.append(f"{len(found)} records, {found[-3:]}")

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        for number in range(COUNT):
            log.append("t", b"%d" % number)
        done.set()
        reader.join(60)
        assert not problems
        assert rows(log, "t") == [b"%d" % number for number in range(COUNT)]


def test_a_table_finds_keys_in_chunks_that_were_merged_since_it_looked() -> None:
    with quiet() as log:
        log.create_topic("t")
        table = log.table("t")
        for number in range(600):
            log.append("t", b"%d" % number, b"k%d" % (number % 7))
            if not number % 50:
                assert table.get(b"k%d" % (number % 7)) == b"%d" % number
        assert [table.get(b"k%d" % key) for key in range(7)] == [
            b"%d" % max(range(key, 600, 7)) for key in range(7)
        ]


def test_the_offset_for_a_time_is_found_in_merged_chunks() -> None:
    with quiet() as log:
        log.create_topic("t")
        for number in range(600):
            log.append("t", b"x", timestamp=1000 + number)
        for number in (0, 255, 599):
            assert log.offset_for_time("t", 0, timestamp=1000 + number) == number


def test_replayed_runs_give_the_same_state_and_records() -> None:
    """Schemas change, topics come and go, offsets are committed, and writes are refused."""
    disk, clock = SimDisk(), ManualClock()
    config = LogConfig(wal=WalConfig(file_bytes=256 * KIB))
    with quiet(config=config, disk=disk, clock=clock) as log:
        log.create_topic("raw", partitions=2)
        log.create_topic("typed", schema=PRICE)
        log.create_topic("gone")
        for number in range(400):
            log.append("raw", b"%d" % number, partition=number % 2)
            log.append("gone", b"x")
            if number % 100 == 50:
                log.commit_offsets("g", {("raw", 0): number // 2})
            if number == 300:
                log.delete_topic("gone")
                log.create_topic("gone")
        log.append_batch("raw", [b"a", b"b", b"c"])
        for number in range(300):
            log.append("typed", {"item": f"i{number}", "price": number})
            if number == 150:
                log.alter_topic("typed", schema=PRICE.append(pa.field("note", pa.string())))
        log.append("raw", bytes(20_000), partition=0)
        for number in range(30):
            log.append("raw", b"last %d" % number, partition=1)
        before = (state_of(log), {topic: everything(log, topic) for topic in log.topics()})
        written = inner(log).parts.core.used["wal_bytes"], log.stats().memtable_records
    with quiet(config=config, disk=disk, clock=clock) as log:
        assert state_of(log) == before[0]
        assert {topic: everything(log, topic) for topic in log.topics()} == before[1]
        assert accounted(log) == held(log)
        assert log.stats().memtable_records == written[1]
        log.append("raw", b"after", partition=1)
        assert rows(log, "raw", 1)[-1] == b"after"
        log.checkpoint()
        assert accounted(log) == held(log) == 0


@pytest.mark.parametrize("seed", range(8))
def test_random_lives_with_early_merging_reopen_as_they_were(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memtable, "RUN_CHUNKS", 4)
    monkeypatch.setattr(memtable, "RUN_CHUNKS_MIN", 2)
    for module in (memtable, write_runs):
        monkeypatch.setattr(module, "ONE_PASS_MIN", 2)
        monkeypatch.setattr(module, "ONE_PASS_MAX", 5)
    disk, clock, generator = SimDisk(), ManualClock(), random.Random(seed)
    for _ in range(3):
        with quiet(disk=disk, clock=clock) as log:
            for number in range(120):
                with suppress(RejectedError):
                    _act(log, generator, number)
                assert accounted(log) == held(log)
            kept = (state_of(log), {topic: everything(log, topic) for topic in log.topics()})
        with quiet(disk=disk, clock=clock) as log:
            assert (state_of(log), {t: everything(log, t) for t in log.topics()}) == kept
            assert accounted(log) == held(log)


def _act(log: Log, generator: random.Random, number: int) -> None:
    topic = generator.choice(["a", "b"])
    choice = generator.random()
    if choice < 0.7:
        count = generator.choice([1, 1, 1, 2, 5])
        log.append_batch(topic, [b"%d" % number + bytes(generator.randrange(99))] * count)
    elif choice < 0.75:
        log.create_topic(topic, partitions=generator.randint(1, 3))
    elif choice < 0.77:
        log.delete_topic(topic)
    elif choice < 0.8:
        log.checkpoint()
    elif choice < 0.85:
        log.purge_topic(topic)
    elif choice < 0.9:
        log.commit_offsets("g", {(topic, 0): log.offsets(topic)[0][0]})
    else:
        with log.transaction() as transaction:
            for _ in range(generator.randint(1, 5)):
                transaction.append_batch(topic, [b"t%d" % number] * generator.randint(1, 3))
            if generator.random() < 0.3:
                transaction.abort()
