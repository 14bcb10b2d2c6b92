"""A member of a consumer group in a process of its own, which tells what it does.

python -m tests.serve.group_member URL GROUP MODE SESSION_MS

Each line is JSON: [MONOTONIC SECONDS, WHAT, ...]. `assign` and `revoke` have the partitions, `done`
the values that were processed, before they are committed; in mode `copy` they are written to the
topic `copies` instead, in one transaction with the offsets. A member that was fenced says so and
joins again.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import lakebed
from lakebed.client.config import ClientConfig
from lakebed.errors import FencedError, LakebedError

Partitions = list[lakebed.TopicPartition]


def tell(what: str, *rest: Any) -> None:
    """Report in one write, which a kill cannot cut."""
    os.write(1, (json.dumps([time.monotonic(), what, *rest]) + "\n").encode())


def _callback(what: str) -> Callable[[Partitions], None]:
    return lambda places: tell(what, [place.partition for place in places])


def copy(log: lakebed.Log, consumer: lakebed.Consumer, values: list[str]) -> None:
    """Write what was read, with the offsets, all or nothing."""
    with log.transaction() as transaction:
        for value in values:
            transaction.append("copies", value.encode())
        transaction.commit_offsets(consumer)


def member(log: lakebed.Log, group: str, mode: str, session_ms: int) -> None:
    """Be a member until it is fenced."""
    consumer = log.consumer(
        group,
        ["events"],
        max_records=7,
        session_timeout_ms=session_ms,
        on_assign=_callback("assign"),
        on_revoke=_callback("revoke"),
    )
    tell("joined", consumer.member)
    while True:
        values = [value.decode() for value in consumer.poll(100).column("value").to_pylist()]
        if values and mode == "copy":
            copy(log, consumer, values)
        elif values:
            tell("done", values)
            consumer.commit()


def main() -> None:
    """Join, work, and join again when fenced."""
    url, group, mode, session_ms = sys.argv[1:]
    log = lakebed.open(url, ClientConfig(retry_ms=60_000))
    while True:
        try:
            member(log, group, mode, int(session_ms))
        except FencedError:
            tell("fenced")
        except LakebedError as error:  # of a transaction whose consumer was fenced
            tell("failed", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
