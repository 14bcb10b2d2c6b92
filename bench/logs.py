"""Logs and records to measure with."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakebed
from bench.peers import RECORD_BYTES
from bench.report import GIB, MIB
from lakebed.config import LakeConfig

TOPIC = "events"
BATCH = 10_000
"""Records of a batch."""
MEMTABLE_BYTES = 1 * GIB
"""Half of it begins a checkpoint: more than any burst that is measured."""

_DAY_MS = 86_400_000
_NO_TABLES = LakeConfig(iceberg=False)
_TEXT = b'{"status":"settled","currency":"EUR","country":"DE","channel":"web"}'


def settings(
    memtable_bytes: int = MEMTABLE_BYTES,
    wal_bytes: int = 64 * GIB,
    lake: LakeConfig = _NO_TABLES,
) -> lakebed.LogConfig:
    """Return settings of a log that does nothing automatically but what these sizes ask for."""
    return lakebed.LogConfig(
        lake=lake,
        memtable_bytes=memtable_bytes,
        wal_bytes=wal_bytes,
        checkpoint_interval_ms=_DAY_MS,
        retention_interval_ms=_DAY_MS,
    )


def warm_log(folder: Path, partitions: int) -> lakebed.Log:
    """Open a log in its steady state: the WAL files that it will write are recycled ones."""
    log = lakebed.open(folder, settings())
    log.create_topic(TOPIC, partitions=partitions)
    filler = pa.table({"value": [bytes(MIB)]})
    for _ in range(4):
        for _ in range(96):
            log.append_batch(TOPIC, filler)
        settle(log)
    return log


def settle(log: lakebed.Log) -> None:
    """Empty the memtables and have the WAL files before freed, untimed.

    A checkpoint frees what the one before it has made unneeded: hence two, with an entry between.
    """
    log.checkpoint()
    log.append(TOPIC, b"", partition=0)
    log.checkpoint()


def values(count: int) -> list[bytes]:
    """Make records of 100 bytes: half random, half text that compresses."""
    half = RECORD_BYTES // 2
    noise, text = os.urandom(count * half), (_TEXT * 2)[: RECORD_BYTES - half]
    return [noise[start : start + half] + text for start in range(0, count * half, half)]


def table(count: int = BATCH, *, keys: bool = False) -> pa.Table:
    """Make a table of records, with or without random keys of 8 bytes."""
    columns = {"value": pa.array(values(count), pa.binary())}
    if keys:
        noise = np.frombuffer(os.urandom(8 * count), np.uint8)
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(8), count, [None, pa.py_buffer(noise)]
        )
        columns["key"] = fixed.cast(pa.binary())
    return pa.table(columns)


def records_in(log: lakebed.Log) -> int:
    """Count what can be read."""
    return sum(end - low for name in log.topics() for low, end in log.offsets(name).values())
