"""Derived tables of a log, awaited."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakebed.aio._stubs import AsyncDerivedStub
from lakebed.api.parts import DerivedApi
from lakebed.bridge.threads import Threads


class AsyncDerived(AsyncDerivedStub):
    """The derived tables of a log. Any task; see `Derived`."""

    def __init__(
        self, derived: DerivedApi, threads: Threads, check_open: Callable[[], None]
    ) -> None:
        super().__init__(threads, check_open)
        self._derived = derived

    @property
    def store_options(self) -> Mapping[str, str]:
        """How writers of files reach the object store, under pyiceberg's names."""
        return self._derived.store_options

    async def place(self, name: str) -> str:
        """Return a new URL below which the files of one attempt are written."""
        return await self._run_slowly(self._derived.place, name)

    async def iceberg(self, name: str) -> Any:
        """Return the pyiceberg table. Its methods block: call them in a thread."""
        return await self._run_slowly(self._derived.iceberg, name)
