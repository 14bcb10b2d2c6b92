"""Open connections of the HTTP port: how many there may be, and which one makes room for another.

A connection is *busy* while a request of it is served or it is a WebSocket, and *idle* otherwise,
also before its first request. At the limit of all connections, or of one address, the longest idle
one is closed for the next: first one without a caller that was authenticated, then any. HTTP
clients have to expect that an idle connection is closed.

If every connection is busy, a few more are accepted for one request each, of a health probe or of
an administrator (`Seat.spare`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lakebed import limits

if TYPE_CHECKING:
    from lakebed.config import ServeConfig
    from lakebed.serve.meters import Meters

EVICTED: Final = "connection_evicted"
REFUSED: Final = "connection_refused"


class Seat:
    """The place of one connection. To be used in the event loop of its server."""

    __slots__ = ("_close", "_connections", "_pool", "address", "known", "spare")

    def __init__(self, connections: HttpConnections, address: str, *, spare: bool) -> None:
        self.address = address
        self.spare = spare
        """Whether it is beyond the limit, and serves health probes and administrators alone."""
        self.known = False
        """Whether a caller of this connection was authenticated."""
        self._connections = connections
        self._pool: dict[Seat, None] | None = None
        """Those among which it may be closed for another one; None while it is busy."""
        self._close: Callable[[], None] = _nothing

    def prepare(self, close: Callable[[], None], *, handshake: bool) -> None:
        """Wait for the protocol, after the TLS handshake; `close` ends the connection at once."""
        self._close = close
        self.idle()
        if handshake:
            self._connections.begin_handshake(self)

    def begin(self, close: Callable[[], None]) -> None:
        """Wait for requests; `close` ends the connection at once."""
        self._connections.handshakes.pop(self, None)
        self._close = close
        self.idle()

    def busy(self) -> None:
        """Serve a request: the connection is not closed for another one."""
        if self._pool is not None:
            self._move(None)

    def idle(self) -> None:
        """Wait for the next request."""
        connections = self._connections
        if self.spare:
            self._move(connections.idle_spare)
        else:
            self._move(connections.idle_known if self.known else connections.idle_unknown)

    def release(self) -> None:
        """Leave; a second call does nothing."""
        self._move(None)
        self._connections.leave(self)

    def close(self) -> None:
        """End the connection at once."""
        self._close()

    def _move(self, pool: dict[Seat, None] | None) -> None:
        if self._pool is not None:
            self._pool.pop(self, None)
        if pool is not None and self in self._connections.seats:
            pool[self] = None
        self._pool = pool


def _nothing() -> None:
    pass


class HttpConnections:
    """The connections of one server. To be used in its event loop."""

    def __init__(self, config: ServeConfig, meters: Meters) -> None:
        self._most = config.connections_max
        self._address_most = config.http_address_connections_max
        self._meters = meters
        self._addresses: dict[str, int] = {}
        """Connections of each address, those that are spare not counted."""
        self._spares = 0
        self.seats: set[Seat] = set()
        # Each in the order in which they became idle.
        self.handshakes: dict[Seat, None] = {}
        self.idle_unknown: dict[Seat, None] = {}
        self.idle_known: dict[Seat, None] = {}
        self.idle_spare: dict[Seat, None] = {}

    def admit(self, address: str) -> Seat | None:
        """Return the place for a new connection; None if there is none."""
        spare = not self._make_room(address)
        if spare and not self._make_spare_room():
            self._meters.http_event(REFUSED)
            return None
        seat = Seat(self, address, spare=spare)
        self.seats.add(seat)
        if spare:
            self._spares += 1
        else:
            self._addresses[address] = self._addresses.get(address, 0) + 1
        return seat

    def leave(self, seat: Seat) -> None:
        """Take a connection that has ended out of the count."""
        if seat not in self.seats:
            return
        self.seats.discard(seat)
        self.handshakes.pop(seat, None)
        if seat.spare:
            self._spares -= 1
            return
        left = self._addresses.pop(seat.address) - 1
        if left:
            self._addresses[seat.address] = left

    def evict_idle(self, address: str | None = None) -> bool:
        """Close the longest idle connection, of any or one address; return False if none is."""
        for pool in (self.idle_unknown, self.idle_known):
            for seat in pool:
                if address in (None, seat.address):
                    self._evict(seat)
                    return True
        return False

    def begin_handshake(self, seat: Seat) -> None:
        """Count a TLS handshake; the oldest one makes room if there are too many."""
        self.handshakes[seat] = None
        if len(self.handshakes) > limits.HTTP_HANDSHAKES_MAX:
            self._evict(next(iter(self.handshakes)))

    def _evict(self, seat: Seat) -> None:
        self._meters.http_event(EVICTED)
        seat.release()
        seat.close()

    def _make_room(self, address: str) -> bool:
        if self._addresses.get(address, 0) >= self._address_most:
            return self.evict_idle(address)
        return len(self.seats) - self._spares < self._most or self.evict_idle()

    def _make_spare_room(self) -> bool:
        if self._spares < limits.HTTP_RESERVE:
            return True
        for seat in self.idle_spare:
            self._evict(seat)
            return True
        return False
