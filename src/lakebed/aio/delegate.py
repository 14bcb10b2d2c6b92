"""What the asyncio classes have in common: the threads that their methods run in."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lakebed.bridge.threads import Threads

P = ParamSpec("P")
Result = TypeVar("Result")


def _always_open() -> None:
    pass


class Delegate:
    """Runs methods of a log, or of a part of it, in threads. Any task."""

    def __init__(self, threads: Threads, check_open: Callable[[], None] = _always_open) -> None:
        self._threads = threads
        self._check_log_open = check_open
        """Raises `ClosedError` when the log is closed."""

    async def _run(self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        self._check_log_open()
        return await self._threads.run(call, *args, **kwargs)

    async def _run_slowly(
        self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        self._check_log_open()
        return await self._threads.run_slowly(call, *args, **kwargs)
