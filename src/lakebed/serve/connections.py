"""The TCP connections of the Flight port, watched from outside of gRPC.

gRPC reads a request of up to 2 GiB before any code of the server runs, and pyarrow cannot set a
smaller limit. So a thread looks at the sockets of this process: the kernel counts the bytes that
each has received. A connection is *known* once one of its calls was authenticated. One that is not
known may send few bytes and stay for a short time; a known one may send what its open streams may,
beyond what has reached the server. A connection beyond a limit is shut down: gRPC then ends its
calls and frees what it holds. docs/decisions/025 has why, and what it costs.

Between two looks a connection can send more than its limit. What gRPC itself unpacks (compressed
messages) is not seen here: the memory limit of the service is what bounds that.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from lakebed import limits
from lakebed.config import ServeConfig
from lakebed.operations.description import MESSAGE_BYTES_MAX
from lakebed.serve.sockets import Sockets

_log = logging.getLogger("lakebed.serve")

_LOOK_SECONDS: Final = 0.05
_SOON_SECONDS: Final = 0.01
"""How soon to look again while a connection is not known: each may send what it likes until then,
which takes the processor and memory from others."""
_SHARE: Final = 0.05
"""The most of one processor that looking may take: with many connections it looks less often."""
_WINDOW_BYTES: Final = 16 * limits.MIB
"""What HTTP/2's flow control lets a client send ahead on one stream, at most."""
_CALLS_BYTES: Final = 4 * MESSAGE_BYTES_MAX
"""Room for calls that arrive at the same time on a known connection."""
_UNKNOWN_TIMES: Final = 8
"""All connections that are not known may send so many times what one of them may."""
_SPARE_FDS: Final = 200
"""File descriptors that connections leave to the log, out of those that the process may open."""
_LINES_SECONDS: Final = 1.0


