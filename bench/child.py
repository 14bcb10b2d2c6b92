"""Work whose memory is measured: each in a process of its own, its figures as JSON on stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import lakebed
from bench.load import memory_mib
from bench.logs import BATCH, TOPIC, settings, table
from bench.peers import RECORD_BYTES
from bench.report import GIB, MIB

_MEMTABLE_BYTES = 128 * MIB
_TABLES = 16
"""Different batches that are written in turn: more than a row group can find repeated in itself."""


def open_log(folder: str) -> dict[str, float]:
    """Open a log that is there."""
    started = time.perf_counter()
    log = lakebed.open(folder, settings())
    took = time.perf_counter() - started
    stats = log.stats()
    log.close()
    return {
        "seconds": took,
        "peak_mib": memory_mib("VmHWM"),
        "segments": stats.segments,
        "quarantined": stats.files_quarantined,
    }


def ingest(folder: str, gigabytes: str) -> dict[str, float]:
    """Append batches until so many gigabytes of values are written and sealed."""
    given = [table() for _ in range(_TABLES)]
    batches = max(1, round(float(gigabytes) * 1e9 / (BATCH * RECORD_BYTES)))
    with lakebed.open(folder, settings(_MEMTABLE_BYTES, 1 * GIB)) as log:
        log.create_topic(TOPIC, partitions=4)
        started = time.perf_counter()
        for number in range(batches):
            log.append_batch(TOPIC, given[number % _TABLES])
        log.checkpoint()
        took = time.perf_counter() - started
        stats = log.stats()
    assert stats.records_written == batches * BATCH, stats
    return {
        "peak_mib": memory_mib("VmHWM"),
        "mb_per_second": batches * BATCH * RECORD_BYTES / took / 1e6,
        "waited": stats.throttled_ms / 1000 / took,
        "checkpoints": stats.checkpoints,
    }


def scan(folder: str) -> dict[str, float]:
    """Scan the table of a topic."""
    with lakebed.open(folder, settings()) as log:
        started = time.perf_counter()
        count = sum(batch.num_rows for batch in log.table(TOPIC).scan())
        took = time.perf_counter() - started
        assert count == sum(end - low for low, end in log.offsets(TOPIC).values())
    return {"peak_mib": memory_mib("VmHWM"), "seconds": took}


_WORK: dict[str, Callable[..., dict[str, float]]] = {
    "open": open_log,
    "ingest": ingest,
    "scan": scan,
}


if __name__ == "__main__":
    print(json.dumps(_WORK[sys.argv[1]](*sys.argv[2:])))
