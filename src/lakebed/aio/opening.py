"""Things that are opened and closed with `async with`."""

from __future__ import annotations

import abc
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar


class AsyncClosing(abc.ABC):
    """Something that is closed at the end of an `async with` block."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Close it; a second call does nothing."""

    async def __aenter__(self) -> Self:
        """Return it."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()


Opened = TypeVar("Opened", bound=AsyncClosing)


class Opening(Generic[Opened]):
    """Something that is being opened: await it, or enter it with `async with`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Opened]) -> None:
        self._coroutine = coroutine
        self._opened: Opened | None = None

    def __await__(self) -> Generator[Any, Any, Opened]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Opened:
        opened = self._opened = await self._coroutine
        return await opened.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._opened is None:
            raise AssertionError("it was not entered")
        await self._opened.__aexit__(kind, error, traceback)
