"""A log's life, drawn from a seed: every kind of call, each reported before and after.

A `Worker` makes the calls on a log and tells what it does (see `engine_ledger`). Alone on a
simulated disk it lives a life that a seed repeats; several of them in threads are the writers of a
process that is killed.

Topics: `fixed` is never touched by anything that removes records, `trimmed` has retention,
`compacted` is compacted by key, `churn` is purged, deleted and made again, `marks` holds the places
that groups commit.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from lakebed import Log, LogConfig, SyncMode, WalConfig
from lakebed.api import transaction as transactions
from lakebed.api.acks import Acks
from lakebed.api.encoding import EncodedPart
from lakebed.errors import LakebedError, RejectedError
from lakebed.host import Disk, ManualClock
from lakebed.state.commands import (
    AbortTransaction,
    BeginTransaction,
    CommitTransaction,
    ProducerWrite,
    RegisterProducer,
    TransactionWrite,
)
from tests.engine.support import inner
from tests.proof.engine_ledger import MARKS, Ledger, Name, payload_of
from tests.wal.support import fill_spares

FOLDER = Path("/log")
MARKS_WRITTEN = 200
TOPICS: dict[str, tuple[int, dict[str, object]]] = {
    MARKS: (1, {}),
    "fixed": (2, {"segment_bytes": 16384}),
    "trimmed": (1, {"retention_bytes": 3000, "segment_bytes": 8192}),
    "compacted": (1, {"cleanup": "compact", "compact_dirty_percent": 1, "segment_bytes": 65536}),
    "churn": (2, {}),
}
Tell = Callable[[list[Any]], None]


def config_of(
    rng: random.Random, *, file_bytes: int = 4096, sync: SyncMode = SyncMode.ALWAYS
) -> LogConfig:
    """Choose settings under which files are soon full."""
    wal = WalConfig(
        sync=sync,
        file_bytes=file_bytes * rng.choice((1, 2)),
        spare_files=rng.randrange(3),
        entry_bytes_max=1 << 20,
        idle_mark_ms=rng.choice((1, 500)),
    )
    return LogConfig(wal=wal, memtable_bytes=64 << 10, wal_bytes=64 << 10, cache_bytes=0)


def open_log(
    disk: Disk, config: LogConfig, clock: ManualClock | None = None, folder: Path = FOLDER
) -> Log:
    """Open the log on a disk, everything in the calling thread."""
    return Log.open(folder, config, disk=disk, clock=clock or ManualClock(), threaded=False)


@contextmanager
def small_transactions() -> Iterator[None]:
    """Let transactions write what they collect soon, as large ones do; let recovery be quiet."""
    logger = logging.getLogger("lakebed.engine")
    with (
        mock.patch.object(transactions, "_WRITE_BYTES", 600),
        mock.patch.object(logger, "disabled", True),
    ):
        yield


class _Sequence(NamedTuple):
    """A producer's last batch, to be sent again."""

    command: ProducerWrite
    encoded: EncodedPart
    operation: str


class _Pending:
    """A transaction that is open over several steps, and may outlive a reopening."""

    def __init__(self, identity: tuple[int, int]) -> None:
        self.id, self.epoch = identity
        self.rows: list[list[Any]] = []
        self.parts: list[tuple[str, Any]] = []


