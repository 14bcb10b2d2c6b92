"""Writing to a log in a store that answers after 30 ms: acknowledged by it, or shipped behind.

The store is in memory, so that its delay is all that it costs, with one disk for all logs. That of
replicas, which are processes, is a folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import lakebed
from bench.load import from_threads, pipelined, rate, seconds
from bench.logs import BATCH, TOPIC, settings, table, values
from bench.report import MIB, Rows
from bench.stores import delayed
from lakebed import AckMode, LakeConfig, WalConfig
from lakebed.host.conditional import DONE, REFUSED, Answer, Versioned

PUT_SECONDS = 0.03
IN_FLIGHT = 32 * MIB // (BATCH * 110)
"""Batches in flight: 32 MB."""
_BURST = 60
_LONE = 20
_CROWD = 64
_CROWD_SECONDS = 3.0
_REPLICAS = 3


class DelayedStore:
    """A conditional store in memory whose every call takes as long as a PUT. Any thread."""

    def __init__(self, delay_seconds: float) -> None:
        self.location = "memory://delayed"
        self._delay_seconds = delay_seconds
        self._guard = threading.Lock()
        self._objects: dict[str, bytes] = {}

    def put_new(self, name: str, data: bytes) -> Answer:
        """See `ConditionalStore`."""
        time.sleep(self._delay_seconds)
        with self._guard:
            return DONE if self._objects.setdefault(name, data) is data else REFUSED

    def put_if(self, name: str, data: bytes, version: str) -> Answer:
        """See `ConditionalStore`."""
        time.sleep(self._delay_seconds)
        with self._guard:
            if name not in self._objects or _version(self._objects[name]) != version:
                return REFUSED
            self._objects[name] = data
            return DONE

    def get(self, name: str) -> Versioned | None:
        """See `ConditionalStore`."""
        time.sleep(self._delay_seconds)
        data = self._objects.get(name)
        return None if data is None else Versioned(data, _version(data))

    def put(self, name: str, data: bytes) -> None:
        """See `ConditionalStore`."""
        time.sleep(self._delay_seconds)
        self._objects[name] = data

    def delete(self, name: str) -> None:
        """See `ConditionalStore`."""
        self._objects.pop(name, None)


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _log(folder: Path, **wal: object) -> Iterator[lakebed.Log]:
    """Open a log whose WAL goes to a delayed store; without settings, to the disk alone."""
    folder.mkdir(parents=True)
    config = settings()
    if wal:
        (folder / "segments").mkdir()
        config = replace(
            config,
            wal=WalConfig(**wal),  # type: ignore[arg-type]
            lake=LakeConfig(store=f"file://{folder.resolve()}/segments", iceberg=False),
        )
    store = DelayedStore(PUT_SECONDS)
    with (
        mock.patch("lakebed.engine.ownership.open_conditional", lambda *_: store),
        lakebed.open(folder / "log", config) as log,
    ):
        log.create_topic(TOPIC)
        yield log


def shipping(options: argparse.Namespace, rows: Rows) -> None:
    """Append batches and single records: on this disk, shipped behind, and acknowledged by slot."""
    given, value = table(), values(1)[0]
    modes: dict[str, dict[str, object]] = {
        "disk": {},
        "local": {"ship_ms": 1000},
        "store": {"acks": AckMode.STORE},
    }
    rates: dict[str, list[float]] = {f"{mode} {what}": [] for mode in modes for what in _WORK}
    lone: list[float] = []
    for number in range(options.rounds):
        for mode, wal in modes.items():
            with _log(options.folder / f"{mode}-{number}", **wal) as log:
                append = partial(log.append_batch_async, TOPIC, given)
                pipelined(append, 8, 8)
                rates[f"{mode} batches"].append(BATCH * pipelined(append, _BURST, IN_FLIGHT))
                single = partial(log.append, TOPIC, value)
                crowd = from_threads(single, _CROWD, _CROWD_SECONDS)
                rates[f"{mode} threads"].append(crowd)
                if mode == "store":
                    times = [seconds(single) for _ in range(_LONE)]
                    lone.append(statistics.median(times) / PUT_SECONDS)
                    continue
                rates[f"{mode} single"].append(rate(single, 500))
    work = "append_batch_async, 10,000 x 100 B, 32 MB in flight"
    rows.ratio(
        f"{work}, shipped every second",
        rates["local batches"],
        rates["disk batches"],
        "this disk alone",
        0.85,
    )
    rows.ratio(
        "append, one thread, shipped every second",
        rates["local single"],
        rates["disk single"],
        "this disk alone",
        0.85,
    )
    store = f"{work}, acknowledged by a store with PUTs of 30 ms"
    rows.figure(store, "records per second", rates["store batches"], "/s")
    rows.ratio(store, rates["store batches"], rates["disk batches"], "this disk alone", 0.5)
    work = "append, one thread, acknowledged by a store with PUTs of 30 ms"
    rows.figure(work, "median in PUTs", lone, "x", 1.2, at_most=True)
    work = "append, 64 threads, acknowledged by a store with PUTs of 30 ms"
    rows.figure(work, "records per second", rates["store threads"], "/s", 1500)


_WORK = ("batches", "threads", "single")


# Read replicas


def replicas(options: argparse.Namespace, rows: Rows) -> None:
    """Append single records from many threads, alone and while three replicas follow the log."""
    alone: list[float] = []
    followed: list[float] = []
    lags: list[float] = []
    poll_seconds = WalConfig().replica_poll_ms / 1000
    for number in range(options.rounds):
        with _in_folder(options.folder / f"replicas-{number}") as (log, url):
            acked: dict[int, float] = {}

            def append(log: lakebed.Log = log, acked: dict[int, float] = acked) -> None:
                acked[log.append(TOPIC, b"x" * 100).offset] = time.monotonic()

            from_threads(append, _CROWD, 0.5)
            alone.append(from_threads(append, _CROWD, _CROWD_SECONDS))
            with ExitStack() as stack:
                children = [stack.enter_context(_follower(url)) for _ in range(_REPLICAS)]
                first = max(acked)
                followed.append(from_threads(append, _CROWD, _CROWD_SECONDS))
                shown = [_shown_by(child, len(acked)) for child in children]
            late = sorted(
                seen[offset] - at
                for seen in shown
                for offset, at in acked.items()
                if offset > first
            )
            lags.append(late[len(late) * 99 // 100] - poll_seconds)
    work = "append, 64 threads, acknowledged by a store with PUTs of 30 ms, three replicas"
    rows.ratio(work, followed, alone, "without replicas", 0.95)
    name = "99 % of records are shown after a poll and so many PUTs"
    rows.figure(work, name, [lag / PUT_SECONDS for lag in lags], "x", 2, at_most=True)


@contextmanager
def _in_folder(folder: Path) -> Iterator[tuple[lakebed.Log, str]]:
    """Open a log in a store that is a folder, whose calls take as long as those to a bucket."""
    (folder / "store").mkdir(parents=True)
    url = f"file://{(folder / 'store').absolute()}"
    config = replace(settings(), lake=LakeConfig(store=url, iceberg=False))
    with (
        mock.patch("lakebed.engine.ownership.open_conditional", delayed(PUT_SECONDS)),
        lakebed.open(url, config, folder=folder / "log") as log,
    ):
        log.create_topic(TOPIC)
        yield log, url


@contextmanager
def _follower(url: str) -> Iterator[subprocess.Popen[str]]:
    """Start a replica in a process within the block; it follows the log then."""
    command = [sys.executable, "-m", "bench.follower", url, TOPIC, str(PUT_SECONDS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        if child.stdout is None or child.stdout.readline().strip() != "following":
            raise AssertionError("a replica did not start")
        yield child


def _shown_by(child: subprocess.Popen[str], records: int) -> list[float]:
    """Return when a replica showed each record; those that it never showed are an error."""
    time.sleep(1.0)  # it has shown the last ones by then, or is too late
    shown: list[tuple[float, int]] = json.loads(child.communicate()[0])
    times: list[float] = []
    for at, end in shown:
        times += [at] * (end - len(times))
    if len(times) < records:
        raise AssertionError("a replica did not show every record")
    return times
