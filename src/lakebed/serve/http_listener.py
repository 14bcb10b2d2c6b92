"""Accepting HTTP connections: counted before anything is read, and slower when resources are short.

asyncio's own server counts nothing before the TLS handshake has ended, gives it 60 seconds, and
logs each of up to `backlog` failures of `accept` when no file descriptor is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from lakebed.serve.http_connections import HttpConnections, Seat
from lakebed.serve.meters import Meters
from lakebed.serve.refusals import tell_connections

_ACCEPTS_MAX: Final = 128
"""Connections that are accepted before those that are open get a turn."""
_RETRY_SECONDS: Final = 1.0
"""How long to accept nothing after `accept` has failed."""
_RETRY_WITH_ROOM_SECONDS: Final = 0.05
"""The same if an idle connection was closed to have its file descriptor."""


class Listener:
    """Accepts the connections of a listening socket. To be used in the event loop."""

    def __init__(
        self,
        *,
        listener: socket.socket,
        make: Callable[[Seat], asyncio.Protocol],
        connections: HttpConnections,
        meters: Meters,
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
    ) -> None:
        self._listener = listener
        self._make = make
        self._connections = connections
        self._meters = meters
        self._tls: dict[str, Any] = {}
        if tls is not None:
            self._tls = {"ssl": tls, "ssl_handshake_timeout": handshake_seconds}
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Accept connections until `close`."""
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no further connections, and end those that are in their handshake."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener.fileno())
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until handshakes have ended."""
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _resume(self) -> None:
        self._retry = None
        if not self._closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._begin(connection, address[0])

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment: no descriptor or no memory is left."""
        self._loop.remove_reader(self._listener.fileno())
        has_room = self._connections.evict_idle()
        delay = _RETRY_WITH_ROOM_SECONDS if has_room else _RETRY_SECONDS
        self._retry = self._loop.call_later(delay, self._resume)
        self._meters.http_event("accept_failed")
        tell_connections("HTTP connections cannot be accepted", why=error.strerror or str(error))

    def _begin(self, connection: socket.socket, address: str) -> None:
        seat = self._connections.admit(address)
        if seat is None:
            connection.close()
            tell_connections("an HTTP connection was refused: there are too many", peer=address)
            return
        task = self._loop.create_task(self._connect(connection, seat))
        self._beginning.add(task)
        task.add_done_callback(partial(self._note_begun, connection))
        seat.prepare(lambda: _cancel(task), handshake=bool(self._tls))

    def _note_begun(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        if task.cancelled():  # before it ran: no transport closes the socket
            connection.close()

    async def _connect(self, connection: socket.socket, seat: Seat) -> None:
        """Hand a connection over to its protocol, after the handshake if it has TLS."""
        begun = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make(seat), connection, **self._tls
            )
            begun = True
        except (OSError, asyncio.CancelledError):  # also those of OpenSSL
            self._meters.http_event("handshake_failed")
        finally:
            if not begun:
                seat.release()
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
