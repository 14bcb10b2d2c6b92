"""One connection of a Kafka client: frames in, answers out in the order of the requests.

A request begins when the one before it has ended, as in Kafka, except that a Produce counts as
ended once it is submitted: several of them may be in flight. The connection is not read while too
many requests are in flight, nor while its client does not read its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final

from lakebed.bridge.log import must_wait
from lakebed.errors import LakebedError, QuotaExceededError, UnauthenticatedError
from lakebed.kafka import apis, codes
from lakebed.kafka.handlers import HANDLERS, OFFERED
from lakebed.kafka.producing import LARGE_BYTES, Produced
from lakebed.kafka.sasl import MECHANISMS, token_of
from lakebed.kafka.schemas import BadRequestError
from lakebed.kafka.services import Call, Services, address_for_clients
from lakebed.kafka.wire import KafkaRequest, read_request, write_answer, write_old_produce
from lakebed.serve.certificates import name_of_certificate
from lakebed.serve.http_protocol import end_stalled
from lakebed.serve.http_stalls import StallWatch
from lakebed.serve.refusals import tell, tell_connections

if TYPE_CHECKING:
    from lakebed.serve.guard import Principal
    from lakebed.serve.http_connections import Seat

_logger: Final = logging.getLogger("lakebed.kafka")

_IN_FLIGHT_MAX: Final = 32
"""Requests of a connection that are not answered yet; it is not read beyond them."""
_RECHECK_SECONDS: Final = 1.0
"""How often a connection checks again who its client is."""
_UNKNOWN_BYTES_MAX: Final = 64 * 1024
"""The largest request of a client that is not authenticated."""
_OTHER_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest request that is not a Produce."""
_BEFORE_AUTHENTICATION: Final = frozenset(
    [apis.API_VERSIONS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE]
)
_HEAD: Final = struct.Struct(">ihh")
_PRODUCE_LEAST: Final = 3


class AnswerSlot:
    """The answer to one request, in the order of the requests."""

    __slots__ = ("data", "is_due", "nbytes", "stack")

    def __init__(self, nbytes: int) -> None:
        self.data: bytes | bytearray = b""
        self.is_due = False
        self.nbytes = nbytes
        self.stack: ExitStack | None = None


