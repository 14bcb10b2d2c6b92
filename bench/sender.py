"""Sends records one at a time, each with the time in it, from a process of its own.

    python -m bench.sender KIND WHERE COUNT PAUSE_MS

The time is `time.monotonic_ns`, which is the same for every process of a machine.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import lakebed
from bench.logs import TOPIC
from bench.peers import RECORD_BYTES

Send = Callable[[bytes], object]


def _lakebed(url: str) -> Send:
    log = lakebed.open(url)
    return lambda record: log.append(TOPIC, record)


def _redis(port: str) -> Send:
    import redis

    client = redis.Redis(port=int(port))
    return lambda record: client.xadd("log", {"v": record})


def _nats(port: str) -> Send:
    import nats

    loop = asyncio.Runner()
    client: Any = loop.run(nats.connect(f"nats://127.0.0.1:{port}"))
    stream = client.jetstream(timeout=60)
    return lambda record: loop.run(stream.publish("log", record))


_KINDS: dict[str, Callable[[str], Send]] = {"lakebed": _lakebed, "redis": _redis, "nats": _nats}


def main(kind: str, where: str, count: str, pause_ms: str) -> None:
    """Send so many records."""
    send = _KINDS[kind](where)
    for _ in range(int(count)):
        send((b"%020d" % time.monotonic_ns()).ljust(RECORD_BYTES))
        time.sleep(int(pause_ms) / 1000)


if __name__ == "__main__":
    main(*sys.argv[1:])
