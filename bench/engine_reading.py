"""Reading from the start: out of the memtable, and out of sealed segments."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

import lakebed
from bench.load import seconds
from bench.logs import BATCH, TOPIC, settings, settle, table, values, warm_log
from bench.peers import Lmdb, Peer, Rocks, Sqlite
from bench.report import Rows
from bench.servers import installed

READ_RECORDS = 65_536
PEER_RECORDS = 200_000
"""Records in each store that is scanned."""

_FEWER = {"Redis Streams": 50_000, "NATS JetStream": 10_000}


def memtable(options: argparse.Namespace, rows: Rows) -> None:
    """Read a partition that is in memory: first what nobody has read yet, then once more."""
    count = 100
    log = warm_log(options.folder / "memtable", 1)
    peers = _filled_peers(options.folder)
    given = table()
    rates: dict[str, list[float]] = {name: [] for name in ("first", "again", *peers)}
    for _ in range(options.rounds):
        low = log.offsets(TOPIC)[0][1]
        for _ in range(count):
            log.append_batch(TOPIC, given)
        for name in ("first", "again"):
            took = seconds(partial(read_all, log, low, count * BATCH))
            rates[name].append(count * BATCH / took)
        settle(log)
        for name, peer in peers.items():
            rates[name].append(_scan_rate(name, peer))
    log.close()
    for peer in peers.values():
        peer.close()
    work = "reading the memtable from the start, 1 M x 100 B"
    rows.figure(work, "records per second", rates["first"], "/s", 20_000_000)
    rows.figure(work, "records per second, read before", rates["again"], "/s")
    for name in peers:
        rows.ratio(work, rates["first"], rates[name], f"scan of {name}")


def segments(options: argparse.Namespace, rows: Rows) -> None:
    """Read sealed segments with nothing decoded yet, beside pyarrow reading the same files."""
    count = 200
    folder: Path = options.folder / "segments"
    with lakebed.open(folder, settings()) as log:
        log.create_topic(TOPIC, partitions=1)
        for _ in range(count):
            log.append_batch(TOPIC, table())
        log.checkpoint()
    files = sorted(folder.glob("lake/*/*.parquet"))
    size = count * BATCH
    rates: dict[str, list[float]] = {name: [] for name in ("ours", "arrow", "one thread")}
    for _ in range(options.rounds):
        rates["arrow"].append(size / seconds(partial(_read_files, files, size, threads=True)))
        rates["one thread"].append(size / seconds(partial(_read_files, files, size, threads=False)))
        with lakebed.open(folder, settings()) as log:
            rates["ours"].append(size / seconds(partial(read_all, log, 0, size)))
    work = "reading sealed segments from the start, 2 M x 100 B"
    rows.figure(work, "records per second", rates["ours"], "/s")
    rows.ratio(work, rates["ours"], rates["arrow"], "pyarrow.parquet, same files", 0.8)
    rows.ratio(work, rates["ours"], rates["one thread"], "pyarrow.parquet with one thread")


def read_all(log: lakebed.Log, offset: int, expected: int) -> None:
    """Read a partition from `offset` on, in large reads."""
    count = 0
    while rows := log.read(TOPIC, 0, offset + count, max_records=READ_RECORDS).num_rows:
        count += rows
    assert count == expected, f"read {count} of {expected} records"


def _read_files(files: list[Path], expected: int, *, threads: bool) -> None:
    count = sum(pq.read_table(file, use_threads=threads).num_rows for file in files)
    assert count == expected, f"read {count} of {expected} records"


def _filled_peers(folder: Path) -> dict[str, Peer]:
    peers: dict[str, Peer] = {
        "SQLite": Sqlite(folder),
        "RocksDB": Rocks(folder),
        "LMDB": Lmdb(folder),
        **installed(folder),
    }
    for name, peer in peers.items():
        for _ in range(0, _size(name), BATCH):
            peer.append(values(BATCH))
    return peers


def _size(name: str) -> int:
    return _FEWER.get(name, PEER_RECORDS)


def _scan_rate(name: str, peer: Peer) -> float:
    found = 0

    def scan() -> None:
        nonlocal found
        found = peer.scan()

    took = seconds(scan)
    assert found == _size(name), f"{name} gave {found} records"
    return found / took
