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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from lakebed.errors import (
    AccessDeniedError,
    ClosedError,
    LakebedError,
    ProtocolError,
    ServerUnavailableError,
    UnauthenticatedError,
)
from lakebed.serve.calls import CALLS, STREAMS, Call, Session, checked, is_administrative
from lakebed.serve.flight_listener import FlightListener, listen_again, shut_down
from lakebed.serve.gets import Gets, Ticket
from lakebed.serve.guard import Action, Need
from lakebed.serve.protocol import cut, pack, pack_error, unpack_request
from lakebed.serve.puts import AckPool, PutStream
from lakebed.serve.quiet import quieten
from lakebed.serve.refusals import tell

if TYPE_CHECKING:
    from lakebed.config import ServeConfig
    from lakebed.engine.log import Log
    from lakebed.serve.guard import Guard, Principal
    from lakebed.serve.meters import Meters
    from lakebed.serve.quotas import Quotas

_log = logging.getLogger("lakebed.serve")

_RECHECK_SECONDS: Final = 1.0
"""How often a stream looks again whether its client may still do this."""
_SMALL_BYTES: Final = 64 * 1024
"""An answer up to this size is handed to gRPC at once; a larger one has a slot until it is sent."""
_ADMIT_SECONDS: Final = 30.0
"""How long a put, or a whole table, waits for others' bytes before it is refused."""
_WHOLE_TABLES: Final = frozenset(["latest", "as_of"])
"""Tickets whose answer is as large as its topic."""
_READ: Final = Need(Action.READ, "topic")
_GOODBYE: Final = ServerUnavailableError("the server is stopping")


class _Caller(fl.ServerMiddleware):  # type: ignore[misc]  # pyarrow ships no types
    """What a call's headers say about its caller."""

    def __init__(self, token: str | None) -> None:
        self.token = token


