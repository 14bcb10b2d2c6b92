"""How work is put on what is measured: repeated, from many threads, on one core."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def rate(call: Callable[[], object], count: int) -> float:
    """Call so often and give calls per second."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return count / (time.perf_counter() - started)


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def from_threads(call: Callable[[], object], threads: int, duration: float) -> float:
    """Call from so many threads for so many seconds, and give calls per second."""
    counts = [0] * threads
    stop = threading.Event()

    def repeat(slot: int) -> None:
        count = 0
        while not stop.is_set():
            call()
            count += 1
        counts[slot] = count

    workers = [threading.Thread(target=repeat, args=(slot,)) for slot in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    time.sleep(duration)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - started)


def asynchronously(call: Callable[[], Future[Any]], count: int) -> float:
    """Call so often, then wait for every future; give calls per second."""
    started = time.perf_counter()
    futures = [call() for _ in range(count)]
    for future in futures:
        future.result()
    return count / (time.perf_counter() - started)


def pipelined(call: Callable[[], Future[Any]], count: int, under_way: int) -> float:
    """Call so often with at most so many futures under way; give calls per second."""
    futures: deque[Future[Any]] = deque()
    started = time.perf_counter()
    for _ in range(count):
        if len(futures) == under_way:
            futures.popleft().result()
        futures.append(call())
    for future in futures:
        future.result()
    return count / (time.perf_counter() - started)


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process on one core: waking a thread is then no message to another one."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def memory_mib(which: str) -> float:
    """Return this process's memory: `VmRSS`, resident now, or `VmHWM`, the most so far.

    Not `ru_maxrss`: a new process inherits that of the one that started it.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(which + ":"):
            return int(line.split()[1]) / 1024
    raise LookupError(which)
