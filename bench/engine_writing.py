"""Writing through the log: batches, a producer, and many threads with one record each."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

import lakebed
from bench.load import asynchronously, from_threads, one_core, rate
from bench.logs import BATCH, TOPIC, settle, table, values, warm_log
from bench.peers import RECORD_BYTES, Lmdb, Peer, Raw, Rocks, Sqlite
from bench.report import MIB, Rows
from bench.servers import JetStream, installed, say_once
from bench.wal import warm_wal
from lakebed.limits import RECORD_BYTES_MAX
from lakebed.topic.records import normalize, serialize

PARTITIONS = 4
BURST = 60
"""Batches of a burst: about 70 MB, so that its WAL files are recycled ones."""

_PEER_BATCHES = {"Redis Streams": 2, "NATS JetStream": 1}
_PEER_BATCHES_DEFAULT = 8


def batches(options: argparse.Namespace, rows: Rows) -> None:
    """Append Arrow tables of 10,000 records, each durable, beside the WAL alone and peers."""
    folder: Path = options.folder
    plain, keyed = table(), table(keys=True)
    data, records = _entry_bytes(plain), values(BATCH)
    log = warm_log(folder / "batches", PARTITIONS)
    missed = _spares_missed(log)
    wal = warm_wal(folder / "batches-wal")
    peers = _writing_peers(folder)
    rates: dict[str, list[float]] = {name: [] for name in ("plain", "keyed", "wal", *peers)}
    for _ in range(options.rounds):
        rates["wal"].append(BATCH * rate(lambda: wal.append(data), BURST))
        wal.release(wal.last_index)
        for name, given in (("plain", plain), ("keyed", keyed)):
            rates[name].append(BATCH * rate(partial(log.append_batch, TOPIC, given), BURST))
            settle(log)
        for name, peer in peers.items():
            count = _PEER_BATCHES.get(name, _PEER_BATCHES_DEFAULT)
            rates[name].append(BATCH * rate(partial(peer.append, records), count))
    _warn_if_cold(_spares_missed(log) - missed)
    log.close()
    wal.close()
    for peer in peers.values():
        peer.close()
    work = "append_batch, 10,000 x 100 B, 4 partitions"
    rows.figure(work, "records per second", rates["plain"], "/s", 3_000_000)
    rows.ratio(work, rates["plain"], rates["wal"], "the WAL alone, same bytes", 0.7)
    for name in peers:
        rows.ratio(work, rates["plain"], rates[name], name)
    work += ", 8 B keys"
    rows.figure(work, "records per second", rates["keyed"], "/s")
    rows.ratio(work, rates["keyed"], rates["plain"], "without keys")


def _entry_bytes(batch: pa.Table) -> bytes:
    """Make as many bytes as the entry of this batch has."""
    made = normalize(batch, pa.binary(), now_us=0, record_bytes_max=RECORD_BYTES_MAX)
    return os.urandom(serialize(made).size)


def _writing_peers(folder: Path) -> dict[str, Peer]:
    peers: dict[str, Peer] = {
        "SQLite": Sqlite(folder),
        "RocksDB": Rocks(folder),
        "LMDB": Lmdb(folder),
        **installed(folder),
    }
    stream = peers.get("NATS JetStream")
    if isinstance(stream, JetStream) and not stream.durable:
        say_once("NATS JetStream is left out of writing: this version cannot sync every message")
        peers.pop("NATS JetStream").close()
    return peers


def _spares_missed(log: lakebed.Log) -> int:
    return log.stats().wal.counters.spares_missed


def _warn_if_cold(missed: int) -> None:
    """Report if the log was not in its steady state: it made files while it was measured."""
    if missed:
        say_once(f"the WAL had no ready file {missed} times while it was measured")


def producer(options: argparse.Namespace, rows: Rows) -> None:
    """Send records one by one from one thread, up to the flush that makes all durable."""
    count = 300_000
    records = values(count)
    log = warm_log(options.folder / "producer", PARTITIONS)
    rates = []
    for _ in range(options.rounds):
        with log.producer() as sender:
            started = time.perf_counter()
            for record in records:
                sender.send(TOPIC, record)
            sender.flush()
            rates.append(count / (time.perf_counter() - started))
        settle(log)
    log.close()
    work = "producer.send one by one, then flush, 100 B"
    rows.figure(work, "records per second", rates, "/s", 700_000)


def single_records(options: argparse.Namespace, rows: Rows) -> None:
    """Append one record at a time, each durable, from many threads or as futures."""
    folder, data = options.folder, values(1)[0]
    log = warm_log(folder / "single", PARTITIONS)
    filled = Raw(folder / "single-filled", 64 * MIB, filled=True)
    growing = Raw(folder / "single-growing", 0, filled=False)
    raw = os.urandom(RECORD_BYTES)

    def measure(work: str, target: float | None, call: Callable[[], float]) -> None:
        ours, naive, real = [], [], []
        for _ in range(options.rounds):
            naive.append(rate(lambda: growing.append(raw), 1000))
            real.append(rate(lambda: filled.append(raw), 1000))
            ours.append(call())
            settle(log)
        rows.figure(work, "records per second", ours, "/s")
        rows.ratio(work, ours, naive, "raw single synced writes, growing file", target)
        rows.ratio(work, ours, real, "raw single synced writes, zero-filled file")

    append = partial(log.append, TOPIC, data)
    measure("1 thread, append of one 100 B record", None, partial(rate, append, 2000))
    many = partial(from_threads, append, 64, 1.5)
    measure("64 threads, append of one 100 B record", 15, many)
    with one_core():
        measure("64 threads on one core, append of one 100 B record", None, many)
    futures = partial(asynchronously, partial(log.append_async, TOPIC, data), 60_000)
    measure("1 thread, append_async, 100 B records", None, futures)
    log.close()
    filled.close()
    growing.close()