class _Callers(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Takes the token out of a call's headers."""

    def start_call(self, _info: Any, headers: dict[str, list[Any]]) -> _Caller:
        """Look at the headers of a call."""
        for name, values in headers.items():
            if name.lower() == "authorization" and values:
                scheme, _, token = str(values[0]).partition(" ")
                return _Caller(token.strip() if scheme.lower() == "bearer" else "")
        return _Caller(None)


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]
    """Serves a log by Arrow Flight. Its threads are gRPC's: one for each call under way."""

    def __init__(
        self,
        log: Log,
        guard: Guard,
        quotas: Quotas,
        meters: Meters,
        config: ServeConfig,
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
        self._pool = AckPool()
        self._puts: dict[int, PutStream] = {}
        self._puts_guard = threading.Lock()
        self._under_way = 0
        self._last_call = time.monotonic()
        self._idle = threading.Condition()
        self.stopping = False
        self._ended = threading.Event()
        quieten()
        self._middleware = {"caller": _Callers()}
        self._renewed: FlightListener | None = None
        super().__init__(
            f"{scheme}://{config.host}:{config.port}", middleware=self._middleware, **tls
        )
        threading.Thread(target=self._watch, name="lakebed-serve-watch", daemon=True).start()

    # Calls

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Make a call."""
        call = CALLS.get(action.type)
        with self._served(context, action.type if call else "unknown") as principal:
            if call is None:
                raise ProtocolError("there is no such call", call=str(action.type)[:80])
            body = action.body
            with self._quotas.admitted(principal, body.size):
                request = checked(call, unpack_request(memoryview(body)) if body.size else {})
                reply = pack(self._call(principal, call, request))
            self._meters.received(body.size)
            self._meters.sent(len(reply))
        return iter([fl.Result(pa.py_buffer(reply))])

    def _call(self, principal: Principal, call: Call, request: Any) -> Any:
        names = call.names(request)
        if not call.open or names:
            self._guard.check(principal, call.name, call.need, names)
        topics = () if call.topics is None else call.topics(self._log, request)
        if topics:
            self._guard.check(principal, call.name, _READ, topics)
        if call.somewhere:
            self._guard.check_somewhere(principal, call.name, *call.somewhere)
        session = Session(self._log, principal, self._run, self._gets.waiters.wake, self._config)
        administrative = is_administrative(call)
        try:
            reply = call.run(session, request)
        except LakebedError as error:
            if administrative:
                self._guard.did(principal, call.name, names, outcome="failed", reason=error.code)
            raise
        if administrative:
            self._guard.did(principal, call.name, names)
        if call.name in ("topics", "groups"):
            return [name for name in reply if self._guard.permits(principal, call.need, name)]
        if call.shown is not None:
            return call.shown(reply, lambda name: self._guard.permits(principal, _READ, name))
        return reply

    def list_actions(self, context: Any) -> list[Any]:
        """List the calls, to whoever is known."""
        with self._served(context, "list_actions"):
            return [
                (call.name, f"{call.need.action.value}: {', '.join(call.parameters) or 'nothing'}")
                for call in CALLS.values()
            ]

    # Streams

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Answer a ticket."""
        with contextlib.ExitStack() as stack:
            name = "get"
            principal = stack.enter_context(self._served(context, name, count=False))
            started = time.monotonic()
            try:
                parsed = Ticket(ticket.ticket)
                name = parsed.call
                self._guard.check(principal, name, STREAMS[name], parsed.topics())
                group = parsed.group()
                if group is not None:  # it is the heartbeat of a member too
                    self._guard.check(principal, name, CALLS["heartbeat"].need, [group])
                stack.enter_context(self._quotas.stream(principal))
                stack.enter_context(self._quotas.admitted(principal, len(ticket.ticket)))
                answer = self._gets.stream(parsed, lambda: self.stopping or _is_gone(context))
                if name in _WHOLE_TABLES and isinstance(answer, pa.Table):
                    size = answer.nbytes
                    stack.enter_context(self._quotas.held(principal, size, _ADMIT_SECONDS))
            except Exception as error:
                self._meters.request(name, _outcome(error), time.monotonic() - started, principal)
                raise
            if isinstance(answer, pa.Table) and answer.nbytes > _SMALL_BYTES:
                answer = answer.schema, iter(answer.to_batches())  # held until it is sent
            if isinstance(answer, pa.Table):
                size = answer.nbytes
                self._meters.sent(size)
                self._quotas.charge(principal, size)
                self._meters.request(name, "ok", time.monotonic() - started, principal)
                return fl.RecordBatchStream(answer)
            schema, batches = answer
            again = self._rechecked(context, name, parsed)
            return fl.GeneratorStream(
                schema, _Sent(self, principal, name, started, batches, again, stack.pop_all())
            )

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take a stream of batches into a topic."""
        with self._served(context, "put") as principal:
            topic = _topic_of(descriptor)
            self._guard.check(principal, "put", STREAMS["put"], [topic])
            with self._quotas.stream(principal):
                stream = PutStream(
                    self._log,
                    principal,
                    topic,
                    self._pool,
                    writer.write,
                    lambda size: self._quotas.admitted(principal, size, _ADMIT_SECONDS),
                )
                with self._open_put(stream):
                    self._take_all(context, topic, reader, stream)

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

    def _take_all(self, context: Any, topic: str, reader: Any, stream: PutStream) -> None:
        again = self._rechecked(context, "put", None, [topic])
        while stream.gone is None:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            except fl.FlightCancelledError:
                return  # the client is gone; what it sent is being written
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, fl.FlightError) and _is_gone(context):
                    return
                raise ProtocolError("the stream cannot be read", reason=str(error)) from error
            again()
            size = (chunk.data.nbytes if chunk.data is not None else 0) + (
                chunk.app_metadata.size if chunk.app_metadata is not None else 0
            )
            self._meters.received(size)
            if size > self._config.request_bytes_max:
                raise ProtocolError(
                    "a message is too large",
                    bytes=size,
                    request_bytes_max=self._config.request_bytes_max,
                )
            metadata = chunk.app_metadata
            stream.take(chunk.data, None if metadata is None else memoryview(metadata))

    def _rechecked(
        self, context: Any, name: str, ticket: Ticket | None, topics: Any = ()
    ) -> Callable[[], None]:
        """Give what looks now and then whether the client may still do this."""
        names = list(topics) if ticket is None else ticket.topics()
        last = time.monotonic()

        def again() -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > _RECHECK_SECONDS:
                last = now
                self._guard.check(self._principal(context), name, STREAMS[name], names)

        return again

    # Looking around

    def list_flights(self, context: Any, _criteria: bytes) -> Iterator[Any]:
        """Describe the topics that the caller may read."""
        with self._served(context, "list_flights") as principal:
            names = [
                name for name in self._log.topics() if self._guard.permits(principal, _READ, name)
            ]
            return iter([self._info(name) for name in names])

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Describe a topic."""
        with self._served(context, "describe_topic") as principal:
            topic = _topic_of(descriptor)
            self._guard.check(principal, "describe_topic", STREAMS["range"], [topic])
            return self._info(topic)

    def _info(self, topic: str) -> Any:
        info = self._log.describe_topic(topic)
        endpoints = [
            fl.FlightEndpoint(
                pack(
                    {
                        "call": "range",
                        "topic": topic,
                        "partition": each.partition,
                        "offset": each.earliest,
                        "until": each.end,
                    }
                ),
                [],
            )
            for each in info.partitions
        ]
        return fl.FlightInfo(
            self._log.table(topic).schema,
            fl.FlightDescriptor.for_path(topic),
            endpoints,
            info.records,
            sum(each.segment_bytes for each in info.partitions),
        )

    # Each call

    @contextlib.contextmanager
    def _served(self, context: Any, name: str, *, count: bool = True) -> Iterator[Principal]:
        """Serve a call within the block: known caller, counted, errors translated."""
        started = time.monotonic()
        outcome = "ok"
        principal: Principal | None = None
        with self._idle:
            self._under_way += 1
        try:
            if self.stopping:
                raise ServerUnavailableError("the server is stopping")
            principal = self._principal(context)
            yield principal
        except LakebedError as error:
            outcome = error.code
            tell(name, error, _peer(context))
            raise _flight_error(error) from error
        except fl.FlightError:
            outcome = "transport"
            raise
        except Exception as error:
            outcome = "failed"
            number = uuid.uuid4().hex[:12]
            _log.exception("a call failed in an unforeseen way: call=%s number=%s", name, number)
            raise fl.FlightInternalError(
                f"the server failed; its log tells more under number={number}"
            ) from error
        finally:
            if count:
                self._meters.request(name, outcome, time.monotonic() - started, principal)
            with self._idle:
                self._under_way -= 1
                self._last_call = time.monotonic()
                self._idle.notify_all()

    def _principal(self, context: Any) -> Principal:
        caller = context.get_middleware("caller")
        identity = context.peer_identity()
        certificate = identity.decode(errors="replace") if isinstance(identity, bytes) else identity
        return self._guard.authenticate(
            None if caller is None else caller.token,
            certificate=certificate or "",
            peer=_peer(context),
        )

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

    def begin_stop(self) -> None:
        """Refuse new calls, wake whoever waits, and tell open put streams to end."""
        self.stopping = self._gets.stopping = True
        self._gets.waiters.wake_all()
        self._log._core.wake_all()
        with self._puts_guard:
            streams = list(self._puts.values())
        for stream in streams:
            stream.say(_GOODBYE)

    def wait_idle(self, seconds: float) -> int:
        """Wait until no call is under way; give how many are left."""
        deadline = time.monotonic() + seconds
        with self._idle:
            while self._under_way and (left := deadline - time.monotonic()) > 0:
                self._idle.wait(left)
            return self._under_way

    def idle_seconds(self) -> float:
        """Tell for how long no call has been under way."""
        with self._idle:
            return 0.0 if self._under_way else time.monotonic() - self._last_call

    def end(self) -> bool:
        """Close the port; tell whether every call has ended.

        Those that did not end in time keep their threads until they do.
        """
        self._ended.set()
        self._pool.close()
        seconds = 2.0 if self._under_way else 10.0
        renewed = self._renewed is None or shut_down(self._renewed, seconds)
        return shut_down(self, seconds) and renewed


class _Sent:
    """The batches of a stream on their way out, counted; its end is noticed however it ends."""

    def __init__(
        self,
        server: FlightServer,
        principal: Principal,
        name: str,
        started: float,
        batches: Iterator[Any],
        again: Callable[[], None],
        stack: contextlib.ExitStack,
    ) -> None:
        self._server = server
        self._principal = principal
        self._name = name
        self._started = started
        self._batches = batches
        self._again = again
        self._stack: contextlib.ExitStack | None = stack

    def __iter__(self) -> _Sent:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
            self._again()
        except StopIteration:
            self._end("ok")
            raise
        except LakebedError as error:
            self._end(error.code)
            tell(self._name, error, self._principal.peer)
            raise _flight_error(error) from error
        except Exception:
            self._end("failed")
            _log.exception("a stream failed in an unforeseen way: call=%s", self._name)
            raise
        self._server._meters.sent(batch.nbytes)
        self._server._quotas.charge(self._principal, batch.nbytes)
        return batch

    def _end(self, outcome: str) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
            seconds = time.monotonic() - self._started
            self._server._meters.request(self._name, outcome, seconds, self._principal)

    def __del__(self) -> None:
        self._end("cancelled")  # the client went away, perhaps before the first batch


def _topic_of(descriptor: Any) -> str:
    path = descriptor.path
    if not path or len(path) != 1:
        raise ProtocolError("a descriptor names one topic by its path")
    try:
        return bytes(path[0]).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a descriptor's path is not text") from error


def _peer(context: Any) -> str:
    peer = context.peer()
    return peer.decode(errors="replace") if isinstance(peer, bytes) else str(peer)


def _is_gone(context: Any) -> bool:
    return bool(context.is_cancelled())


def _outcome(error: Exception) -> str:
    return error.code if isinstance(error, LakebedError) else "failed"


def _flight_error(error: LakebedError) -> Exception:
    """Give an error of the log as one of Flight's, which carries it."""
    if isinstance(error, ClosedError):
        error = ServerUnavailableError("the server is stopping")
    kind = fl.FlightServerError
    if isinstance(error, UnauthenticatedError):
        kind = fl.FlightUnauthenticatedError
    elif isinstance(error, AccessDeniedError):
        kind = fl.FlightUnauthorizedError
    elif isinstance(error, ServerUnavailableError):
        kind = fl.FlightUnavailableError
    flight: Exception = kind(cut(str(error)), pack_error(error))
    return flight
