"""Tokens, rules and grants of a log, awaited."""

from __future__ import annotations

from collections.abc import Callable

from lakebed.aio._stubs import AsyncAccessStub
from lakebed.api.parts import AccessApi
from lakebed.bridge.threads import Threads


class AsyncAccess(AsyncAccessStub):
    """The tokens, rules and grants of a log. Any task; see `Access`."""

    def __init__(self, access: AccessApi, threads: Threads, check_open: Callable[[], None]) -> None:
        super().__init__(threads, check_open)
        self._access = access
