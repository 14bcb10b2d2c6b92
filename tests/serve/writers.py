"""Writers of a served log that tell what they do, and whether the log agrees with what they told.

A writer tells, before and after each of its calls, in lists that JSON can carry:

    ["intend", CALL, [[TOPIC, TEXT], ...]]     it begins to write these records, all or none
    ["ack", CALL, [[PARTITION, OFFSET], ...]]  they are there, and where; null: where is not known
    ["refused", CALL, ERROR]                   they are not there, and never will be
    ["unknown", CALL, ERROR]                   nobody knows

Every acknowledged record has to be in the log exactly once, at its place; of a call that was
refused none may be there, of any other one all or none; nothing else may be there.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from lakebed import Log, Producer
from lakebed.errors import LakebedError, RejectedError

Tell = Callable[[list[Any]], None]
TOPICS = ("plain", "keyed")
"""`keyed` has three partitions."""


def make_topics(log: Log) -> None:
    """Make the topics that writers write to."""
    log.get_or_create_topic("plain")
    log.get_or_create_topic("keyed", 3)


class Ledger:
    """Everything that writers told. Any thread."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[str, list[tuple[str, str]]] = {}
        """Calls under way, or of unknown outcome."""
        self._acked: dict[tuple[str, str], tuple[int, int] | None] = {}
        self._refused: dict[tuple[str, str], str] = {}
        self._unknown: dict[str, str] = {}
        self.failures: list[str] = []
        """What was refused or is unknown, and why."""

    @property
    def acks(self) -> int:
        """How many records were acknowledged."""
        return len(self._acked)

    def take(self, event: Sequence[Any]) -> None:
        """Enter what a writer told."""
        kind, call, *rest = event
        with self._guard:
            if kind == "intend":
                self._open[call] = [(topic, text) for topic, text in rest[0]]
            elif kind == "ack":
                names = self._open.pop(call)
                places = [None] * len(names) if rest[0] is None else rest[0]
                for name, place in zip(names, places, strict=True):
                    self._acked[name] = None if place is None else (place[0], place[1])
            elif kind == "refused":
                self.failures.append(f"refused: {rest[0]}")
                self._refused.update(dict.fromkeys(self._open.pop(call), rest[0]))
            else:
                assert kind == "unknown", event
                self.failures.append(f"unknown: {rest[0]}")
                self._unknown[call] = rest[0]

    def check(self, log: Log) -> None:
        """Raise if the log contradicts what was told so far; nobody may be writing."""
        found = {topic: _records(log, topic) for topic in TOPICS}
        there = {(topic, text): at for topic in TOPICS for text, at in found[topic].items()}
        with self._guard:
            for name, place in self._acked.items():
                assert name in there, f"{name} was acknowledged at {place} and is not there"
                assert place in (None, there[name]), f"{name} was at {place}, is at {there[name]}"
            for name, error in self._refused.items():
                assert name not in there, f"{name} is there, and was refused: {error}"
            pending = {name: call for call, names in self._open.items() for name in names}
            for name in there:
                assert name in self._acked or name in pending, f"{name} is nobody's"
            for call, names in self._open.items():
                count = sum(name in there for name in names)
                assert count in (0, len(names)), f"{call} is half there: {count} of {len(names)}"


def _records(log: Log, topic: str) -> dict[str, tuple[int, int]]:
    """Return where each record of a topic is; no record may be there twice."""
    found: dict[str, tuple[int, int]] = {}
    for partition, (at, end) in log.offsets(topic).items():
        while at < end:
            table = log.read(topic, partition, at)
            offsets = table.column("offset").to_pylist()
            assert offsets == list(range(at, at + len(offsets))), f"{topic}/{partition}: a hole"
            for offset, value in zip(offsets, table.column("value").to_pylist(), strict=True):
                text = value.decode()
                assert text not in found, f"{text} is in {topic} twice"
                found[text] = (partition, offset)
            at += len(offsets)
    return found


class Writer:
    """One thread's writing, each step of a kind that chance draws."""

    def __init__(self, log: Log, name: str, tell: Tell, rng: random.Random) -> None:
        self._log = log
        self._name = name
        self._tell = tell
        self._rng = rng
        self._numbers = itertools.count()
        self._producer: Producer | None = None

    def step(self) -> None:
        """Write something."""
        kinds = (self.append, self.append_batch, self.produce, self.transact)
        self._rng.choice(kinds)()

    def _names(self, count: int, *topics: str) -> list[list[str]]:
        return [
            [self._rng.choice(topics or TOPICS), f"{self._name}/{next(self._numbers)}"]
            for _ in range(count)
        ]

    def _told(self, records: list[list[str]], write: Callable[[], Any]) -> None:
        """Make a call that gives the place of each record, and tell what came of it."""
        call = f"{self._name}:{next(self._numbers)}"
        self._tell(["intend", call, records])
        try:
            places = write()
        except RejectedError as error:
            self._tell(["refused", call, f"{type(error).__name__}: {error}"])
        except LakebedError as error:
            self._tell(["unknown", call, f"{type(error).__name__}: {error}"])
        else:
            self._tell(["ack", call, places])

    def append(self) -> None:
        """Append one record."""
        records = self._names(1)
        ((topic, text),) = records

        def write() -> Any:
            ack = self._log.append(topic, text.encode(), text)
            return [(ack.partition, ack.offset)]

        self._told(records, write)

    def append_batch(self) -> None:
        """Append a batch, which goes to several partitions."""
        records = self._names(self._rng.randint(1, 30), self._rng.choice(TOPICS))
        rows = [{"value": text.encode(), "key": text.encode()} for _, text in records]

        def write() -> Any:
            acks = self._log.append_batch(records[0][0], rows)
            return [(ack.partition, ack.offset) for ack in acks]

        self._told(records, write)

    def produce(self) -> None:
        """Send records under a producer, one batch at a time, and wait for them."""
        records = self._names(self._rng.randint(1, 30), "plain")

        def write() -> Any:
            if self._producer is None:
                self._producer = self._log.producer(f"producer-{self._name}", linger_ms=1000)
            try:
                sent = [self._producer.send(topic, text.encode()) for topic, text in records]
                self._producer.flush()
            except LakebedError:
                producer, self._producer = self._producer, None
                with contextlib.suppress(LakebedError):  # it tells the same again
                    producer.close()
                raise
            return [(each.result().partition, each.result().offset) for each in sent]

        self._told(records, write)

    def transact(self) -> None:
        """Write to several topics in one transaction."""
        records = self._names(self._rng.randint(1, 8))

        def write() -> None:
            with self._log.transaction() as transaction:
                for topic, text in records:
                    transaction.append(topic, text.encode(), text)

        self._told(records, write)


class Writers:
    """Writers in threads, until the block ends."""

    def __init__(self, log: Log, ledger: Ledger, count: int, seed: object) -> None:
        self._ledger = ledger
        self._ended = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(
                target=self._run,
                args=(Writer(log, f"w{each}", ledger.take, random.Random(f"{seed}/{each}")),),
                daemon=True,
            )
            for each in range(count)
        ]

    def _run(self, writer: Writer) -> None:
        try:
            while not self._ended.is_set():
                writer.step()
        except BaseException as error:
            self._failed.append(error)

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def check(self) -> None:
        """Raise what a writer raised that is no error of the log."""
        for error in self._failed:
            raise error

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a writer hangs"
        self.check()
