"""Connections of the HTTP server: how many there may be, how long one may say nothing, whose."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from lakebed.serve.certificates import certified_name

_HEAD_SECONDS: Final = 30.0
"""How long the head of a request may take, from the connection or the last answer on."""


class Connection(H11Protocol):
    """A connection that is closed if nothing comes, or if there are too many."""

    connections_max: int
    """Set in a class of its own for each server."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadline: asyncio.TimerHandle | None = None
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or refuse to."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.abort()
            return
        self.app_state = {**self.app_state, "certificate": _certified_name(transport)}
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take what came, and see whether it is a whole head."""
        super().data_received(data)
        if self._upgraded:
            return  # it is somebody else's connection now
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_came()
        elif self._deadline is None:
            self._expect_head()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection over."""
        self._upgraded = True
        self._head_came()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._head_came()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._deadline = self.loop.call_later(_HEAD_SECONDS, self._give_up)

    def _head_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def _certified_name(transport: asyncio.Transport) -> str:
    """Return whose a client's certificate is, as Flight does it; empty if it has shown none."""
    return certified_name(transport.get_extra_info("peercert") or {})