class Worker:
    """One thread's work on a log."""

    def __init__(
        self, log: Log, tell: Tell, rng: random.Random, *, run: int = 0, thread: int = 0
    ) -> None:
        self.log = log
        self.tell = tell
        self.rng = rng
        self.run = run
        self.thread = thread
        self.doing = ""
        self.failure: LakebedError | None = None
        self._numbers = itertools.count()
        self._operations = itertools.count()
        self._position = 0
        self.pending: _Pending | None = None
        self._last: _Sequence | None = None
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    def move_to(self, log: Log) -> None:
        """Go on with the log after it was opened again."""
        self.log = log

    def forget(self) -> None:
        """Let go of open transactions and the producer."""
        self.pending = self._last = self._producer = None

    def step(self) -> None:
        """Do one thing, drawn by its weight."""
        actions = [each for each in STEPS if self.thread == 0 or each[2]]
        ((action, *_),) = self.rng.choices(actions, [each[1] for each in actions])
        self.do(action)

    def do(self, action: Callable[[Worker], None]) -> None:
        """Do a certain thing."""
        self.doing = action.__name__.strip("_")
        action(self)

    # Reporting

    def rows(self, count: int, *topics: str) -> list[list[Any]]:
        """Choose so many records, of these topics or of any, that were never written."""
        rows = []
        for _ in range(count):
            topic = self.rng.choice(topics or ("fixed", "fixed", "trimmed", "compacted", "churn"))
            key = f"k{self.rng.randrange(6)}" if topic == "compacted" else ""
            size = self.rng.choice((16, 40, 200, self.rng.randrange(16, 1500)))
            rows.append([topic, key, self.run, self.thread, next(self._numbers), size])
        return rows

    def new_operation(self) -> str:
        """Return the name of an operation that is not yet reported."""
        return f"{self.run}/{self.thread}/{next(self._operations)}"

    def call(self, what: dict[str, Any], made: Callable[[], Any]) -> str:
        """Make a call and report it; return what became of it."""
        number = self.new_operation()
        self.tell(["intend", number, what])
        return self.finish(number, made)

    def finish(self, number: str, made: Callable[[], Any]) -> str:
        """Make a call that was announced, and report what became of it."""
        try:
            places = made()
        except LakebedError as error:
            self.failure = error
            outcome = "refused" if isinstance(error, RejectedError) else "unknown"
            self.tell([outcome, number])
            return outcome
        self.tell(["ack", number, [list(place) for place in places or ()]])
        return "ack"

    def quietly(self, made: Callable[[], Any]) -> Any:
        """Make a call that changes no record; a typed error is no mistake."""
        try:
            return made()
        except LakebedError as error:
            self.failure = error
            return None

    # Writing

    def append(self) -> None:
        """Append a record."""
        rows = self.rows(1)
        topic = rows[0][0]
        self.call(
            {"records": rows}, lambda: [self.log.append(topic, value_of(rows[0]), key_of(rows[0]))]
        )

    def append_async(self) -> None:
        """Append a few records without waiting; each is an entry."""
        rows = self.rows(self.rng.randint(1, 4), "fixed")
        numbers = [self.new_operation() for _ in rows]
        for number, row in zip(numbers, rows, strict=True):
            self.tell(["intend", number, {"records": [row]}])
        futures: list[Any] = []
        for number, row in zip(numbers, rows, strict=True):
            try:
                futures.append(self.log.append_async(row[0], value_of(row)))
            except LakebedError as error:
                self.failure = error
                futures.append(None)
                self.tell(["refused" if isinstance(error, RejectedError) else "unknown", number])
        for number, future in zip(numbers, futures, strict=True):
            if future is not None:
                self.finish(number, functools.partial(_result, future))

    def append_batch(self) -> None:
        """Append several records of a topic at once."""
        topic = self.rng.choice(("fixed", "fixed", "trimmed", "compacted", "churn"))
        rows = self.rows(self.rng.randint(1, 12), topic)
        self.call(
            {"records": rows}, lambda: self.log.append_batch(topic, [row_of(row) for row in rows])
        )

    def transaction(self) -> None:
        """Commit a small transaction, often with consumer offsets, or abort it."""
        rows = self.rows(self.rng.randint(1, 5), "fixed", "fixed", "compacted")
        name = f"tx-{self.thread}"
        transaction = self.quietly(lambda: self.log.transaction(name))
        if transaction is None:
            return
        offsets = self._next_offset() if self.rng.random() < 0.7 else {}

        def fill() -> None:
            for row in rows:
                transaction.append(row[0], value_of(row), key_of(row))
            for group, offset in offsets.items():
                transaction.commit_offsets(group, {(MARKS, 0): offset})

        if self.rng.random() < 0.2:
            self.quietly(fill)
            self.quietly(transaction.abort)
            return
        groups = dict(offsets)

        def commit() -> list[Any]:
            fill()
            return _places_in_order(rows, transaction.commit())

        self.call({"records": rows, "offsets": groups}, commit)

    def long_transaction(self) -> None:
        """Begin, write to or end a transaction that stays open over other steps."""
        pending = self.pending
        if pending is None:
            self._begin_pending()
        elif self.rng.random() < 0.6:
            self.write_pending(pending)
        else:
            self.pending = None
            if self.rng.random() < 0.25:
                abort = AbortTransaction(pending.id, pending.epoch, "aborted")
                self.quietly(lambda: inner(self.log).parts.writing.submit(abort))
            else:
                self.commit_pending(pending)

    def leave_open(self) -> None:
        """Write to a transaction that stays open over other steps; begin it if there is none."""
        if self.pending is None:
            self._begin_pending()
        if self.pending is not None:
            self.write_pending(self.pending)

    def _begin_pending(self) -> None:
        name = f"long-{self.thread}"
        begin = BeginTransaction(name, 3_600_000_000, self._time_us())
        identity = self.quietly(lambda: inner(self.log).parts.writing.submit(begin))
        self.pending = None if identity is None else _Pending(identity)

    def write_pending(self, pending: _Pending) -> None:
        """Write a few records to an open transaction."""
        writing = inner(self.log).parts.writing
        topic = self.rng.choice(("fixed", "fixed", "compacted", "churn"))
        rows = self.rows(self.rng.randint(1, 4), topic)

        def write() -> bool:
            target = writing.target(topic)
            encoded = writing.encode_rows(target, [row_of(row) for row in rows], None)
            assert encoded is not None
            command = TransactionWrite(pending.id, pending.epoch, self._time_us(), (encoded.part,))
            writing.submit(command, (encoded.body,))
            pending.rows += rows
            pending.parts.append((topic, encoded.order))
            return True

        if self.quietly(write) is None:
            self.pending = None  # what it holds is not known, so it is never committed

    def commit_pending(self, pending: _Pending) -> None:
        """Commit an open transaction, with offsets of a group."""
        writing = inner(self.log).parts.writing

        def commit() -> list[Any]:
            offsets = tuple((group, "", self._marks(), 0, at) for group, at in groups.items())
            command = CommitTransaction(pending.id, pending.epoch, self._time_us(), (), offsets)
            written = writing.submit(command)
            return [
                ack
                for (topic, order), runs in zip(pending.parts, written.parts, strict=True)
                for ack in Acks(topic, runs, order)
            ]

        groups = self._next_offset()
        if pending.rows:
            self.call({"records": pending.rows, "offsets": groups}, commit)
        else:
            self._position -= 1

    def stale_abort(self) -> None:
        """Abort with an epoch that was taken over: nothing may come of it."""
        pending = self.pending
        if pending is not None and pending.epoch > 1:
            abort = AbortTransaction(pending.id, pending.epoch - 1, "aborted")
            self.quietly(lambda: inner(self.log).parts.writing.submit(abort))

    def _marks(self) -> int:
        return inner(self.log).parts.core.state.names[MARKS]

    def _next_offset(self) -> dict[str, int]:
        self._position += 1
        return {f"group-{self.run}-{self.thread}": min(self._position, MARKS_WRITTEN)}

    def _time_us(self) -> int:
        return inner(self.log).parts.core.clock.time_us()

    # A producer

    def produce(self) -> None:
        """Write a producer's next batch."""
        writing = inner(self.log).parts.writing
        if self._producer is None:
            register = RegisterProducer(f"producer-{self.thread}", self._time_us())
            self._producer = self.quietly(lambda: writing.submit(register))
            self._sequences = {}
            if self._producer is None:
                return
        if "fixed" not in self.log.topics():
            return
        rows = self.rows(self.rng.randint(1, 6), "fixed")
        encoded = writing.encode_rows(writing.target("fixed"), [row_of(row) for row in rows], None)
        assert encoded is not None
        first = tuple(self._sequences.get(run.partition, 0) for run in encoded.part.runs)
        identity, epoch = self._producer
        command = ProducerWrite(self._time_us(), identity, epoch, first, encoded.part)
        self._last = _Sequence(command, encoded, "")
        if self.call({"records": rows}, self._send) == "ack":
            for run in encoded.part.runs:
                self._sequences[run.partition] = self._sequences.get(run.partition, 0) + run.records
        else:
            self._producer = self._last = None

    def _send(self) -> Any:
        assert self._last is not None
        command, encoded, _ = self._last
        written = inner(self.log).parts.writing.submit(command, (encoded.body,))
        return list(Acks("fixed", written.parts[0], encoded.order))

    def produce_again(self) -> None:
        """Send the last batch again: it is where it was, and not there twice."""
        if self._last is not None:
            self.quietly(self._send)

    # Looking after it

    def commit_offsets(self) -> None:
        """Commit the next place of this thread's group."""
        offsets = self._next_offset()
        ((group, offset),) = offsets.items()
        self.call(
            {"offsets": offsets}, lambda: self.log.commit_offsets(group, {(MARKS, 0): offset})
        )

    def checkpoint(self) -> None:
        """Take a checkpoint."""
        self.quietly(self.log.checkpoint)

    def retain(self) -> None:
        """Apply retention, merging and compaction."""
        if self.quietly(self.log.retain) is not None:
            self._tell_lows("trimmed")

    def purge(self) -> None:
        """Remove every record of a topic."""
        if self.call({"wipe": "churn"}, lambda: self.log.purge_topic("churn")) == "ack":
            self._tell_lows("churn")

    def recreate(self) -> None:
        """Delete a topic, or make it if it is gone."""
        if "churn" not in self.log.topics():
            self._create("churn")
        else:
            self.call({"wipe": "churn", "delete": True}, lambda: self.log.delete_topic("churn"))
            if self.rng.random() < 0.8:
                self._create("churn")

    def add_partitions(self) -> None:
        """Let a topic have more partitions."""
        have = len(self.log.offsets("fixed"))
        if have < 4:
            self.quietly(lambda: self.log.add_partitions("fixed", have + 1))

    def fill_spares(self) -> None:
        """Make spare WAL files, as a thread does otherwise."""
        with contextlib.suppress(OSError):  # its thread tries again later
            self.quietly(lambda: fill_spares(inner(self.log).parts.wal))

    def _tell_lows(self, topic: str) -> None:
        for partition, (low, _) in (self.quietly(lambda: self.log.offsets(topic)) or {}).items():
            self.tell(["low", topic, partition, low])

    def _create(self, topic: str) -> None:
        partitions, config = TOPICS[topic]
        self.quietly(lambda: self.log.get_or_create_topic(topic, partitions, config=config))

    def prepare(self) -> None:
        """Make the topics that are not there, and the places that groups commit."""
        self.doing = "prepare"
        for topic in TOPICS:
            self._create(topic)
        if MARKS not in self.log.topics() or self.log.offsets(MARKS)[0][1]:
            return
        rows = [
            [MARKS, "", self.run, self.thread, next(self._numbers), 16]
            for _ in range(MARKS_WRITTEN)
        ]
        self.call(
            {"records": rows}, lambda: self.log.append_batch(MARKS, [row_of(row) for row in rows])
        )


