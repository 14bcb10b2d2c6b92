"""A process that writes to a log until it is killed, and reports what it does.

    python -m tests.proof.engine_writer FOLDER RUN SEED MODE

Modes: `write` writes until it is killed, `recover` only opens and closes, `script` lives a fixed
number of steps in one thread, with everything that a log can do in it, and comes by every failpoint
that a log's life can meet. Reports are lines of JSON (see `engine_ledger`).
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from lakebed import Log, LogConfig, WalConfig
from lakebed.api import transaction as transactions
from lakebed.errors import LakebedError, RejectedError
from lakebed.topic.survivors import pack_survivors
from tests.engine.support import inner
from tests.proof.engine_life import Worker, value_of

THREADS = 3
_SCRIPT_ROUNDS = 3
_SMALL = 4096


def tell(event: list[Any]) -> None:
    """Report an event in one write, which a kill cannot cut."""
    data = (json.dumps(event) + "\n").encode()
    done = os.write(1, data)
    while done < len(data):  # a full pipe takes some of a long line
        done += os.write(1, data[done:])


def random_config(rng: random.Random) -> LogConfig:
    """Choose settings under which files are soon full, and maintenance is always at work."""
    wal = WalConfig(
        file_bytes=rng.choice((16, 64)) << 10,
        entry_bytes_max=1 << 20,
        spare_files=rng.randrange(3),
        idle_mark_ms=rng.choice((1, 500)),
    )
    return LogConfig(
        wal=wal,
        memtable_bytes=rng.choice((64, 256)) << 10,
        wal_bytes=rng.choice((64, 256)) << 10,
        checkpoint_interval_ms=rng.choice((20, 100_000)),
        retention_interval_ms=rng.choice((10, 100_000)),
        cache_bytes=rng.choice((0, 1 << 20)),
    )


SCRIPT = LogConfig(
    wal=WalConfig(file_bytes=_SMALL, spare_files=1, entry_bytes_max=1 << 20, idle_mark_ms=1000),
    memtable_bytes=64 << 10,
    wal_bytes=64 << 10,
)
"""The scripted life's settings: a few entries fill a file."""


def produce(worker: Worker) -> None:
    """Send records under a producer of the public kind, and see each of them acknowledged."""
    rows = worker.rows(worker.rng.randint(1, 20), "fixed")
    name = f"sender-{worker.thread}"
    producer = worker.quietly(lambda: worker.log.producer(name, linger_ms=1, batch_bytes=600))
    if producer is None:
        return
    numbers = [worker.new_operation() for _ in rows]
    for number, row in zip(numbers, rows, strict=True):
        worker.tell(["intend", number, {"records": [row]}])
    sent: list[Any] = []
    for row in rows:
        try:
            sent.append(producer.send(row[0], value_of(row)))
        except LakebedError as error:
            sent.append(error)
    worker.quietly(producer.close)
    for number, each in zip(numbers, sent, strict=True):
        if isinstance(each, LakebedError):
            # It was not taken, because one before it failed: it did not happen.
            worker.tell(["refused", number])
        else:
            worker.finish(number, lambda each=each: [each.result(600)])  # type: ignore[misc]


class Threads:
    """The writing threads. Anything unexpected ends the process with a report."""

    def __init__(self, log: Log, run: int, seed: str) -> None:
        self._workers = [
            Worker(log, tell, random.Random(f"{seed}/{run}/{each}"), run=run, thread=each)
            for each in range(THREADS)
        ]

    def write(self) -> None:
        """Write until killed."""
        self._workers[0].prepare()
        threads = [threading.Thread(target=self._work, args=(worker,)) for worker in self._workers]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _work(self, worker: Worker) -> None:
        try:
            while True:
                if worker.rng.random() < 0.1:
                    produce(worker)
                else:
                    worker.step()
                if worker.failure is not None:
                    assert isinstance(worker.failure, RejectedError), worker.failure
                    worker.failure = None
        except BaseException as error:
            tell(["failed", f"{type(error).__name__} {error} while {worker.doing}"])
            os._exit(3)


