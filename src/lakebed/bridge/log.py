"""What an event loop does with an embedded log without holding a thread: wait for records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lakebed.bridge.completions import AsyncEvent

if TYPE_CHECKING:
    import pyarrow as pa

    from lakebed.api.reads import Bounds
    from lakebed.engine.core import Key
    from lakebed.engine.log import EmbeddedLog
    from lakebed.engine.reading import Reading

Run = Callable[..., Awaitable[Any]]
"""Runs a call in a thread."""


async def read(
    log: EmbeddedLog,
    run: Run,
    topic: str,
    partition: int,
    offset: int | str,
    bounds: Bounds,
    columns: Sequence[str] | None,
    seconds: float | None,
) -> pa.Table:
    """Return records from `offset` on; at the end of the partition wait for one.

    It waits for at most `seconds` (None: forever), and holds no thread while it does.
    """
    log._check_open()
    read_now = partial(log._read_now, topic, partition)
    table, wanted = await run(read_now, offset, bounds, columns)
    if table.num_rows or seconds == 0 or not await _arrival(log.parts.reading, wanted, seconds):
        return table
    following = next(iter(wanted.values()))
    table, _ = await run(read_now, following, bounds, columns)
    return table


async def _arrival(reading: Reading, wanted: dict[Key, int], seconds: float | None) -> bool:
    """Wait until a partition has a record at its wanted offset; return False at the time limit."""
    arrived = AsyncEvent(asyncio.get_running_loop())
    deadline = None if seconds is None else time.monotonic() + seconds
    stop = reading.watch(wanted, arrived.set)
    try:
        while not reading.ready(wanted):
            left = None if deadline is None else deadline - time.monotonic()
            if not await arrived.wait(left):
                return False
            arrived.clear()
        return True
    finally:
        stop()


def must_wait(log: EmbeddedLog) -> bool:
    """Return whether a write would block or fail: for memory, for the queue, for a broken log."""
    return log.parts.admission.must_wait()
