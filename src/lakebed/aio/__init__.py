"""The asyncio twin of the log: the same methods, types and errors, all of them awaited.

    async with lakebed.aio.open("data") as log:  # or "lakebed://127.0.0.1:4747"
        await log.append("orders", b"...")

Nothing blocks the event loop. Appends of many tasks are gathered into few entries. A task that
waits for records, or for room to write, holds no thread, except for a waiting `read` or `poll` of a
served log. A log belongs to the event loop in which it was opened.

`open`, `consumer`, `producer` and `transaction` return an object to be awaited, or to be entered
with `async with`. A cancelled call may still take effect: a cancelled append may be written, a
cancelled commit may have happened. Records of a cancelled `read` or `poll` are returned by the next
call.
"""

from lakebed.aio.access import AsyncAccess
from lakebed.aio.consumer import AsyncConsumer
from lakebed.aio.derived import AsyncDerived
from lakebed.aio.lake import AsyncLake
from lakebed.aio.log import AsyncLog, open  # noqa: A004  # as lakebed.open
from lakebed.aio.opening import Opening
from lakebed.aio.producer import AsyncProducer
from lakebed.aio.table import AsyncTable
from lakebed.aio.transaction import AsyncTransaction

__all__ = [
    "AsyncAccess",
    "AsyncConsumer",
    "AsyncDerived",
    "AsyncLake",
    "AsyncLog",
    "AsyncProducer",
    "AsyncTable",
    "AsyncTransaction",
    "Opening",
    "open",
]