class KafkaConnection(asyncio.Protocol):
    """One connection. To be used in the event loop of its server."""

    def __init__(self, services: Services, seat: Seat, connections: set[KafkaConnection]) -> None:
        self._services = services
        self._seat = seat
        self._connections = connections
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._slots: deque[AnswerSlot] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stack = ExitStack()
        self._token: str | None = None
        self._certificate = ""
        self._mechanism = ""
        self._principal: Principal | None = None
        self._checked_at = 0.0
        self._is_full = False
        self._is_paused = False
        self._closing = False
        self._transport: asyncio.Transport
        self._watch: StallWatch
        self.address = ("", 0)
        self._peer = ""
        self._host = ""

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._transport = transport  # type: ignore[assignment]  # that of a stream
        self._connections.add(self)
        self._seat.begin(self._transport.abort)
        info = transport.get_extra_info
        peer, local = info("peername") or ("", 0), info("sockname") or ("", 0)
        self._host, self._peer = str(peer[0]), f"{peer[0]}:{peer[1]}"
        tls = info("ssl_object")
        name = None if tls is None else getattr(tls, "requested_name", None)
        self.address = address_for_clients(
            self._services.config.kafka_advertised_address, name, local
        )
        self._certificate = name_of_certificate(info("peercert") or {})
        seconds = self._services.config.http_stall_timeout_ms / 1000
        self._watch = StallWatch(self._transport, seconds, self._end_stalled)

    def data_received(self, data: bytes) -> None:
        """Buffer received bytes, and begin requests that are complete."""
        self._services.meters.count_received(len(data))
        self._buffer += data
        try:
            self._split()
            self._advance()
        except BadRequestError as error:
            self._refuse(str(error))
        except Exception:
            self._fail()

    def connection_lost(self, _: Exception | None) -> None:
        """Release the connection's resources; submitted records are written all the same."""
        self._closing = True
        self._connections.discard(self)
        self._seat.release()
        self._watch.end()
        self._frames.clear()
        self._buffer.clear()
        if self._task is not None:
            self._task.cancel()
        for slot in self._slots:
            _release(slot)
        self._slots.clear()
        self._stack.close()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its answers."""
        self._is_full = True
        self._watch.begin()
        self._regulate()

    def resume_writing(self) -> None:
        """Continue with a client that reads its answers again."""
        self._is_full = False
        self._watch.end()
        self._services.loop.call_soon(self._continue)  # this may be called by a write

    def shutdown(self) -> None:
        """Close when what is in flight is answered: the server is stopping."""
        self._frames.clear()
        if not self._slots:
            self._transport.close()

    def abandon(self) -> None:
        """Close at once, whatever is in flight."""
        self._abort()

    def _end_stalled(self) -> None:
        seconds = self._services.config.http_stall_timeout_ms / 1000
        end_stalled(
            self._transport,
            self._services.meters,
            self._transport.get_extra_info("peername"),
            seconds,
        )

    def _refuse(self, why: str) -> None:
        """Close at once: a client that does not follow the protocol."""
        tell_connections(
            "a Kafka connection was closed: it does not follow the protocol",
            peer=self._peer,
            why=why,
        )
        self._services.meters.http_event("kafka_bad_request")
        self._abort()

    def _fail(self) -> None:
        _logger.exception("a Kafka connection failed: peer=%s", self._peer)
        self._abort()

    def _abort(self) -> None:
        self._closing = True
        self._transport.abort()

    # Frames

    def _split(self) -> None:
        """Split the buffer into complete requests."""
        buffer, position = self._buffer, 0
        while len(buffer) - position >= _HEAD.size and not self._closing:
            length, key, _ = _HEAD.unpack_from(buffer, position)
            self._check_length(length, key)
            end = position + 4 + length
            if len(buffer) < end:
                break
            self._frames.append(bytes(memoryview(buffer)[position + 4 : end]))
            position = end
        if position:
            del buffer[:position]

    def _check_length(self, length: int, key: int) -> None:
        config = self._services.config
        most = config.request_bytes_max if key == apis.PRODUCE else _OTHER_BYTES_MAX
        if self._principal is None and not self._knows_everyone():
            most = _UNKNOWN_BYTES_MAX
        if not _HEAD.size - 4 <= length <= most:
            raise BadRequestError(f"a request of {length} bytes is too short or too long")

    def _knows_everyone(self) -> bool:
        return bool(self._certificate) or self._services.log.access.open

    def _advance(self) -> None:
        """Begin the requests that can begin now, and send the answers that are due."""
        while self._frames and self._task is None and not self._is_full and not self._closing:
            if len(self._slots) >= _IN_FLIGHT_MAX:
                break
            self._begin(self._frames.popleft())
        self._flush()
        self._regulate()

    def _continue(self) -> None:
        try:
            self._advance()
        except BadRequestError as error:
            self._refuse(str(error))
        except Exception:
            self._fail()

    def _regulate(self) -> None:
        wanted = self._is_full or len(self._frames) + len(self._slots) >= _IN_FLIGHT_MAX
        wanted = wanted or (self._task is not None and len(self._frames) > 0)
        if wanted == self._is_paused or self._transport.is_closing():
            return
        self._is_paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _flush(self) -> None:
        """Send the answers that are due, in the order of their requests."""
        slots, parts = self._slots, []
        while slots and slots[0].is_due:
            slot = slots.popleft()
            parts.append(slot.data)
            _release(slot)
        if parts and not self._transport.is_closing():
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            if data:
                self._transport.write(data)
        if not slots and self._task is None:
            self._seat.idle()
            if self._services.stopping.is_set():
                self._transport.close()

    # Requests

    def _begin(self, data: bytes) -> None:
        request = read_request(data, OFFERED)
        slot = AnswerSlot(len(data))
        self._slots.append(slot)
        self._seat.busy()
        if request.key == apis.API_VERSIONS:
            self._finish(slot, write_answer(request, _versions(request)))
        elif request.key in _BEFORE_AUTHENTICATION:
            self._finish(slot, self._sasl(request))
        elif self._enter(request):
            self._serve(request, slot)

    def _enter(self, request: KafkaRequest) -> bool:
        """Authenticate the client; close the connection and return False if that fails."""
        if time.monotonic() - self._checked_at <= _RECHECK_SECONDS:
            return True
        try:
            self._authenticate()
        except LakebedError as error:
            tell(f"kafka.{OFFERED[request.key].name}", error, self._peer)
            self._abort()
            return False
        return True

    def _authenticate(self) -> None:
        """Authenticate the client; the first time, count its connection."""
        services = self._services
        principal = services.guard.authenticate(
            self._token, certificate=self._certificate, peer=self._peer
        )
        if self._principal is None or self._principal.name != principal.name:
            self._stack.close()
            administrator = not services.log.access.open and services.guard.administers(principal)
            self._stack.enter_context(
                services.quotas.stream(principal, self._host, administrator=administrator)
            )
            services.meters.streams(1)
            self._stack.callback(services.meters.streams, -1)
            self._seat.known = True
        self._principal = principal
        self._checked_at = time.monotonic()

    def _sasl(self, request: KafkaRequest) -> bytearray:
        if request.key == apis.SASL_HANDSHAKE:
            self._mechanism = request.body.mechanism if request.body.mechanism in MECHANISMS else ""
            code = codes.NONE if self._mechanism else codes.UNSUPPORTED_SASL_MECHANISM
            return write_answer(request, {"error_code": code, "mechanisms": MECHANISMS})
        if not self._mechanism:
            message = "SaslHandshake comes first"
            answer: Mapping[str, Any] = {
                "error_code": codes.ILLEGAL_SASL_STATE,
                "error_message": message,
            }
            return write_answer(request, answer)
        self._token = token_of(self._mechanism, request.body.auth_bytes)
        try:
            self._authenticate()
        except LakebedError as error:
            tell("kafka.sasl_authenticate", error, self._peer)
            self._closing = True
            is_bad_token = isinstance(error, UnauthenticatedError)
            message = "the token is not valid" if is_bad_token else str(error)
            answer = {
                "error_code": codes.SASL_AUTHENTICATION_FAILED,
                "error_message": message,
            }
            self._services.loop.call_soon(self._transport.close)
            return write_answer(request, answer)
        return write_answer(request, {})

    def _serve(self, request: KafkaRequest, slot: AnswerSlot) -> None:
        assert self._principal is not None  # noqa: S101  # `_enter` has set it
        call = Call(self._services, request, self._principal, self.address, self._host)
        if self._services.quotas.limits_rates or slot.nbytes >= LARGE_BYTES:
            self._run(self._serve_slowly(call, slot))
        elif request.key == apis.PRODUCE:
            self._produce(call, slot)
        else:
            self._handle(call, slot)

    async def _serve_slowly(self, call: Call, slot: AnswerSlot) -> None:
        """Serve a request that has to wait for its turn."""
        slot.stack = ExitStack()
        while True:
            try:
                admitted = self._services.quotas.admit(call.principal, slot.nbytes)
                slot.stack.enter_context(admitted)
                break
            except QuotaExceededError as error:
                await asyncio.sleep(int(str(error.facts.get("wait_ms", 100))) / 1000)
        if call.request.key == apis.PRODUCE:
            await self._produce_slowly(call, slot)
        else:
            await self._handle_slowly(call, slot, HANDLERS[call.request.key](call))

    # Produce

    def _produce(self, call: Call, slot: AnswerSlot) -> None:
        if call.version < _PRODUCE_LEAST:
            self._finish(slot, write_old_produce(call.request))
        elif must_wait(self._services.log):
            self._run(self._produce_slowly(call, slot))
        else:
            produced = Produced(call, lambda done: self._finish_produce(call, slot, done))
            self._write(produced, produced.decode())

    async def _produce_slowly(self, call: Call, slot: AnswerSlot) -> None:
        """Decode a large request in a thread, and wait for room in the log."""
        if call.version < _PRODUCE_LEAST:
            self._finish(slot, write_old_produce(call.request))
            return
        produced = Produced(call, lambda done: self._finish_produce(call, slot, done))
        pieces = await call.run(produced.decode)
        if must_wait(self._services.log):
            try:
                await call.run(self._services.log.parts.admission.admit)
            except LakebedError as error:
                produced.refuse(pieces, error)
                return
        self._write(produced, pieces)

    def _write(self, produced: Produced, pieces: list[Any]) -> None:
        produced.write(pieces)

    def _finish_produce(self, call: Call, slot: AnswerSlot, produced: Produced) -> None:
        seconds = time.monotonic() - produced.started
        failure = produced.failure()
        outcome = "ok" if failure is None else getattr(failure, "code", "refused")
        self._services.meters.request("kafka.produce", str(outcome), seconds, call.principal)
        if call.body.acks == 0:
            if failure is not None:
                self._abort()  # the only way to report it: there is no answer
                return
            slot.is_due = True
        else:
            slot.data, slot.is_due = write_answer(call.request, produced.answer()), True
        if not self._closing:
            self._continue()

    # Everything else

    def _handle(self, call: Call, slot: AnswerSlot) -> None:
        answer = HANDLERS[call.request.key](call)
        if iscoroutine(answer):
            self._run(self._handle_slowly(call, slot, answer))
        else:
            self._finish_call(call, slot, answer, time.monotonic())

    async def _handle_slowly(self, call: Call, slot: AnswerSlot, answer: Any) -> None:
        started = time.monotonic()
        if iscoroutine(answer):
            answer = await answer
        self._finish_call(call, slot, answer, started)

    def _finish_call(self, call: Call, slot: AnswerSlot, answer: Any, started: float) -> None:
        name = f"kafka.{OFFERED[call.request.key].name}"
        seconds = time.monotonic() - started
        self._services.meters.request(name, "ok", seconds, call.principal)
        self._finish(slot, write_answer(call.request, answer))

    def _finish(self, slot: AnswerSlot, data: bytes | bytearray) -> None:
        slot.data, slot.is_due = data, True

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that waits; the next request begins after it."""
        self._task = self._services.loop.create_task(work)
        self._task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() or self._closing:
            with contextlib.suppress(asyncio.CancelledError):
                task.exception()
            return
        error = task.exception()
        if error is not None:
            _logger.error("a Kafka request failed: peer=%s", self._peer, exc_info=error)
            self._abort()
            return
        self._continue()


def _release(slot: AnswerSlot) -> None:
    if slot.stack is not None:
        slot.stack.close()


def _versions(request: KafkaRequest) -> Mapping[str, Any]:
    return {
        "error_code": codes.UNSUPPORTED_VERSION if request.body is None else codes.NONE,
        "api_keys": [
            {"api_key": api.key, "min_version": api.least, "max_version": api.most}
            for api in OFFERED.values()
        ],
    }
