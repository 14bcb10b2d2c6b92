"""Connections of the HTTP server: how long one may say nothing or take nothing, and whose it is."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from lakebed.serve.certificates import name_of_certificate
from lakebed.serve.http_errors import HEADERS, Refused, refusal
from lakebed.serve.http_stalls import BUFFER_BYTES, StallWatch
from lakebed.serve.refusals import OncePerSecond, tell_connections

if TYPE_CHECKING:
    from lakebed.serve.http_connections import Seat
    from lakebed.serve.meters import Meters

_HEAD_SECONDS: Final = 30.0
"""How long the head of a request may take, from the connection or the last answer on."""

_logger: Final = logging.getLogger("lakebed.serve.http")
_logger.setLevel(logging.WARNING)  # uvicorn has a line for each connection otherwise
_logger.addFilter(OncePerSecond())


class HttpConnection(H11Protocol):
    """A connection that is closed if nothing comes, or nothing is taken."""

    meters: Meters
    stall_seconds: float
    """Both set in a subclass for each server."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        seat: Seat,
    ) -> None:
        super().__init__(config, server_state, app_state, asyncio.get_running_loop())
        self.logger = _logger
        self._seat = seat
        self._watch: StallWatch
        self._deadline: asyncio.TimerHandle | None = None
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(BUFFER_BYTES)
        self._watch = StallWatch(transport, self.stall_seconds, self._on_stall)
        self.app_state = {
            **self.app_state,
            "certificate": _name_of_certificate(transport),
            "connection": self,
            "seat": self._seat,
        }
        self._seat.begin(transport.abort)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take what came, and see whether it is a whole head."""
        super().data_received(data)
        if self._upgraded:
            return  # it is somebody else's connection now
        if self.cycle is not None and not self.cycle.response_complete:
            self._seat.busy()
            self._head_came()
        elif self._deadline is None:
            self._expect_head()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection over."""
        self._upgraded = True
        self._head_came()
        self._watch.end()
        self._seat.busy()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Wait for the next request, which may have come already."""
        super().on_response_complete()
        if self._upgraded:
            return
        if self.transport.get_write_buffer_size():
            self._watch.begin()
        if self.cycle.response_complete:
            self._seat.idle()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless an answer has begun; the request under way is dropped."""
        self.meters.http_event("bad_request")
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = refusal(Refused(400, msg, headers={**HEADERS, "Connection": "close"}))
            event = h11.Response(status_code=400, headers=answer.raw_headers, reason=b"Bad Request")
            self.transport.write(self.conn.send(event) or b"")
            self.transport.write(self.conn.send(h11.Data(data=bytes(answer.body))) or b"")
            self.conn.send(h11.EndOfMessage())
        self.transport.close()

    def pause_writing(self) -> None:
        """Watch a client that does not take what is sent."""
        super().pause_writing()
        self._watch.begin()

    def resume_writing(self) -> None:
        """Continue with a client that has taken what was sent."""
        super().resume_writing()
        self._watch.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._head_came()
        self._watch.end()
        self._seat.release()
        self.app_state = {}  # it names this connection
        super().connection_lost(exc)

    @property
    def gone(self) -> bool:
        """Whether the client does not get the rest of its answer any more."""
        return self.cycle is None or bool(self.cycle.disconnected)

    async def drain(self) -> None:
        """Wait until what was sent is out, but for `BUFFER_BYTES`, or the connection has ended."""
        if self.flow.write_paused:
            await self.flow.drain()

    def _on_stall(self) -> None:
        end_stalled(self.transport, self.meters, self.client, self.stall_seconds)

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


def end_stalled(
    transport: asyncio.Transport, meters: Meters, client: object, seconds: float
) -> None:
    """Close a connection whose client takes nothing; count and log it."""
    meters.http_event("client_stalled")
    peer = f"{client[0]}:{client[1]}" if isinstance(client, tuple) else ""
    tell_connections(
        "a client does not read its answer: its connection is closed", peer=peer, seconds=seconds
    )
    transport.abort()


def report_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the event loop could not hand to a caller; one line a second."""
    _logger.error("%s", context["message"], exc_info=context.get("exception"))


def _name_of_certificate(transport: asyncio.Transport) -> str:
    """Return whose a client's certificate is, as Flight does it; empty if it has shown none."""
    return name_of_certificate(transport.get_extra_info("peercert") or {})
