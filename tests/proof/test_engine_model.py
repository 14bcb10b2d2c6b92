"""A log against plain lists: any sequence of calls, power cuts and reopenings, compared.

Hypothesis draws the calls and, when a comparison fails, shrinks them to a short sequence. The model
is a list of records for each partition, and none of the log's code.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lakebed import Log, LogConfig, WalConfig
from lakebed.errors import (
    FencedError,
    OffsetOutOfRangeError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionClosedError,
    TransactionTimedOutError,
)
from lakebed.host import ManualClock, SimDisk, Survival
from tests.proof.engine_life import open_log, small_transactions
from tests.proof.machines import run_machine
from tests.proof.scale import Rounds, trials
from tests.proof.simulated import simulation

pytestmark = pytest.mark.proof

TEST = "tests/proof/test_engine_model.py::test_a_log_behaves_like_lists"
NAMES = ("raw", "other", "typed")
SCHEMAS = [pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int64()), ("b", pa.string())])]

topics = st.sampled_from(NAMES)
numbers = st.integers(0, 2**32)
counts = st.integers(1, 6)
sizes = st.sampled_from([0, 10, 300, 900])


@dataclass
class Partition:
    """Records by offset: (time, value). Those below `low` are gone."""

    low: int = 0
    records: list[tuple[int, Any]] = field(default_factory=list)


@dataclass
class Topic:
    """A topic as plain data."""

    typed: bool
    partitions: list[Partition]
    version: int = 1


@dataclass
class Open:
    """An open transaction."""

    handle: Any
    topics: list[tuple[str, Topic, int, tuple[int, Any]]]
    started: int


class LogMachine(RuleBasedStateMachine):
    """Every call of the log, and the same on lists."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.topics: dict[str, Topic] = {}
        self.committed: dict[str, dict[tuple[str, int], int]] = {}
        self.open: Open | None = None
        self.count = 0
        self.number = -1
        self.log: Log

    @initialize(file_bytes=st.sampled_from([4096, 16384]), spare_files=st.integers(0, 2))
    def create(self, file_bytes: int, spare_files: int) -> None:
        """Make a new log."""
        wal = WalConfig(file_bytes=file_bytes, spare_files=spare_files)
        self.config = LogConfig(wal=wal, memtable_bytes=64 << 10, wal_bytes=64 << 10)
        self.log = open_log(self.disk, self.config, self.clock)
        self.create_topic("raw", 2)

    # Topics

    @rule(name=topics, partitions=st.integers(1, 2))
    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic, or be refused if it is there."""
        typed = name == "typed"
        if name in self.topics:
            with pytest.raises(TopicExistsError):
                self.log.create_topic(name, partitions)
            return
        config = {"retention_ms": 20_000, "segment_bytes": 8192} if name == "other" else {}
        self.log.create_topic(name, partitions, SCHEMAS[0] if typed else None, config)
        self.topics[name] = Topic(typed, [Partition() for _ in range(partitions)])

    @rule(name=st.sampled_from(["other", "typed"]))
    def delete_topic(self, name: str) -> None:
        """Remove a topic, or be refused if there is none."""
        if name not in self.topics:
            with pytest.raises(TopicNotFoundError):
                self.log.delete_topic(name)
            return
        self.log.delete_topic(name)
        del self.topics[name]
        for offsets in self.committed.values():
            for place in [each for each in offsets if each[0] == name]:
                del offsets[place]

    @rule(name=topics)
    def purge(self, name: str) -> None:
        """Remove a topic's records."""
        if name in self.topics:
            self.log.purge_topic(name)
            for partition in self.topics[name].partitions:
                partition.low = len(partition.records)

    @rule(name=topics)
    def add_partition(self, name: str) -> None:
        """Let a topic have a partition more."""
        topic = self.topics.get(name)
        if topic is not None and len(topic.partitions) < 4:
            topic.partitions.append(Partition())
            self.log.add_partitions(name, len(topic.partitions))

    @precondition(lambda self: "typed" in self.topics)
    @rule()
    def alter_schema(self) -> None:
        """Add a field; records written before have null there."""
        self.log.alter_topic("typed", schema=SCHEMAS[1])
        self.topics["typed"].version = 2

    # Writing

    def value(self, topic: Topic, size: int) -> Any:
        """Make a value that no other record has."""
        self.count += 1
        if not topic.typed:
            return b"%d/" % self.count + bytes(size)
        more = {"b": f"text {self.count}"} if topic.version == 2 else {}
        return {"a": self.count, **more}

    def added(self, topic: Topic, partition: int, record: tuple[int, Any]) -> int:
        """Add a record to the model; return its offset."""
        records = topic.partitions[partition].records
        records.append(record)
        return len(records) - 1

    @rule(name=topics, number=numbers, size=sizes)
    def append(self, name: str, number: int, size: int) -> None:
        """Append a record to a partition."""
        topic = self.topics.get(name)
        if topic is None:
            with pytest.raises(TopicNotFoundError):
                self.log.append(name, b"")
            return
        partition = number % len(topic.partitions)
        value = self.value(topic, size)
        ack = self.log.append(name, value, partition=partition)
        assert ack == (name, partition, self.added(topic, partition, (self.now, value)))

    @rule(name=topics, count=counts, size=sizes)
    def append_batch(self, name: str, count: int, size: int) -> None:
        """Append a batch; it is spread over the partitions, and the acks say where."""
        topic = self.topics.get(name)
        if topic is None:
            return
        values = [self.value(topic, size) for _ in range(count)]
        acks = self.log.append_batch(name, [{"value": value} for value in values])
        for ack, value in zip(acks, values, strict=True):
            assert ack.offset == self.added(topic, ack.partition, (self.now, value))

    @rule(count=counts)
    def produce(self, count: int) -> None:
        """Send records under a producer; a second one of its name fences the first."""
        topic = self.topics["raw"]
        values = [self.value(topic, 10) for _ in range(count)]
        with self.log.producer("sender", linger_ms=60_000) as producer:
            sent = [producer.send("raw", value, timestamp=self.now) for value in values]
            producer.flush()
            for each, value in zip(sent, values, strict=True):
                ack = each.result(0)
                assert ack.offset == self.added(topic, ack.partition, (self.now, value))

    # Transactions

    @rule()
    def begin(self) -> None:
        """Begin a transaction; an open one of the same name is aborted."""
        before = self.open
        self.open = Open(self.log.transaction("tx", timeout_ms=30_000), [], self.now)
        if before is not None:
            before.handle.commit_offsets("group", {("raw", 0): 0})
            with pytest.raises(FencedError):
                before.handle.commit()

    @precondition(lambda self: self.open is not None)
    @rule(name=topics, number=numbers, size=sizes)
    def write_in_transaction(self, name: str, number: int, size: int) -> None:
        """Add a record to it, which nobody sees yet."""
        assert self.open is not None
        topic = self.topics.get(name)
        if topic is None or self.late(self.open):
            return
        partition = number % len(topic.partitions)
        value = self.value(topic, size)
        try:
            self.open.handle.append(name, value, partition=partition)
        except TopicNotFoundError:  # a topic it wrote to before is gone
            assert any(self.topics.get(each) is not made for each, made, *_ in self.open.topics)
            self.end_transaction(commit=False)
            return
        self.open.topics.append((name, topic, partition, (self.now, value)))

    def late(self, each: Open) -> bool:
        """Return whether it is open for too long."""
        return self.now > each.started + 30_000_000

    @precondition(lambda self: self.open is not None)
    @rule(commit=st.booleans(), offset=st.booleans())
    def end_transaction(self, commit: bool, offset: bool = False) -> None:
        """Commit it with a group's offset, or abort it: wholly seen, or not at all."""
        assert self.open is not None
        each, self.open = self.open, None
        if not commit:
            each.handle.abort()
            return
        end = len(self.topics["raw"].partitions[0].records)
        if offset:
            each.handle.commit_offsets("group", {("raw", 0): end})
        gone = any(self.topics.get(name) is not topic for name, topic, *_ in each.topics)
        if self.late(each) or gone:
            kinds = (
                TransactionTimedOutError,
                TransactionClosedError,
                TopicNotFoundError,
            )
            with pytest.raises(kinds):
                each.handle.commit()
            return
        places = {(ack.topic, ack.partition, ack.offset) for a in each.handle.commit() for ack in a}
        # Records of a topic come in the order of the transaction's batches.
        expected = set()
        for name in dict.fromkeys(name for name, *_ in each.topics):
            for other, topic, partition, record in each.topics:
                if other == name:
                    expected.add((name, partition, self.added(topic, partition, record)))
        assert places == expected
        if offset:
            self.committed.setdefault("group", {})[("raw", 0)] = end

    @rule(counts=st.lists(counts, max_size=3), back=st.integers(-1, 3), size=sizes)
    def commit_together(self, counts: list[int], back: int, size: int) -> None:
        """Commit several transactions under a number, which counts if it is a new one."""
        topic, number = self.topics["raw"], max(0, self.number - back)
        named, records = [], []
        for count in counts:
            values = [self.value(topic, size) for _ in range(count)]
            with self.log.transaction() as tx:
                for value in values:
                    tx.append("raw", value, partition=0)
                named.append(tx.prepare())
            records += [(self.now, value) for value in values]
        self.log.append("raw", last := self.value(topic, 0), partition=0)
        self.added(topic, 0, (self.now, last))
        done = self.log.commit_together(named, name="job", number=number)
        assert done.duplicate is (number <= self.number)
        assert done.records == (0 if done.duplicate else len(records))
        for record in () if done.duplicate else records:
            self.added(topic, 0, record)
        self.number = max(number, self.number)
        assert self.log.committed_number("job") == self.number

    # Groups

    @rule(number=numbers)
    def commit_offsets(self, number: int) -> None:
        """Commit an offset, which must not be beyond the end."""
        end = len(self.topics["raw"].partitions[0].records)
        self.log.commit_offsets("group", {("raw", 0): number % (end + 1)})
        self.committed.setdefault("group", {})[("raw", 0)] = number % (end + 1)
        with pytest.raises(OffsetOutOfRangeError):
            self.log.commit_offsets("group", {("raw", 0): end + 1})

    # Looking after it

    @rule()
    def checkpoint(self) -> None:
        """Take a checkpoint, which nobody sees."""
        self.log.checkpoint()

    @rule(seconds=st.sampled_from([1, 5, 25]))
    def pass_time(self, seconds: int) -> None:
        """Let time pass: transactions time out, records become old."""
        self.clock.advance(seconds)
        self.log.tick()
        self.see_lows()

    @rule()
    def retain(self) -> None:
        """Apply retention: only old records go, and only those of the topic that says so."""
        self.log.retain()
        self.see_lows()

    def see_lows(self) -> None:
        """Take over low watermarks that retention raised, if it was allowed to."""
        topic = self.topics.get("other")
        if topic is None:
            return
        for number, (low, _) in self.log.offsets("other").items():
            partition = topic.partitions[number]
            gone = partition.records[partition.low : low]
            assert low >= partition.low
            assert all(time_us < self.now - 20_000_000 for time_us, _ in gone), "too young"
            partition.low = low

    @property
    def now(self) -> int:
        """Return the time."""
        return self.clock.time_us()

    # Reading

    @rule(name=topics, number=numbers, count=st.integers(1, 10))
    def read(self, name: str, number: int, count: int) -> None:
        """Read a range, or be told that it is gone."""
        topic = self.topics.get(name)
        if topic is None:
            return
        index = number % len(topic.partitions)
        partition = topic.partitions[index]
        offset = number % (len(partition.records) + 1)
        if offset < partition.low:
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(name, index, offset)
            return
        table = self.log.read(name, index, offset, max_records=count)
        self.compare(topic, partition, offset, table, count)

    def compare(
        self, topic: Topic, partition: Partition, offset: int, table: pa.Table, count: int
    ) -> None:
        """Compare what was read with the list."""
        expected = partition.records[offset : offset + count]
        assert table.column("offset").to_pylist() == list(range(offset, offset + len(expected)))
        values = table.column("value").to_pylist()
        if topic.typed and topic.version == 2:
            assert values == [{"b": None, **value} for _, value in expected]
        else:
            assert values == [value for _, value in expected]
        times = table.column("timestamp").cast(pa.int64()).to_pylist()
        assert times == [time_us for time_us, _ in expected]

    @rule(name=topics, number=numbers)
    def offset_for_time(self, name: str, number: int) -> None:
        """Find the first record of a time or later."""
        topic = self.topics.get(name)
        if topic is None:
            return
        index = number % len(topic.partitions)
        partition = topic.partitions[index]
        wanted = self.now - number % 40_000_000
        living = range(partition.low, len(partition.records))
        late = [each for each in living if partition.records[each][0] >= wanted]
        expected = late[0] if late else len(partition.records)
        assert self.log.offset_for_time(name, index, timestamp=wanted) == expected

    # Crashing

    @rule(survival=st.sampled_from(Survival), number=numbers, in_order=st.booleans())
    def crash(self, survival: Survival, number: int, in_order: bool) -> None:
        """Cut the power: everything that was acknowledged is there, open transactions are not."""
        draw = random.Random(number)
        self.disk = self.disk.crash(survival, draw, names_in_order=in_order)
        self.log = open_log(self.disk, self.config, self.clock)
        self.open = None

    @rule()
    def reopen(self) -> None:
        """Close and open again."""
        self.log.close()
        self.log = open_log(self.disk, self.config, self.clock)
        self.open = None

    @invariant()
    def looks_like_the_model(self) -> None:
        """Topics, ends and committed offsets are the model's after every step."""
        if not hasattr(self, "log"):
            return
        assert self.log.topics() == sorted(self.topics)
        for name, topic in self.topics.items():
            bounds = {n: (p.low, len(p.records)) for n, p in enumerate(topic.partitions)}
            assert self.log.offsets(name) == bounds
        assert self.log.committed("group") == self.committed.get("group", {})

    def teardown(self) -> None:
        """Read everything, also after a power cut, and after a checkpoint and another cut."""
        if not hasattr(self, "log"):
            return
        self.read_all()
        for checkpoint in (False, True):
            if checkpoint:
                self.log.checkpoint()
            self.crash(Survival.LOST, 0, True)
            self.looks_like_the_model()
            self.read_all()

    def read_all(self) -> None:
        """Compare every record."""
        for name, topic in self.topics.items():
            for index, partition in enumerate(topic.partitions):
                table = self.log.read(name, index, partition.low, max_records=10**6)
                self.compare(topic, partition, partition.low, table, 10**6)


@simulation("engine-model")
@small_transactions()
def test_a_log_behaves_like_lists() -> None:
    """Any sequence of calls, power cuts and reopenings leaves what the lists say."""
    run_machine(LogMachine, Rounds(TEST, short=40, long=5_000, seconds=10), steps=trials(40, 200))