def _result(future: Future[Any]) -> list[Any]:
    """Return the place of a record that was appended without waiting."""
    return [future.result(600)]


def value_of(row: list[Any]) -> bytes:
    """Return a record's bytes."""
    _, _, run, thread, number, size = row
    return payload_of(Name(run, thread, number), size)


def key_of(row: list[Any]) -> bytes | None:
    """Return a record's key."""
    return row[1].encode() or None


def row_of(row: list[Any]) -> dict[str, object]:
    """Return a record as a row."""
    return {"value": value_of(row), "key": key_of(row)}


def _places_in_order(rows: list[list[Any]], batches: list[Acks]) -> list[Any]:
    """Return the place of each record of a transaction, whose batches are of one topic each."""
    places: dict[str, list[Any]] = {row[0]: [] for row in rows}
    for batch in batches:
        places[batch.topic] += batch
    queues = {topic: iter(each) for topic, each in places.items()}
    return [next(queues[row[0]]) for row in rows]


STEPS: list[tuple[Callable[[Worker], None], int, bool]] = [
    (Worker.append, 12, True),
    (Worker.append_async, 4, True),
    (Worker.append_batch, 14, True),
    (Worker.transaction, 10, True),
    (Worker.long_transaction, 14, True),
    (Worker.stale_abort, 3, True),
    (Worker.produce, 8, True),
    (Worker.produce_again, 4, True),
    (Worker.commit_offsets, 4, True),
    (Worker.checkpoint, 7, True),
    (Worker.retain, 5, False),
    (Worker.purge, 2, False),
    (Worker.recreate, 2, False),
    (Worker.add_partitions, 1, False),
    (Worker.fill_spares, 2, False),
]
"""What is done, how often, and whether every thread does it (or only the first)."""


