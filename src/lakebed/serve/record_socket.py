"""Writing by WebSocket: one record a message, one acknowledgement for each, in their order.

    GET /v1/topics/{topic}/writer        Upgrade: websocket, Authorization: Bearer TOKEN

A message is the JSON of a record, as the gateway takes it: `{"value": ..., "key": ...}`. Its answer
comes when it is on disk: `{"partition": 0, "offset": 7}`, or `{"error": {...}}` if it was refused;
the connection goes on then. Several messages may be under way.

This is for many writers that have little to say: thousands of connections are served by one thread,
their records share entries and syncs, and nothing waits in a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from lakebed.api.acks import Ack
from lakebed.bridge.completions import CompletionQueue, Reply
from lakebed.bridge.log import must_wait
from lakebed.errors import InvalidArgumentError, LakebedError, ServerUnavailableError
from lakebed.operations.routes import STREAMS
from lakebed.serve.http_body import parse
from lakebed.serve.http_errors import HEADERS, Refused, body_of, problem, status_of
from lakebed.serve.http_head import head_fault
from lakebed.serve.http_origin import check_origin
from lakebed.serve.http_places import too_many
from lakebed.serve.http_protocol import end_stalled
from lakebed.serve.http_stalls import StallWatch
from lakebed.serve.record_form import RecordReader, check_record
from lakebed.serve.refusals import tell_upgrade

if TYPE_CHECKING:
    from websockets.http11 import Request, Response

    from lakebed.serve.guard import Principal
    from lakebed.serve.http_connections import Seat
    from lakebed.serve.http_door import RequestPipeline

_logger: Final = logging.getLogger("lakebed.serve")
_protocol_logger: Final = logging.getLogger("lakebed.serve.websocket")
_protocol_logger.setLevel(logging.WARNING)  # it has a line for each connection otherwise

_PREFIX: Final = "/v1/topics/"
_SUFFIX: Final = "/writer"
_UNDER_WAY_MAX: Final = 16
"""Messages of a connection that are not answered yet; it is not read beyond them."""
_RECHECK_SECONDS: Final = 1.0
"""How often a connection looks again whether its client may still write."""
_MESSAGE_BYTES_MAX: Final = 1024 * 1024
_MESSAGE_FRAMES_MAX: Final = 1_000
_CLOSE_SECONDS: Final = 10.0
"""How long a connection that is closed may take to be gone."""


class SocketSlot(Reply):
    """The answer to one message of a connection, once the log has written or refused its record."""

    def __init__(self, socket: RecordSocket, completions: CompletionQueue) -> None:
        super().__init__(completions)
        self._socket = socket
        self.answer: Any = None

    def deliver(self, result: Any, error: BaseException | None) -> None:
        """Keep the answer, and let the connection send those that are due."""
        self.answer = result if error is None else error
        self._socket.continue_or_fail()


class RecordSocket(asyncio.Protocol):
    """One connection; the HTTP server hands it over when it asks for an upgrade."""

    door: RequestPipeline
    completions: CompletionQueue
    """Both set in a class of its own for each server."""

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        del config
        self._connections: set[Any] = server_state.connections
        self._certificate = str(app_state.get("certificate", ""))
        self._seat: Seat = app_state["seat"]
        self._protocol = ServerProtocol(max_size=_MESSAGE_BYTES_MAX, logger=_protocol_logger)
        self._transport: asyncio.Transport
        self._stack = ExitStack()
        self._principal: Principal
        self._name = ""
        self._token: str | None = None
        self._peer = ""
        self._topic = ""
        self._checked_at = 0.0
        self._begun = 0.0
        self._read: RecordReader | None = None
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._messages: deque[bytes] = deque()
        self._slots: deque[SocketSlot] = deque()
        self._waiting = False
        self._full = False
        self._deaf = False
        self._paused = False
        self._limited = True
        self._deadline: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]  # that of a stream
        seconds = self.door.config.http_stall_timeout_ms / 1000
        self._watch = StallWatch(self._transport, seconds, self._on_stall)
        peer = transport.get_extra_info("peername")
        self._peer = "" if not peer else f"{peer[0]}:{peer[1]}"
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take what came: the upgrade first, then frames."""
        protocol = self._protocol
        self.door.meters.count_received(len(data))
        protocol.receive_data(data)
        for event in protocol.events_received():
            if type(event) is Frame:
                self._frame(event)
            else:
                self._accept(event)  # type: ignore[arg-type]  # a request is all that is left
        self._flush()  # before working: the client may be one that does not read
        self.go_on()

    def connection_lost(self, _: Exception | None) -> None:
        """End; what was submitted is written all the same."""
        self._connections.discard(self)
        self._seat.release()
        self._watch.end()
        self._messages.clear()
        if self._deadline is not None:
            self._deadline.cancel()
        self._stack.close()

    def pause_writing(self) -> None:
        """Take nothing more from a client that does not read its answers."""
        self._full = True
        self._watch.begin()
        self._regulate()

    def resume_writing(self) -> None:
        """Go on with a client that reads again."""
        self._full = False
        self._watch.end()
        asyncio.get_running_loop().call_soon(self.continue_or_fail)  # this may be called by a write

    def eof_received(self) -> None:
        """Take the end of what comes."""
        self._protocol.receive_eof()
        self._flush()

    def shutdown(self) -> None:
        """Close: the server is stopping. What is under way is answered first."""
        self._messages.clear()
        self._regulate()
        if self._protocol.state is not State.OPEN:
            self._transport.close()
        elif not self._slots:
            self._close(CloseCode.SERVICE_RESTART, "the server is stopping")

    def _on_stall(self) -> None:
        peer = self._transport.get_extra_info("peername")
        seconds = self.door.config.http_stall_timeout_ms / 1000
        end_stalled(self._transport, self.door.meters, peer, seconds)

    def fail(self, error: Exception) -> None:
        """End at once: a defect, which must end no other connection."""
        _logger.error("a WebSocket failed: topic=%s", self._topic, exc_info=error)
        self._transport.abort()

    def _flush(self) -> None:
        protocol = self._protocol
        pieces = protocol.data_to_send()
        if self._transport.is_closing():  # closed twice, one of TLS cannot be handed over
            return
        if data := b"".join(pieces):
            self._transport.write(data)
        if protocol.state not in (State.CONNECTING, State.OPEN) or protocol.handshake_exc:
            self._expect_end()
        if protocol.state is State.CLOSED or protocol.handshake_exc is not None:
            self._transport.close()
        elif b"" in pieces:  # the end of what is sent
            if protocol.close_rcvd is None and self._transport.can_write_eof():
                self._transport.write_eof()  # closing on what still comes would take it along
            else:
                self._transport.close()

    def _expect_end(self) -> None:
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(_CLOSE_SECONDS, self._transport.abort)

    def _close(self, code: int, why: str) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, why)
        self._flush()

    # The upgrade

    def _accept(self, request: Request) -> None:
        """Let a client in, or say why not."""
        protocol = self._protocol
        try:
            self._enter(request)
            response = protocol.accept(request)
            if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
                why = str(protocol.handshake_exc)[:200]
                refused = InvalidArgumentError("the upgrade is not one to a WebSocket", why=why)
                self._turn_away(refused, response)
        except LakebedError as error:
            self.door.meters.request("http.writer", error.code, 0.0)
            response = protocol.reject(status_of(error), "")
            self._turn_away(error, response)
        protocol.send_response(response)

    def _turn_away(self, error: LakebedError, response: Response) -> None:
        """Have a response say what every error over HTTP says, and put it on record."""
        told = problem(error)
        response.body = bytes(told.body)
        for name, value in {**told.headers, **HEADERS}.items():
            response.headers.pop(name, None)
            response.headers[name] = value
        tell_upgrade(self._topic, self._name, self._peer, error)

    def _enter(self, request: Request) -> None:
        path = request.path
        topic = path.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if path != f"{_PREFIX}{topic}{_SUFFIX}" or "/" in topic:
            raise InvalidArgumentError(
                "a WebSocket writes to /v1/topics/TOPIC/writer", path=path[:200]
            )
        fault = head_fault(name.lower().encode() for name, _ in request.headers.raw_items())
        if fault is not None:
            raise fault.error
        door = self.door
        check_origin(request.headers, "CONNECT", door.config, is_open=door.log.access.open)
        header = request.headers.get("Authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            self._token = token.strip() if scheme.lower() == "bearer" else ""
        self._topic = topic
        if self.door.stopping.is_set():
            raise ServerUnavailableError("the server is stopping")
        self._check()
        if self._seat.spare:
            raise too_many("connections", door.config.connections_max)
        self._seat.known = True
        self.door.log.parts.writing.target(topic)
        administers = self.door.guard.administers(self._principal)
        self._stack.enter_context(
            self.door.quotas.stream(self._principal, administrator=administers)
        )
        self._begun = time.monotonic()
        self.door.meters.streams(1)
        self._stack.callback(self._count_out)
        # What a connection has under way is bounded by itself; only rates need to be asked for.
        self._limited = self.door.quotas.limits_rates

    def _count_out(self) -> None:
        self.door.meters.streams(-1)
        seconds = time.monotonic() - self._begun
        self.door.meters.request("http.writer", "ok", seconds, self._principal)

    def _check(self) -> None:
        """See who this is, and whether it may write."""
        guard = self.door.guard
        self._principal = guard.authenticate(
            self._token, certificate=self._certificate, peer=self._peer
        )
        self._name = self._principal.name
        guard.check(self._principal, "put", STREAMS["put"].need, [self._topic])
        self._checked_at = time.monotonic()

    # Messages

    def _frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.PING, Opcode.PONG, Opcode.CLOSE):
            return  # the protocol answers these itself
        if self._deaf:
            return
        self._parts_bytes += len(frame.data)
        if self._parts_bytes > _MESSAGE_BYTES_MAX or len(self._parts) >= _MESSAGE_FRAMES_MAX:
            self._deaf, self._parts = True, []
            self._close(CloseCode.MESSAGE_TOO_BIG, "a message is too large")
            return
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        self._messages.append(b"".join(self._parts) if len(self._parts) > 1 else self._parts[0])
        self._parts, self._parts_bytes = [], 0

    def go_on(self) -> None:
        """Submit what may be submitted now, and send the answers that are due."""
        self._submit_some()
        while self._answer_some():
            self._submit_some()
        self._regulate()
        if not self._slots and self.door.stopping.is_set():
            self._close(CloseCode.SERVICE_RESTART, "the server is stopping")

    def continue_or_fail(self) -> None:
        """Go on; a defect ends this connection and no other."""
        try:
            self.go_on()
        except Exception as error:
            self.fail(error)

    def _submit_some(self) -> None:
        held_up = self._waiting or self._full
        while self._messages and len(self._slots) < _UNDER_WAY_MAX and not held_up:
            if must_wait(self.door.log):
                self._waiting = True
                task = asyncio.get_running_loop().create_task(self._wait())
                task.add_done_callback(lambda _: None)
                break
            self._submit(self._messages.popleft())

    def _regulate(self) -> None:
        """Read no further while there is too much."""
        wanted = (
            self._waiting or self._full or len(self._messages) + len(self._slots) >= _UNDER_WAY_MAX
        )
        if wanted == self._paused or self._transport.is_closing():
            return
        self._paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    async def _wait(self) -> None:
        """Wait for room in the log; if there is none in time, the next record is refused."""
        try:
            await self.door.threads.run(self.door.log.parts.admission.admit)
        except LakebedError as error:
            if self._messages:
                self._messages.popleft()
                self._refuse(error)
        except Exception as error:
            self.fail(error)
        finally:
            self._waiting = False
        self.continue_or_fail()

    def _submit(self, message: bytes) -> None:
        """Append the record of a message."""
        slot = SocketSlot(self, self.completions)
        try:
            if time.monotonic() - self._checked_at > _RECHECK_SECONDS:
                self._check()
            if self._limited:
                with self.door.quotas.admit(self._principal, len(message)):
                    record = self._record(message)
            else:
                record = self._record(message)
            self._slots.append(slot)
            self.door.log.parts.writing.post(record, slot)
        except LakebedError as error:
            if self._slots and self._slots[-1] is slot:
                self._slots.pop()
            self._refuse(error)

    def _record(self, message: bytes) -> Any:
        try:
            document = parse(message)
        except Refused as refused:
            raise refused.error from None
        check_record(document)
        writing = self.door.log.parts.writing
        target = writing.target(self._topic)
        if self._read is None or self._read.target is not target:
            self._read = RecordReader(target)
        row = self._read(document)
        return writing.record(
            self._topic,
            row["value"],
            row.get("key"),
            row.get("headers"),
            row.get("partition"),
            row.get("timestamp"),
        )

    # Answers

    def _refuse(self, error: LakebedError) -> None:
        slot = SocketSlot(self, self.completions)
        slot.answer = error
        self._slots.append(slot)

    def _answer_some(self) -> bool:
        """Send the answers that are due, in the order of their messages; tell if there were any."""
        slots, protocol = self._slots, self._protocol
        before = len(slots)
        while slots and slots[0].answer is not None:
            answer = slots.popleft().answer
            if protocol.state is State.OPEN:
                protocol.send_text(_text(answer))
        self._flush()
        return len(slots) < before


def _text(answer: Any) -> bytes:
    if isinstance(answer, Ack):
        return b'{"partition":%d,"offset":%d}' % (answer.partition, answer.offset)
    if not isinstance(answer, LakebedError):
        _logger.error("a record failed in an unforeseen way", exc_info=answer)
        answer = LakebedError("the server failed")
    return json.dumps({"error": body_of(answer)}, separators=(",", ":")).encode()