class Script:
    """The life that comes by every step of the engine; goes on after a failure."""

    def __init__(self, folder: Path, run: int, config: LogConfig = SCRIPT) -> None:
        self._config = config
        self._folder = folder
        self._rng = random.Random(f"script/{run}")
        self._worker: Worker | None = None
        self._run = run

    def live(self) -> None:
        """Live it, opening the log again whenever it has stopped."""
        for number in range(_SCRIPT_ROUNDS):
            for action in self._round(number):
                self._do(action)
        self.reopen()
        if self._worker is not None:
            self._worker.log.close()

    def _round(self, number: int) -> list[Any]:
        return [
            Worker.prepare,
            Worker.fill_spares,
            *[Worker.append_batch] * 4,
            Worker.append,
            Worker.append_async,
            Worker.transaction,
            begin,
            write_pending,
            Worker.checkpoint,
            Worker.produce,
            Worker.produce_again,
            produce,
            Worker.stale_abort,
            *[Worker.append_batch] * 5,
            Worker.checkpoint,
            Worker.retain,
            *([Worker.purge] if number == 1 else []),
            *([Worker.recreate] if number == 2 else []),
            *[compactable] * 2,
            Worker.checkpoint,
            end_pending,
            compactable,
            Worker.checkpoint,
            rewrite,
            Worker.retain,
            Worker.commit_offsets,
            *([type(self).reopen] if number == 0 else []),
        ]

    def _do(self, action: Any) -> None:
        if self._worker is None:
            self.reopen()
        worker = self._worker
        if worker is None:
            return
        if action is type(self).reopen:
            self.reopen()
            return
        worker.do(action)
        if worker.failure is not None and not isinstance(worker.failure, RejectedError):
            worker.failure = None
            if inner(worker.log).parts.wal.stats().poisoned or inner(worker.log).parts.core.broken:
                self.reopen()

    def reopen(self) -> None:
        """Close, and open until it succeeds: a failpoint fails once."""
        if self._worker is not None:
            self._worker.quietly(self._worker.log.close)
        for _ in range(2):
            tell(["phase", "opening"])
            try:
                log = Log.open(self._folder, self._config, threaded=False)
            except LakebedError:
                continue
            tell(["phase", "opened"])
            if self._worker is None:
                self._worker = Worker(log, tell, self._rng, run=self._run)
            self._worker.move_to(log)
            return
        tell(["failed", "the log cannot be opened"])
        os._exit(4)


def begin(worker: Worker) -> None:
    """Begin a long transaction, twice, so that the first is taken over."""
    worker.forget()
    worker.long_transaction()
    worker.pending = None
    worker.long_transaction()


def write_pending(worker: Worker) -> None:
    """Write to the open transaction, so that a checkpoint stages it."""
    if worker.pending is not None:
        worker.write_pending(worker.pending)


def end_pending(worker: Worker) -> None:
    """Commit it."""
    if worker.pending is not None:
        worker.commit_pending(worker.pending)
    worker.pending = None


def compactable(worker: Worker) -> None:
    """Write keys again that were written before, and enough for retention to remove some."""
    for topic in ("compacted", "trimmed"):
        rows = worker.rows(8, topic)
        values = [{"value": value_of(row), "key": row[1].encode() or None} for row in rows]
        worker.call({"records": rows}, lambda: worker.log.append_batch(topic, values))  # noqa: B023


def rewrite(worker: Worker) -> None:
    """Compact by key as a job elsewhere would: decide from a scan, and have segments rewritten."""
    log = worker.log
    plan = worker.quietly(lambda: log.plan_compaction("compacted", force=True))
    for part in () if plan is None else plan.partitions:
        scan = log.table("compacted").scan(["offset", "key"], start=part.base, until=part.end)
        last = {row["key"]: row["offset"] for row in scan.read_all().to_pylist()}
        survivors = np.array(sorted(last.values()), dtype=np.int64)
        bits = pack_survivors(survivors, base=part.base, end=part.end)
        worker.quietly(lambda: log.rewrite_segments("compacted", 0, part.segments, bits))  # noqa: B023


def main(folder: str, run: str, seed: str, mode: str) -> None:
    """Live one life of the writer."""
    transactions._WRITE_BYTES = 600  # type: ignore[misc]  # large ones write before they commit
    if mode == "script":
        Script(Path(folder), int(run)).live()
        tell(["phase", "closed"])
        return
    rng = random.Random(f"{seed}/{run}")
    tell(["phase", "opening"])
    log = Log.open(folder, random_config(rng))
    tell(["phase", "opened"])
    if mode == "write":
        Threads(log, int(run), seed).write()
    tell(["phase", "closing"])
    log.close()
    tell(["phase", "closed"])


if __name__ == "__main__":
    main(*sys.argv[1:])
