"""Writing and reading back, compared: batches, many writers, latency under load, replay."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.background import write_until
from bench.compare_logs import OurEmbedded, OurServed, embedded, forget, served
from bench.compare_results import Measure
from bench.compare_work import Entry, Scale, Workload
from bench.crowd import in_a_process
from bench.load import from_threads, seconds
from bench.logs import values

BATCH = 1000
BACKGROUND_PER_SECOND = 10.0
"""Batches that somebody else writes while latencies are measured."""

_RATE = Measure("records per second", "/s", more_is_better=True)
_PERCENTILES = (50, 99, 99.9)
_RAW = "raw disk, growing file"


# Durable writes


def _batches_for(peer: Any, scale: Scale) -> dict[str, float]:
    given = values(BATCH)
    end = time.perf_counter() + scale.slot_seconds
    count, started = 0, time.perf_counter()
    while time.perf_counter() < end:
        peer.append(given)
        count += 1
    return {_RATE.name: count * BATCH / (time.perf_counter() - started)}


DURABLE_WRITES = Workload(
    "durable_writes",
    "One writer, batches of 1,000 x 100 B, each acknowledged before the next",
    (_RATE,),
    [*embedded(), *served()],
    _batches_for,
    reference=_RAW,
)


# Many small writers


def _fan_in(peer: Any, scale: Scale) -> dict[str, float]:
    crowd = getattr(peer, "crowd", None)
    if crowd:
        kind, port = crowd
        found = in_a_process(kind, port, scale.writers, scale.slot_seconds)["rate"]
    else:
        append = partial(peer.append, values(1))
        found = from_threads(append, scale.writers, scale.slot_seconds)
    return {_RATE.name: found}


FAN_IN = Workload(
    "fan_in",
    "{writers} concurrent writers, one 100 B record in flight each",
    (_RATE,),
    [*embedded(), *served(crowd=True)],
    _fan_in,
    reference=_RAW,
)


# Latency under load


def _tail(peer: Any, scale: Scale) -> dict[str, float]:
    with _background(peer):
        took = _open_loop(partial(peer.append, values(1)), scale.tail_rate, scale.tail_seconds)
    return {
        _percentile(part).name: float(np.percentile(took, part)) * 1000 for part in _PERCENTILES
    }


def _open_loop(call: Callable[[], object], rate: int, duration: float) -> list[float]:
    """Call at fixed times; return how long after its time each call had ended.

    A call that is late because the one before it took long is late by its own time: waiting in
    line is part of the latency.
    """
    begin = time.perf_counter()
    took = []
    for number in range(int(rate * duration)):
        due = begin + number / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        call()
        took.append(time.perf_counter() - due)
    return took


@contextlib.contextmanager
def _background(peer: Any) -> Iterator[None]:
    """Have somebody else write batches: another process for a server, else another thread."""
    if load := getattr(peer, "load", None):
        kind, where = load
        given = [kind, where, BATCH, BACKGROUND_PER_SECOND]
        command = [sys.executable, "-m", "bench.background", *map(str, given)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise RuntimeError(f"{' '.join(command)} failed")
                yield
            finally:
                process.kill()
    else:
        stop = threading.Event()
        thread = threading.Thread(
            target=write_until, args=(stop, peer, BATCH, BACKGROUND_PER_SECOND)
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _percentile(part: float) -> Measure:
    return Measure(f"p{part:g}", "ms", more_is_better=False)


TAIL_LATENCY = Workload(
    "tail_latency",
    "One 100 B record, {tail_rate} times a second, while 10 batches of 1,000 a second are written",
    [_percentile(part) for part in _PERCENTILES],
    [*embedded(), *served()],
    _tail,
)


# Replay


class _Replayed:
    """A store with history, opened again for every scan of it."""

    def __init__(self, folder: Path, scale: Scale, entry: Entry, way: str = "scan") -> None:
        self._folder, self._scale, self._entry, self._way = folder, scale, entry, way
        peer = self._opened()
        _fill(peer, scale.replay_records)
        peer.close()

    def scan_seconds(self) -> float:
        """Return how long a scan takes of files that are not in memory."""
        forget(self._folder)
        peer = self._opened()
        try:
            return _scan_seconds(getattr(peer, self._way), self._scale.replay_records)
        finally:
            peer.close()

    def close(self) -> None:
        """Nothing is open between scans."""

    def _opened(self) -> Any:
        assert self._entry.open is not None
        return self._entry.open(self._folder, self._scale)


class _ServedHistory:
    """A server with history, which stays up: it may keep in memory what it likes."""

    def __init__(self, folder: Path, scale: Scale, entry: Entry) -> None:
        assert entry.open is not None
        self._folder, self._scale = folder, scale
        self._peer = entry.open(folder, scale)
        try:
            _fill(self._peer, scale.replay_records)
        except BaseException:
            self._peer.close()
            raise

    def scan_seconds(self) -> float:
        """Return how long a scan takes."""
        forget(self._folder)
        return _scan_seconds(self._peer.scan, self._scale.replay_records)

    def close(self) -> None:
        """Stop the server."""
        self._peer.close()


def _fill(peer: Any, records: int) -> None:
    for _ in range(0, records, BATCH):
        peer.append(values(BATCH))
    if isinstance(peer, OurEmbedded | OurServed):
        peer.log.checkpoint()  # history is in Parquet files


def _scan_seconds(scan: Callable[[], int], expected: int) -> float:
    found = 0

    def call() -> None:
        nonlocal found
        found = scan()

    took = seconds(call)
    if found != expected:
        raise RuntimeError(f"{found} of {expected} records were read")
    return took


def _replay(peer: Any, scale: Scale) -> dict[str, float]:
    return {_RATE.name: scale.replay_records / peer.scan_seconds()}


def _replay_entries() -> list[Entry]:
    ours, *stores = embedded(raw=False)
    server, *queues = served(
        kinds={"RabbitMQ, quorum queue": "what is consumed is gone: there is no replay"}
    )
    return [
        _reading(ours, _Replayed, "sealed segments, each record as a Python object"),
        Entry(
            "Lakebed, as Arrow",
            "sealed segments, as the Arrow tables that `read` gives",
            partial(_Replayed, entry=ours, way="scan_arrow"),
            against="",
        ),
        *(_reading(each, _Replayed, "each record as a Python object") for each in stores),
        _reading(server, _Replayed, "sealed segments, each record as a Python object"),
        *(_reading(each, _ServedHistory, _HOW.get(each.name, each.how)) for each in queues),
    ]


_HOW = {
    "Redis Streams": "XRANGE, 1,000 at a time; all of it is in the server's memory",
    "RabbitMQ, stream": "a consumer from the first offset on, 1,000 not acknowledged",
    "NATS JetStream": "a pull consumer, 1,000 at a time",
}


def _reading(entry: Entry, kind: Any, how: str) -> Entry:
    if entry.open is None:
        return entry
    return Entry(
        entry.name,
        how,
        partial(kind, entry=entry),
        entry.programs,
        entry.modules,
        entry.synced,
        entry.against,
        entry.optional,
    )


REPLAY = Workload(
    "replay",
    "Reading {replay_records:,} records of 100 B from the first one on",
    (_RATE,),
    _replay_entries(),
    _replay,
)
