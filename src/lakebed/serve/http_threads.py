"""Between the event loop of HTTP and a log whose calls block: threads, and waiting without one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakebed.errors import ServerUnavailableError

if TYPE_CHECKING:
    import pyarrow as pa

    from lakebed.api.acks import Acks
    from lakebed.api.reads import Bounds
    from lakebed.engine.core import Key
    from lakebed.engine.log import EmbeddedLog as Log

_THREADS: Final = 8
_WRITING_THREADS: Final = 8
"""For calls that wait when memory is short, so that these hold up nobody who reads."""

Result = TypeVar("Result")


class HttpThreads:
    """A log for the tasks of one event loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._threads = ThreadPoolExecutor(_THREADS, "lakebed-gateway")
        self._writing = ThreadPoolExecutor(_WRITING_THREADS, "lakebed-gateway-writing")

    async def run(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call something that reads or changes the log, in a thread."""
        return await _run(self._threads, call, *args)

    async def write(self, call: Callable[..., Result], *args: Any) -> Result:
        """Call something that writes records, in a thread."""
        return await _run(self._writing, call, *args)

    async def append_batch(self, topic: str, rows: list[Any], partition: int | None) -> Acks:
        """Append rows; no thread is held while the disk works."""
        append = self._log._writing.append_batch_async
        return await asyncio.wrap_future(await self.write(append, topic, rows, partition))

    async def read(
        self, topic: str, partition: int, offset: int, bounds: Bounds, seconds: float
    ) -> pa.Table:
        """Read records; if there are none, wait so long for one, without a thread."""
        self._log._check_open()
        read = partial(self._log._read_now, topic, partition)
        table, wanted = await self.run(read, offset, bounds, None)
        if table.num_rows or not seconds or not await self._arrival(wanted, seconds):
            return table
        following = next(iter(wanted.values()))
        table, _ = await self.run(read, following, bounds, None)
        return table

    async def _arrival(self, wanted: dict[Key, int], seconds: float) -> bool:
        """Wait until a partition has a record at the offset named; False if none came in time."""
        loop, arrived, reading = asyncio.get_running_loop(), asyncio.Event(), self._log._reading

        def ring() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(arrived.set)

        stop = reading.watch(wanted, ring)
        try:
            async with asyncio.timeout(seconds):
                while not reading.ready(wanted):
                    await arrived.wait()
                    arrived.clear()
        except TimeoutError:
            return False
        finally:
            stop()
        return True

    def close(self) -> None:
        """Take no further calls; those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._writing.shutdown(wait=False, cancel_futures=True)


async def _run(pool: ThreadPoolExecutor, call: Callable[..., Result], *args: Any) -> Result:
    try:
        future = pool.submit(call, *args)
    except RuntimeError as error:
        raise ServerUnavailableError("the server is stopping") from error
    return await asyncio.wrap_future(future)
