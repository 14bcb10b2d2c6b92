"""The writer: a separate process that appends to the log and reports what was acknowledged.

It opens the log itself, so killing it kills the owner of the log. Restarted, it looks up how much
of its work is in the log and continues after it. It reports lines on stdout, each a word and
numbers: `opened`, `ack` and `stats`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

import lakebed
from lakebed.demo.orders import change, checkout_of

TOPIC: Final = "orders"
AT_ONCE: Final = 25
"""Changes in one batch of a thread."""
_STATS_SECONDS: Final = 0.1


class WriterReport:
    """Writes lines to the parent process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, word: str, *numbers: int) -> None:
        """Write a line at once: it may be the last."""
        with self._lock:
            sys.stdout.write(" ".join([word, *map(str, numbers)]) + "\n")
            sys.stdout.flush()


def sell(folder: str, checkouts: int, changes: int) -> None:
    """Write all changes of all checkouts that are not in the log yet."""
    tell, begun = WriterReport(), time.monotonic_ns()
    with lakebed.open(folder) as log:
        took = time.monotonic_ns() - begun
        tell("opened", time.monotonic_ns(), took, log.stats().replayed_entries)
        done = count_written(log)
        over = threading.Event()
        watching = threading.Thread(target=_watch, args=(log, tell, over))
        watching.start()
        try:
            with ThreadPoolExecutor(checkouts) as pool:
                work = [
                    pool.submit(_check_out, log, tell, checkout, done[checkout], changes)
                    for checkout in range(checkouts)
                ]
                for task in work:
                    task.result()
        finally:
            over.set()
            watching.join()


def count_written(log: lakebed.Log) -> Counter[int]:
    """Count the changes of each checkout that are in the log.

    A batch is there as a whole or not at all, so what is there of a checkout is its first changes.
    """
    counts = Counter[int]()
    for batch in log.table(TOPIC).scan(["key"]):
        counts.update(map(checkout_of, map(int, batch["key"].to_pylist())))
    return counts


def _check_out(log: lakebed.Log, tell: WriterReport, checkout: int, first: int, end: int) -> None:
    for start in range(first, end, AT_ONCE):
        changes = [change(checkout, index) for index in range(start, min(end, start + AT_ONCE))]
        rows = pa.table(
            {
                "key": pa.array([b"%d" % change.id for change in changes], pa.binary()),
                "value": pa.array([change.value for change in changes], pa.binary()),
            }
        )
        begun = time.monotonic_ns()
        log.append_batch(TOPIC, rows)  # returns when it is on disk
        now = time.monotonic_ns()
        tell("ack", checkout, start, len(changes), now, now - begun)


def _watch(log: lakebed.Log, tell: WriterReport, over: threading.Event) -> None:
    """Report now and then how many entries and syncs there were."""
    ended = False
    while not ended:
        ended = over.wait(_STATS_SECONDS)
        counters = log.stats().wal.counters
        tell("stats", time.monotonic_ns(), counters.appends, counters.syncs, counters.bytes)


if __name__ == "__main__":
    sell(sys.argv[1], *map(int, sys.argv[2:]))
