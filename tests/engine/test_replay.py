"""Whatever is done, and wherever checkpoints fall, reopening gives the state that was left."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

import pytest

from lakebed import Log, LogConfig, WalConfig
from lakebed.api import transaction
from lakebed.errors import RejectedError
from lakebed.host import ManualClock, SimDisk
from lakebed.limits import KIB
from tests.engine.support import at_next_command, everything, inner, quiet, state_of

CONFIG = LogConfig(wal=WalConfig(file_bytes=64 * KIB), retention_interval_ms=86_400_000)
TOPICS = ("a", "b")


class Life:
    """Calls of a log in random order; some of them between the freeze and the flush."""

    def __init__(self, log: Log, clock: ManualClock, generator: random.Random) -> None:
        self.log = log
        self.clock = clock
        self.random = generator
        self.open: list[transaction.Transaction] = []
        self.number = 0

    def step(self) -> None:
        act = self.random.choice([self.write, self.write, self.write, self.write, *self.acts()])
        # Of a topic that is not there, or a transaction that has ended.
        with contextlib.suppress(RejectedError):
            act()

    def acts(self) -> list[Callable[[], object]]:
        return [
            self.create,
            self.delete,
            lambda: self.log.purge_topic(self.topic()),
            lambda: self.log.add_partitions(self.topic(), self.random.randint(1, 3)),
            self.begin,
            self.begin,
            self.extend,
            self.extend,
            lambda: self.pick().commit(),
            lambda: self.pick().abort(),
            self.commit_offsets,
            self.checkpoint,
            self.checkpoint,
            lambda: self.log.retain(),
            lambda: self.clock.advance(1),
            self.log.tick,
        ]

    def topic(self) -> str:
        return self.random.choice(TOPICS)

    def values(self) -> list[dict[str, bytes]]:
        self.number += 1
        key = b"%d" % self.random.randint(0, 3)
        return [{"key": key, "value": b"%d" % self.number + b"x" * 300}] * self.random.randint(1, 5)

    def create(self) -> None:
        cleanup = self.random.choice(["delete", "compact", "compact,delete"])
        config = {"cleanup": cleanup, "retention_ms": 3000, "segment_ms": 2000}
        self.log.create_topic(self.topic(), self.random.randint(1, 3), None, config)

    def delete(self) -> None:
        if self.random.random() < 0.3:
            self.log.delete_topic(self.topic())

    def write(self) -> None:
        self.log.append_batch(self.topic(), self.values())

    def begin(self) -> None:
        name = self.random.choice([None, "x"])
        self.open.append(self.log.transaction(name, timeout_ms=5000))

    def pick(self) -> transaction.Transaction:
        if not self.open:
            self.begin()
        return self.random.choice(self.open)

    def extend(self) -> None:
        self.pick().append_batch(self.topic(), self.values())

    def commit_offsets(self) -> None:
        topic = self.topic()
        end = self.log.offsets(topic)[0][1]
        self.log.commit_offsets("g", {(topic, 0): self.random.randint(0, end)})

    def checkpoint(self) -> None:
        checkpointer = inner(self.log).parts.checkpointer
        between = self.random.choice([0, 0, 1, 3])

        def act_meanwhile() -> None:
            for _ in range(between):
                act = self.random.choice([self.write, self.extend, self.delete, self.purge])
                with contextlib.suppress(RejectedError):
                    act()
                    self.random.choice([self.pick().commit, self.pick().abort, self.begin])()

        with at_next_command(checkpointer, act_meanwhile):
            self.log.checkpoint()

    def purge(self) -> None:
        self.log.purge_topic(self.topic())


def held(log: Log) -> dict[str, list[object]]:
    return {
        topic: [
            list(zip(everything(log, topic, "offset"), everything(log, topic), strict=True)),
            log.offsets(topic),
        ]
        for topic in log.topics()
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_log_reopens_to_the_state_and_the_records_it_had(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "_WRITE_BYTES", 500)
    disk, clock, generator = SimDisk(), ManualClock(), random.Random(seed)
    for _ in range(4):
        with quiet(config=CONFIG, disk=disk, clock=clock) as log:
            life = Life(log, clock, generator)
            for _ in range(60):
                life.step()
            log.verify()
            state, records = state_of(log), held(log)
            memory = log.stats().memtable_bytes
        with quiet(config=CONFIG, disk=disk, clock=clock) as log:
            assert state_of(log) == state
            assert held(log) == records
            assert log.stats().memtable_bytes <= memory
            assert log.stats().files_quarantined == 0
            log.checkpoint()
            assert held(log) == records
            assert log.stats().memtable_bytes == 0