class _Connection:
    """What is known about a connection."""

    __slots__ = ("base", "fd", "known", "received", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.known = False
        self.base = 0
        """Bytes received when something of it last reached the server."""
        self.received = 0
        self.fd = -1


class Connections:
    """Watches the connections of one port and ends those beyond a limit. Any thread."""

    def __init__(
        self,
        config: ServeConfig,
        *,
        asks_for_token: Callable[[], bool],
        count_cut: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._asks_for_token = asks_for_token
        """Whether a caller needs a token: otherwise nothing is to be waited for."""
        self._count_cut = count_cut
        self._clock = clock
        self._all: dict[str, _Connection] = {}
        self._heard: set[str] = set()
        self._streams: Counter[str] = Counter()
        self._wanted: dict[str, str] = {}
        self._guard = threading.Lock()
        self._told_at: dict[str, float] = {}
        self._untold: Counter[str] = Counter()

    # Called by the server

    def note_heard(self, peer: str) -> None:
        """Note that something of an authenticated caller has reached the server."""
        self._heard.add(peer)

    @contextlib.contextmanager
    def stream(self, peer: str) -> Iterator[None]:
        """Note that a put stream is open within the block."""
        with self._guard:
            self._streams[peer] += 1
        try:
            yield
        finally:
            with self._guard:
                self._streams[peer] -= 1
                if self._streams[peer] <= 0:
                    del self._streams[peer]

    def cut(self, peer: str, reason: str) -> None:
        """Have the connection of a peer shut down at the next look."""
        with self._guard:
            self._wanted[peer] = reason

    def watch(self, sockets: Sockets, ended: threading.Event) -> None:
        """Look at the connections again and again, until `ended`."""
        pause = _LOOK_SECONDS
        while not ended.wait(pause):
            begun = time.thread_time()
            try:
                self.look(sockets)
            except Exception:  # a defect, which must not end the watch
                _log.exception("a defect: connections could not be looked at")
                ended.wait(1.0)
            all_known = all(connection.known for connection in self._all.values())
            least = _LOOK_SECONDS if all_known else _SOON_SECONDS
            pause = max(least, (time.thread_time() - begun) / _SHARE)

    def look(self, sockets: Sockets) -> int:
        """Look at the connections once; return how many were shut down."""
        now = self._clock()
        seen = {socket_seen.peer: socket_seen for socket_seen in sockets.look()}
        heard, self._heard = self._heard, set()  # after the look: what came before it counts
        for gone in self._all.keys() - seen.keys():
            del self._all[gone]
        for peer, socket_seen in seen.items():
            connection = self._all.get(peer)
            if connection is None:
                connection = self._all[peer] = _Connection(now)
            connection.received, connection.fd = socket_seen.received, socket_seen.fd
            if peer in heard:
                connection.known, connection.base = True, socket_seen.received
        count = 0
        for peer, reason in self._offences(now).items():
            if sockets.shut_down(seen[peer]):
                count += 1
                self._tell(peer, reason)
        return count

    # What is too much

    def _offences(self, now: float) -> dict[str, str]:
        """Return the connections to be shut down, and why."""
        with self._guard:
            wanted, self._wanted = self._wanted, {}
        reasons = {peer: reason for peer, reason in wanted.items() if peer in self._all}
        asks, config = self._asks_for_token(), self._config
        patience = config.flight_unauthenticated_ms / 1000
        unknown: dict[str, int] = {}
        for peer, connection in self._all.items():
            if peer in reasons:
                continue
            if not connection.known and now - connection.since > patience:
                reasons[peer] = "no call was authenticated in time"
            elif not connection.known and asks:
                unknown[peer] = connection.received
                if connection.received > config.flight_unauthenticated_bytes_max:
                    reasons[peer] = "too many bytes before a call was authenticated"
            elif connection.received - connection.base > self._limit_of(peer):
                reasons[peer] = "a request is too large"
        self._shed(unknown, reasons)
        self._shed_crowds(reasons)
        return reasons

    def _limit_of(self, peer: str) -> int:
        """Return how many bytes may be received of a connection that did not reach the server."""
        per_stream = self._config.request_bytes_max + _WINDOW_BYTES
        return _CALLS_BYTES + per_stream * (1 + self._streams.get(peer, 0))

    def _shed(self, unknown: dict[str, int], reasons: dict[str, str]) -> None:
        """Add the largest of those that are not known, until all of them are within their limit."""
        total = sum(size for peer, size in unknown.items() if peer not in reasons)
        most = _UNKNOWN_TIMES * self._config.flight_unauthenticated_bytes_max
        for peer in sorted(unknown, key=unknown.__getitem__, reverse=True):
            if total <= most:
                return
            if peer not in reasons:
                reasons[peer] = "too many bytes of connections before a call was authenticated"
                total -= unknown[peer]

    def _shed_crowds(self, reasons: dict[str, str]) -> None:
        """Add the newest connections beyond the limits, those that are not known first."""
        config = self._config
        most = min(config.flight_connections_max, max(16, _fds_max() - _SPARE_FDS))
        addresses: Counter[str] = Counter()
        kept = 0
        oldest_first = sorted(
            (peer for peer in self._all if peer not in reasons),
            key=lambda peer: (not self._all[peer].known, self._all[peer].since),
        )
        for peer in oldest_first:
            address = host_of(peer)
            if kept >= most:
                reasons[peer] = "too many connections"
            elif addresses[address] >= config.flight_address_connections_max:
                reasons[peer] = "too many connections of one address"
            else:
                kept += 1
                addresses[address] += 1

    def _tell(self, peer: str, reason: str) -> None:
        """Count a connection that was shut down; log it, at most once a second for each reason."""
        self._count_cut(reason)
        now = self._clock()
        if now - self._told_at.get(reason, -_LINES_SECONDS) < _LINES_SECONDS:
            self._untold[reason] += 1
            return
        self._told_at[reason] = now
        more = self._untold.pop(reason, 0)
        _log.warning(
            "a connection was closed: reason=%s more=%d", reason, more, extra={"peer": peer}
        )


def host_of(peer: str) -> str:
    """Return a peer without its port, which a caller can change at will."""
    host, colon, port = peer.rpartition(":")
    return host if colon and port.isdigit() else peer


def _fds_max() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 30 if most == resource.RLIM_INFINITY else most
