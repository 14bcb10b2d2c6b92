"""A process that writes to a log with tables and perhaps a store, and reports what it does.

    main FOLDER SETTINGS RUN MODE

Settings are JSON: `store`, `options`, and `ships` if its entries go to the store. Modes: `script`
lives a fixed number of steps in one thread, with everything in it that a lake does, and comes by
every failpoint of it; `write` lets the log's own threads do all that while it appends, until it is
killed. Reports are lines of JSON:

    ["ack", topic, partition, offset, key, value]   a record was acknowledged
    ["failed", what, why]                           a step raised one of our errors
    ["broken", what, why]                           it raised anything else: a defect
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401  # imported before the fork: it takes a second

from lakebed import AckMode, Log, LogConfig, WalConfig
from lakebed.config import LakeConfig
from lakebed.errors import LakebedError
from tests.engine.support import inner
from tests.proof.engine_writer import tell

TOPICS: dict[str, dict[str, Any]] = {
    "kept": {"local_bytes": 0},
    "trimmed": {"retention_bytes": 9000},
    "compacted": {"cleanup": "compact", "compact_dirty_percent": 0, "local_ms": 0},
    "gone": {},
}
"""The topics and their settings; the last one is deleted now and then."""


def settings(given: str, *, busy: bool = False) -> LogConfig:
    """Return a log's settings; a busy one does everything automatically, as often as it can."""
    lake = json.loads(given)
    often = 20 if busy else 100_000
    wal = WalConfig(file_bytes=16 << 10, entry_bytes_max=1 << 20, spare_files=0)
    if lake.get("ships"):
        wal = replace(wal, acks=AckMode.STORE, lease_ms=LEASE_MS)
    return LogConfig(
        wal=wal,
        checkpoint_interval_ms=often,
        retention_interval_ms=often,
        lake=LakeConfig(
            store=lake["store"],
            store_options=lake["options"],
            store_cache_bytes=20_000,
            snapshots_kept=3,
            snapshot_age_ms=0,
            grace_ms=0,
            sync_interval_ms=often,
        ),
    )


LEASE_MS = 600


class Life:
    """Steps of a log's life. One thread."""

    def __init__(self, folder: Path, config: LogConfig, run: int, *, threaded: bool) -> None:
        self._folder = folder
        self._config = config
        self._threaded = threaded
        self._numbers = itertools.count()
        self._run = run
        self._log: Log | None = None

    def do(self, what: str, step: Callable[[Log], object]) -> None:
        """Take a step; an error of ours is reported, and anything else ends the process."""
        try:
            if self._log is None:
                self._log = Log.open(self._folder, self._config, threaded=self._threaded)
            step(self._log)
        except LakebedError as error:
            tell(["failed", what, f"{type(error).__name__} {error}"])
            self._reopen_if_stopped()
        except Exception as error:
            tell(["broken", what, f"{type(error).__name__} {error}"])
            os._exit(3)

    def _reopen_if_stopped(self) -> None:
        log = self._log
        if log is not None and (
            inner(log).parts.wal.stats().poisoned or inner(log).parts.core.broken is not None
        ):
            self.close()

    def close(self) -> None:
        """Close the log; the next step opens it again."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.close()
            except LakebedError as error:
                tell(["failed", "close", str(error)])

    def append(self, topic: str, count: int) -> Callable[[Log], None]:
        """Append records, each different from all others, and report each that is acknowledged."""

        def step(log: Log) -> None:
            log.get_or_create_topic(topic, 2 if topic == "kept" else 1, config=TOPICS[topic])
            rows = [
                {"key": b"%d" % (each % 5), "value": b"%d/%d" % (self._run, next(self._numbers))}
                for each in range(count)
            ]
            acks = log.append_batch(topic, rows)
            for row, ack in zip(rows, acks, strict=True):
                place = [topic, ack.partition, ack.offset]
                tell(["ack", *place, row["key"].decode(), row["value"].decode()])

        return step

    def begin_to_ship(self, config: LogConfig) -> None:
        """Make tables that are in the store, and from then on ship every entry to it."""
        self.do("append", self.append("kept", 5))
        self.do("checkpoint", lambda log: log.checkpoint())
        self.do("sync", lambda log: log.lake.sync())
        self.close()
        self._config = config

    def script(self) -> None:
        """Live the life that comes by every failpoint."""
        for what, step in self._steps():
            self.do(what, step)
        self.close()

    def _steps(self) -> Iterator[tuple[str, Callable[[Log], object]]]:
        for _ in range(2):
            for topic in TOPICS:
                yield "append", self.append(topic, 15)
            yield "checkpoint", lambda log: log.checkpoint()
            yield "sync", lambda log: log.lake.sync()
        for _ in range(7):
            yield "append", self.append("gone", 5)
            yield "append", self.append("trimmed", 15)
            yield "checkpoint", lambda log: log.checkpoint()
        yield "retain", lambda log: log.retain()
        yield "sync", lambda log: log.lake.sync()
        yield "gc", lambda log: log.lake.gc()
        yield "close", lambda _: self.close()
        yield "read", lambda log: [log.read("kept", each) for each in range(2)]
        yield "append", self.append("kept", 5)
        yield "delete", lambda log: log.delete_topic("gone")
        yield "append", self.append("gone", 5)
        yield "checkpoint", lambda log: log.checkpoint()
        yield "sync", lambda log: log.lake.sync()
        yield "gc", lambda log: log.lake.gc(now=True)
        yield "verify", lambda log: log.verify()

    def write(self) -> None:
        """Append until killed; the log's own threads do the rest."""
        for number in itertools.count():
            for topic in TOPICS:
                self.do("append", self.append(topic, 15))
            if number % 20 == 19:
                self.do("gc", lambda log: log.lake.gc(now=True))
            if number % 30 == 29:
                self.do("delete", lambda log: log.delete_topic("gone"))


def main(folder: str, given: str, run: str, mode: str) -> None:
    """Live one life."""
    busy = mode == "write"
    config = settings(given, busy=busy)
    if config.ships and not busy:
        before = settings(json.dumps({**json.loads(given), "ships": False}))
        life = Life(Path(folder), before, int(run), threaded=False)
        life.begin_to_ship(config)
    else:
        life = Life(Path(folder), config, int(run), threaded=busy)
    life.write() if busy else life.script()
