"""Batches of many producers in one entry: each is placed, repeated or refused as if alone."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.engine.gathering import Gathering, Piece, Settle
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import (
    FencedError,
    PartitionNotFoundError,
    SequenceGapError,
    TopicNotFoundError,
)
from lakebed.state.commands import RegisterProducer
from tests.engine.support import submit
from tests.second_log import Folder


class Outcome(Future[Any]):
    """Settles when the log has written the entry."""

    def __init__(self, settle: Settle) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.add_done_callback(
            lambda done: settle(None if done.exception() else done.result(), done.exception())
        )


class Writers:
    """Puts batches into a log, and knows what became of them."""

    def __init__(self, log: EmbeddedLog) -> None:
        self.log = log
        self.made: list[Outcome] = []
        self.gathering = Gathering(log.parts, self._reply)
        self.results: list[Any] = []

    def _reply(self, settle: Settle) -> Outcome:
        self.made.append(Outcome(settle))
        return self.made[-1]

    def put(self, *values: bytes, topic: str = "t", partition: int = 0, claim: Any = ()) -> int:
        number = len(self.results)
        self.results.append(None)

        def notify(result: Any) -> None:
            self.results[number] = result

        target = self.log.parts.writing.target(topic)
        times = [7] * len(values)
        piece = Piece(target, partition, times, None, None, values, None, claim, 100, notify)
        self.gathering.put(piece)
        return number

    def wait(self) -> list[Any]:
        for each in self.made:
            each.exception(60)
        return self.results

    def register(self, name: str = "") -> tuple[int, int]:
        identity: tuple[int, int] = submit(self.log, RegisterProducer(name, 1))
        return identity


def opened(folder: Path) -> EmbeddedLog:
    log = lakebed.Log.open(folder)
    assert isinstance(log, EmbeddedLog)
    return log


def values(log: EmbeddedLog, topic: str = "t", partition: int = 0) -> list[bytes]:
    found: list[bytes] = log.read(topic, partition, "earliest").column("value").to_pylist()
    return found


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with opened(tmp_path / "log") as made:
        made.create_topic("t", partitions=2)
        made.create_topic("u")
        yield made


def test_batches_that_come_together_share_entries(log: EmbeddedLog) -> None:
    writers = Writers(log)
    before = log.stats().wal.last_index
    for number in range(200):
        topic, partition = ("u", 0) if number % 3 == 2 else ("t", number % 3)
        writers.put(b"%d" % number, topic=topic, partition=partition)
    assert all(isinstance(each, int) for each in writers.wait())
    assert log.stats().wal.last_index - before < 200
    assert values(log, "u") == [b"%d" % number for number in range(2, 200, 3)]
    for partition in (0, 1):
        assert values(log, "t", partition) == [
            b"%d" % number for number in range(partition, 200, 3)
        ]


def test_a_claim_is_placed_once_and_in_order(log: EmbeddedLog) -> None:
    producer, epoch = Writers(log).register()
    writers = Writers(log)
    writers.put(b"a", b"b", claim=(producer, epoch, 0))
    writers.put(b"c", claim=(producer, epoch, 2))
    writers.put(b"a", b"b", claim=(producer, epoch, 0))
    writers.put(b"gap", claim=(producer, epoch, 4))
    writers.put(b"plain")
    first, second, repeat, gap, plain = writers.wait()
    assert (first, second, repeat, plain) == (0, 2, 0, 3)
    assert isinstance(gap, SequenceGapError)
    assert values(log) == [b"a", b"b", b"c", b"plain"]


def test_the_rules_of_kafka_for_sequences_and_epochs(log: EmbeddedLog) -> None:
    producer, epoch = Writers(log).register()
    named, of_named = Writers(log).register("mine")
    cases: list[tuple[tuple[int, int, int], type | None]] = [
        ((producer, epoch, 2**31 - 1), None),  # nothing is known: any sequence
        ((producer, epoch, 0), None),  # which wraps
        ((producer, epoch + 1, 5), FencedError),
        ((producer, epoch + 1, 0), None),  # a producer without a name raises its epoch
        ((producer, epoch, 1), FencedError),
        ((producer, epoch + 1, 1), None),
        ((named, of_named + 1, 0), FencedError),
        ((999, 1, 0), FencedError),
    ]
    for number, (claim, error) in enumerate(cases):
        writers = Writers(log)
        writers.put(b"%d" % number, claim=claim)
        (result,) = writers.wait()
        assert isinstance(result, error or int), (claim, result)
    assert values(log) == [b"0", b"1", b"3", b"5"]


def test_what_is_refused_leaves_the_others(log: EmbeddedLog) -> None:
    writers = Writers(log)
    gone = log.parts.writing.target("u")
    log.delete_topic("u")
    writers.put(b"first")
    writers.put(b"nowhere", partition=9)
    writers.gathering.put(
        Piece(gone, 0, [7], None, None, [b"x"], None, (), 1, writers.results.append)
    )
    writers.put(b"last")
    writers.wait()
    kinds = [type(each) for each in writers.results]
    assert kinds.count(int) == 2
    assert {PartitionNotFoundError, TopicNotFoundError} <= set(kinds)
    assert values(log) == [b"first", b"last"]


def test_everything_is_there_after_a_restart_and_for_the_second_reader(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with opened(folder) as log:
        log.create_topic("t", partitions=2)
        producer, epoch = Writers(log).register()
        writers = Writers(log)
        for number in range(50):
            writers.put(b"%d" % number, partition=number % 2, claim=(producer, epoch, number // 2))
            writers.put(b"plain %d" % number)
        writers.put(b"gap", claim=(producer, epoch, 99))
        assert sum(isinstance(each, int) for each in writers.wait()) == 100
        expected = [values(log, "t", each) for each in (0, 1)]
    second = Folder(folder)
    for partition, held in enumerate(expected):
        found = second.records("t", partition)
        assert [record[3] for _, record in sorted(found.items())] == held
    with opened(folder) as log:
        assert [values(log, "t", each) for each in (0, 1)] == expected
        writers = Writers(log)
        writers.put(b"48", claim=(producer, epoch, 24))
        writers.put(b"next", claim=(producer, epoch, 25))
        repeat, following = writers.wait()
        assert expected[0][repeat] == b"48"
        assert following == len(expected[0])
        log.checkpoint()
        assert values(log)[-1] == b"next"


def test_memory_is_counted_down_when_refused_and_repeated_runs_are_flushed(
    log: EmbeddedLog,
) -> None:
    producer, epoch = Writers(log).register()
    writers = Writers(log)
    for number in (0, 0, 5, 1, 1):
        writers.put(b"v" * 100, claim=(producer, epoch, number))
        writers.put(b"w", partition=1)
    writers.wait()
    log.checkpoint()
    assert log.parts.core.used["memory_bytes"] == 0