class Life:
    """One log, alone in one thread, and everything it was asked to keep."""

    def __init__(self, rng: random.Random, config: LogConfig, disk: Disk) -> None:
        self.rng = rng
        self.config = config
        self.disk = disk
        self.clock = ManualClock()
        self.ledger = Ledger()
        self.worker: Worker | None = None

    def open(self) -> Worker:
        """Open or create the log."""
        log = open_log(self.disk, self.config, self.clock)
        if self.worker is None:
            self.worker = Worker(log, self.ledger.take, self.rng)
        self.worker.move_to(log)
        return self.worker

    def step(self) -> None:
        """Do one thing, as time passes; now and then open the log again."""
        worker = self.worker or self.open()
        self.clock.advance(1)
        if "marks" not in worker.log.topics() or not worker.log.offsets(MARKS)[0][1]:
            worker.prepare()
        elif self.rng.random() < 0.06:
            worker.doing = "reopen"
            worker.log.close()
            self.open()
        else:
            worker.step()

    def move_to(self, disk: Disk, *, weak: bool = False) -> None:
        """Go on with a disk that a power cut left."""
        self.disk = disk
        if weak:
            self.forget()
        worker = self.open()
        worker.tell = self.ledger.take
        self.ledger.adopt(worker.log, weak=weak)

    def forget(self) -> None:
        """Let go of what the log may not know any more: open transactions, a producer's epoch."""
        if self.worker is not None:
            self.worker.forget()
