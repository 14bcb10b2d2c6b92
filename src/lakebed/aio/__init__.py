"""The asyncio twin of the log: the same methods, types and errors, all of them awaited.

    async with lakebed.aio.open("data") as log:  # or "lakebed://127.0.0.1:4747"
        await log.append("orders", b"...")

Nothing here blocks the event loop. Appends of thousands of tasks gather into few entries without a
thread for any of them. A task that waits for records, or for room to write, holds no thread either.
What reads files or writes single commands runs in a few threads of the log. Of a served log, a
`read` or `poll` that waits has a thread of its own for that time.

`open`, `consumer`, `producer` and `transaction` give something to be awaited, or to be entered with
`async with`. A call that is cancelled may still take effect: a cancelled append may be written, a
cancelled commit may have happened. Records that a cancelled `read` or `poll` was about to give are
not lost: the next call gives them. A log belongs to the event loop it was opened in.
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
