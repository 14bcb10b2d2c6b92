"""The Flight server: streams and calls of a log, each checked, counted and translated.

    DoPut          path [topic]                  `puts.py`
    DoGet          a ticket                      `gets.py`
    DoAction       a call and its request        `calls.py`
    ListFlights    the topics that the caller may read
    GetFlightInfo  path [topic]: its schema, an endpoint for each partition

A token travels in the header `authorization: Bearer TOKEN` of each call. Errors of the log cross as
Flight errors whose extra information is the error itself (`protocol.py`); whoever does not know
that sees the message and a fitting status.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from lakebed.errors import (
    LakebedError,
    ProtocolError,
    QuotaExceededError,
    ServerUnavailableError,
)
from lakebed.operations.description import Operation
from lakebed.operations.routes import STREAMS
from lakebed.operations.table import OPERATIONS
from lakebed.serve.callers import OFFERED, PUT, Caller, Callers
from lakebed.serve.calls import Session, check_parameters, run
from lakebed.serve.cancelled import Cancellations
from lakebed.serve.connections import Connections, host_of
from lakebed.serve.flight_errors import flight_error
from lakebed.serve.flight_info import flight_info, topic_of
from lakebed.serve.flight_listener import FlightListener, listen_again, shut_down
from lakebed.serve.gets import Gets, Ticket
from lakebed.serve.guard import Action, Need
from lakebed.serve.puts import AckPool, PutStream
from lakebed.serve.refusals import tell
from lakebed.serve.requests import (
    SMALL_REQUEST_BYTES,
    bytes_to_parse,
    check_unread,
    unpack_call,
)
from lakebed.serve.sent import AnswerStream, pieces
from lakebed.serve.sockets import Sockets
from lakebed.serve.under_way import UnderWay
from lakebed.wire.protocol import pack
from lakebed.wire.quiet import quieten
from lakebed.wire.received import batch_bytes

if TYPE_CHECKING:
    from lakebed.config import ServeConfig
    from lakebed.engine.log import EmbeddedLog
    from lakebed.serve.guard import Guard, Principal
    from lakebed.serve.meters import Meters
    from lakebed.serve.quotas import Quotas
    from lakebed.serve.slots import Slots

_log = logging.getLogger("lakebed.serve")

_RECHECK_SECONDS: Final = 1.0
"""How often a stream looks again whether its client may still do this."""
_SMALL_BYTES: Final = 64 * 1024
"""An answer up to this size is handed to gRPC at once; the bytes of a larger one count until it is
sent."""
_ADMIT_SECONDS: Final = 30.0
"""How long a put, or an answer, waits for others' bytes before it is refused."""
_READ: Final = Need(Action.READ, "topic")
_GOODBYE: Final = ServerUnavailableError("the server is stopping")


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves a log by Arrow Flight. Its threads are gRPC's: one for each call under way."""

    def __init__(
        self,
        *,
        log: EmbeddedLog,
        guard: Guard,
        quotas: Quotas,
        meters: Meters,
        config: ServeConfig,
        location: str = "",
        **tls: Any,
    ) -> None:
        scheme = "grpc+tls" if tls else "grpc"
        self._log = log
        self._guard = guard
        self._quotas = quotas
        self._meters = meters
        self._config = config
        self._run = uuid.uuid4().hex
        self._gets = Gets(log)
        self._cancellations = Cancellations()
        self._pool = AckPool()
        self._puts: dict[int, PutStream] = {}
        self._puts_guard = threading.Lock()
        self._under_way = UnderWay()
        self.wait_idle = self._under_way.wait_idle
        self.idle_seconds = self._under_way.idle_seconds
        self.stopping = False
        self._ended = threading.Event()
        self._sending: dict[int, tuple[Caller, str]] = {}
        """Calls whose answer is being sent, with their peers."""
        self._connections = Connections(
            config,
            # Without a token a caller is known from the start: by its certificate, or as anonymous.
            asks_for_token=lambda: not (config.tls_client_ca or log.access.open),
            count_cut=meters.count_closed,
        )
        quieten()
        self._middleware = {"caller": Callers(self._begin)}
        self._renewed: FlightListener | None = None
        super().__init__(
            location or f"{scheme}://{config.host}:{config.port}",
            middleware=self._middleware,
            **tls,
        )
        watches = [self._watch]
        if not location:  # only the owner of the process reaches a socket file
            watches.append(self._watch_connections)
        for watch in watches:
            threading.Thread(target=watch, name="lakebed-serve-watch", daemon=True).start()

    # Calls

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Make a call."""
        call = OPERATIONS.get(action.type)
        with self._serve(context, action.type if call else "unknown") as (caller, principal):
            if call is None:
                raise ProtocolError("unknown call", call=str(action.type)[:80])
            body = action.body
            check_unread(self._guard, principal, call, body.size)
            with self._quotas.admit(principal, bytes_to_parse(body.size, self._config)):
                request = check_parameters(call, unpack_call(call, body))
                reply = pack(self._call(caller, principal, call, request))
            self._meters.count_exchange(body.size, len(reply))
            if len(reply) > _SMALL_BYTES:
                caller.hold(self._quotas.hold(principal, len(reply), _ADMIT_SECONDS))
            self._is_sending(caller, principal)
        return iter([fl.Result(pa.py_buffer(reply))])

    def _call(self, caller: Caller, principal: Principal, call: Operation, request: Any) -> Any:
        names = call.names(request)
        if not call.open or names:
            self._guard.check(principal, call.name, call.need, names)
        topics = () if call.topics is None else call.topics(self._log, request)
        if topics:
            self._guard.check(principal, call.name, _READ, topics)
        if call.somewhere:
            self._guard.check_somewhere(principal, call.name, *call.somewhere)
        session = Session(
            log=self._log,
            principal=principal,
            server=self._run,
            wake=self._gets.waiters.wake,
            config=self._config,
            administrator=caller.administrator,
        )
        try:
            reply = run(session, call, request)
        except LakebedError as error:
            if call.is_audited:
                self._guard.did(principal, call.name, names, outcome="failed", reason=error.code)
            raise
        if call.is_audited:
            self._guard.did(principal, call.name, names)
        if call.lists_names:
            return [name for name in reply if self._guard.permits(principal, call.need, name)]
        if call.filter_reply is not None:
            permits = self._guard.permits
            return call.filter_reply(reply, lambda topic: permits(principal, _READ, topic))
        return reply

    def list_actions(self, context: Any) -> list[Any]:
        """List the calls, to whoever is known."""
        with self._serve(context, "list_actions"):
            return [
                (call.name, f"{call.need.action.value}: {', '.join(call.request) or 'nothing'}")
                for call in OPERATIONS.values()
            ]

    # Streams

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answer a ticket."""
        with self._serve(context, "get", streams=True, count=False) as (caller, principal):
            started, name = time.monotonic(), "get"
            try:
                size = bytes_to_parse(len(ticket.ticket), self._config)
                with self._quotas.admit(principal, size):
                    parsed = self._ticket(principal, ticket.ticket)
                    name = parsed.call
                    self._check_ticket(principal, parsed)
                answer, size = self._answer(context, caller, principal, parsed)
            except Exception as error:
                self._meters.request(name, _outcome(error), time.monotonic() - started, principal)
                raise
            if isinstance(answer, pa.Table):
                self._is_sending(caller, principal)
                if size <= _SMALL_BYTES:
                    self._meters.count_sent(size)
                    self._quotas.charge(principal, size)
                    self._meters.request(name, "ok", time.monotonic() - started, principal)
                    return fl.RecordBatchStream(answer)
                answer = answer.schema, pieces(answer, size)
            schema, batches = answer
            again = self._recheck(context, caller, name, parsed.topics())
            return fl.GeneratorStream(
                schema,
                AnswerStream(
                    quotas=self._quotas,
                    meters=self._meters,
                    caller=caller,
                    principal=principal,
                    name=name,
                    started=started,
                    batches=batches,
                    again=again,
                ),
            )

    def _ticket(self, principal: Principal, data: bytes) -> Ticket:
        """Take a ticket apart; a large one only of a caller who may read something."""
        if len(data) > SMALL_REQUEST_BYTES:
            self._guard.check_somewhere(principal, "get", Action.READ)
        return Ticket(data)

    def _check_ticket(self, principal: Principal, ticket: Ticket) -> None:
        self._guard.check(principal, ticket.call, STREAMS[ticket.call].need, ticket.topics())
        group = ticket.group()
        if group is not None:  # it is the heartbeat of a member too
            self._guard.check(principal, ticket.call, OPERATIONS["heartbeat"].need, [group])

    def _answer(
        self, context: Any, caller: Caller, principal: Principal, ticket: Ticket
    ) -> tuple[Any, int]:
        """Return the answer to a ticket and its size; a table's bytes count until it is sent."""

        def is_gone() -> bool:
            return self.stopping or self._cancellations.is_cancelled(context)

        answer = self._gets.stream(ticket, is_gone)
        size = answer.nbytes if isinstance(answer, pa.Table) else 0
        if size > _SMALL_BYTES:
            try:
                caller.hold(self._quotas.hold(principal, size))
            except QuotaExceededError:
                # What waits for room holds nothing meanwhile: it is read again once there is some.
                answer = None
                caller.hold(self._quotas.hold(principal, size, _ADMIT_SECONDS))
                answer = self._gets.stream(ticket, is_gone)
        return answer, size

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take a stream of batches into a topic."""
        with self._serve(context, "put", streams=True) as (caller, principal):
            topic = topic_of(descriptor)
            self._guard.check(principal, "put", STREAMS["put"].need, [topic])
            stream = PutStream(
                log=self._log,
                principal=principal,
                topic=topic,
                pool=self._pool,
                write=writer.write,
                admit=lambda size: self._quotas.admit(principal, size, _ADMIT_SECONDS),
            )
            with self._connections.stream(principal.peer), self._open_put(stream):
                again = self._recheck(context, caller, "put", [topic])
                self._take_all(context, reader, stream, again)

    @contextlib.contextmanager
    def _open_put(self, stream: PutStream) -> Iterator[None]:
        with self._puts_guard:
            self._puts[id(stream)] = stream
        self._meters.streams(1)
        try:
            if self.stopping:
                stream.say(_GOODBYE)
            yield
        finally:
            stream.finish()
            self._meters.streams(-1)
            with self._puts_guard:
                del self._puts[id(stream)]

    def _take_all(
        self, context: Any, reader: Any, stream: PutStream, again: Callable[[], None]
    ) -> None:
        peer = _peer(context)
        while stream.gone is None:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            except fl.FlightCancelledError:
                return  # the client is gone; what it sent is being written
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, fl.FlightError) and context.is_cancelled():
                    return
                raise ProtocolError("the stream cannot be read", reason=str(error)) from error
            self._connections.note_heard(peer)
            again()
            size = batch_bytes(chunk.data) + (
                chunk.app_metadata.size if chunk.app_metadata is not None else 0
            )
            self._meters.count_received(size)
            if size > self._config.request_bytes_max:
                raise ProtocolError(
                    "a message is too large",
                    bytes=size,
                    request_bytes_max=self._config.request_bytes_max,
                )
            metadata = chunk.app_metadata
            stream.take(chunk.data, None if metadata is None else memoryview(metadata))

    def _recheck(
        self, context: Any, caller: Caller, name: str, names: Sequence[str]
    ) -> Callable[[], None]:
        """Return what looks now and then whether the client may still do this."""
        last = time.monotonic()

        def again() -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > _RECHECK_SECONDS:
                last = now
                principal = self._authenticate(context, caller)
                self._guard.check(principal, name, STREAMS[name].need, names)

        return again

    # Looking around

    def list_flights(self, context: Any, _criteria: bytes) -> Iterator[Any]:
        """Describe the topics that the caller may read."""
        with self._serve(context, "list_flights") as (_, principal):
            names = [
                name for name in self._log.topics() if self._guard.permits(principal, _READ, name)
            ]
            return iter([flight_info(self._log, name) for name in names])

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Describe a topic."""
        with self._serve(context, "describe_topic") as (_, principal):
            topic = topic_of(descriptor)
            self._guard.check(principal, "describe_topic", STREAMS["range"].need, [topic])
            return flight_info(self._log, topic)

    # Each call

    def _begin(self, method: Any, caller: Caller) -> None:
        """Refuse a call by its headers alone, if it would wait for a message or is not offered."""
        if method in OFFERED and method is not PUT:
            return  # it is about to reach the server, which then knows its address too
        name = "put" if method is PUT else str(method.name).lower()
        try:
            if self.stopping:
                raise ServerUnavailableError("the server is stopping")
            if caller.token is not None or not self._config.tls_client_ca:
                caller.principal = self._guard.authenticate(caller.token)
            if method is not PUT:
                raise ProtocolError("the server does not offer this method", method=name)
            self._count(caller, caller.principal, self._quotas.open_streams)
        except LakebedError as error:
            self._meters.request(name, error.code, 0.0)
            tell(name, error, "")
            raise flight_error(error) from error

    def _count(self, caller: Caller, principal: Principal | None, slots: Slots) -> None:
        """Count a call until it has ended; one of a certificate is not known by its headers."""
        if principal is not None:
            caller.administrator = self._guard.administers(principal)
        name = "" if principal is None else principal.name
        if caller.slot is None:
            caller.slot = slots.take(name, administrator=caller.administrator)
            caller.at_end(slots.release, caller.slot)
        elif principal is not None:
            slots.assign(caller.slot, name, administrator=caller.administrator)
        if principal is not None and principal.peer:
            slots.locate(caller.slot, host_of(principal.peer))

    def _is_sending(self, caller: Caller, principal: Principal) -> None:
        """Have the connection closed if nothing of the answer is taken for too long."""
        caller.progress = time.monotonic()
        self._sending[id(caller)] = (caller, principal.peer)
        caller.at_end(self._is_sent, id(caller))

    def _is_sent(self, caller_id: int) -> None:
        self._sending.pop(caller_id, None)

    def _end_stalled(self) -> None:
        """Close the connections of clients that have taken nothing for too long."""
        late = time.monotonic() - self._config.flight_stall_timeout_ms / 1000
        for caller, peer in list(self._sending.values()):
            if caller.progress < late:
                self._connections.cut(peer, "an answer was not taken in time")

    @contextlib.contextmanager
    def _serve(
        self, context: Any, name: str, *, streams: bool = False, count: bool = True
    ) -> Iterator[tuple[Caller, Principal]]:
        """Serve a call within the block: known caller, counted, errors translated."""
        started = time.monotonic()
        outcome = "ok"
        principal: Principal | None = None
        self._under_way.begin()
        try:
            if self.stopping:
                raise ServerUnavailableError("the server is stopping")
            caller: Caller = context.get_middleware("caller")
            principal = self._authenticate(context, caller)
            self._connections.note_heard(principal.peer)
            self._check_owner()
            slots = self._quotas.open_streams if streams else self._quotas.open_calls
            self._count(caller, principal, slots)
            yield caller, principal
        except LakebedError as error:
            outcome = error.code
            tell(name, error, _peer(context))
            raise flight_error(error) from error
        except fl.FlightError:
            outcome = "transport"
            raise
        except Exception as error:
            outcome = "failed"
            request_id = uuid.uuid4().hex[:12]
            _log.exception(
                "a call failed in an unforeseen way: call=%s number=%s", name, request_id
            )
            raise fl.FlightInternalError(
                f"the server failed; see number={request_id} in its log"
            ) from error
        finally:
            if count:
                self._meters.request(name, outcome, time.monotonic() - started, principal)
            self._under_way.end()

    def _authenticate(self, context: Any, caller: Caller) -> Principal:
        certificate = ""
        if self._config.tls_client_ca:  # a client shows no certificate otherwise
            identity = context.peer_identity()
            certificate = bytes(identity).decode(errors="replace") if identity else ""
        return self._guard.authenticate(caller.token, certificate=certificate, peer=_peer(context))

    def _check_owner(self) -> None:
        """Refuse a call if another server may own the log: this one could answer what is old."""
        if (shipping := self._log.parts.shipping) is not None:
            shipping.check_serving()

    # Certificates

    def renew(self, **tls: Any) -> None:
        """Show other certificates from now on, by another listener on the same port."""
        location = f"grpc+tls://{self._config.host}:{self.port}"
        old = self if self._renewed is None else self._renewed
        self._renewed = listen_again(old, self, location, self._middleware, tls)

    # Stopping

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self._pool.watch()
            self._end_stalled()

    def _watch_connections(self) -> None:
        with contextlib.closing(Sockets(self.port)) as sockets:
            self._connections.watch(sockets, self._ended)

    def begin_stop(self) -> None:
        """Refuse new calls, wake whoever waits, and tell open put streams to end."""
        self.stopping = self._gets.stopping = True
        self._gets.waiters.wake_all()
        self._log.parts.core.wake_all()
        with self._puts_guard:
            streams = list(self._puts.values())
        for stream in streams:
            stream.say(_GOODBYE)

    def end(self) -> bool:
        """Close the port; return whether every call has ended.

        Those that did not end in time keep their threads until they do.
        """
        self._ended.set()
        self._pool.close()
        seconds = 2.0 if self._under_way.count else 10.0
        renewed = self._renewed is None or shut_down(self._renewed, seconds)
        return shut_down(self, seconds) and renewed


def _peer(context: Any) -> str:
    peer = context.peer()
    return peer.decode(errors="replace") if isinstance(peer, bytes) else str(peer)


def _outcome(error: Exception) -> str:
    return error.code if isinstance(error, LakebedError) else "failed"
