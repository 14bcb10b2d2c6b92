"""Writes batches to a server at a steady rate, from a process of its own.

    python -m bench.background KIND WHERE RECORDS BATCHES_PER_SECOND

It prints `ready` when it is connected, and writes until it is ended.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.compare_logs import OurClient
from bench.logs import values
from bench.rabbit import RabbitClient
from bench.servers import JetClient, RedisClient

_KINDS: dict[str, Callable[[str], Any]] = {
    "lakebed": OurClient,
    "redis": lambda port: RedisClient(int(port)),
    "nats": lambda port: JetClient(int(port)),
    "rabbit-quorum": lambda port: RabbitClient(int(port), "quorum"),
    "rabbit-stream": lambda port: RabbitClient(int(port), "stream"),
}


def write_until(stop: threading.Event, peer: Any, records: int, per_second: float) -> int:
    """Append batches when they are due; return how many there were."""
    given = values(records)
    due, count = time.perf_counter(), 0
    while not stop.wait(max(0.0, due - time.perf_counter())):
        peer.append(given)
        count += 1
        due += 1 / per_second
    return count


def main(kind: str, where: str, records: str, per_second: str) -> None:
    """Write until this process is ended."""
    peer = _KINDS[kind](where)
    print("ready", flush=True)
    write_until(threading.Event(), peer, int(records), float(per_second))


if __name__ == "__main__":
    main(*sys.argv[1:])
