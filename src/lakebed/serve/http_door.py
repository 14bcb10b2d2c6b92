"""The one way into an HTTP call: who calls, may they, is there room; then the call, counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel
from starlette.responses import Response

from lakebed import limits
from lakebed.bridge.threads import Threads
from lakebed.errors import InvalidArgumentError, LakebedError, ServerUnavailableError
from lakebed.operations.routes import NEEDS
from lakebed.operations.table import OPERATIONS
from lakebed.serve.guard import Principal
from lakebed.serve.http_body import (
    STEP_BYTES,
    GoneError,
    check_json_type,
    content_length,
    parse,
    read_body,
)
from lakebed.serve.http_errors import Refused, problem, refusal
from lakebed.serve.http_origin import check_origin
from lakebed.serve.http_places import Places, too_many
from lakebed.serve.http_records import RecordsAnswer
from lakebed.serve.http_stalls import BUFFER_BYTES
from lakebed.serve.record_form import check_form
from lakebed.serve.refusals import tell
from lakebed.serve.room import StateQuota

if TYPE_CHECKING:
    from starlette.requests import Request

    from lakebed.config import ServeConfig
    from lakebed.engine.log import EmbeddedLog
    from lakebed.serve.guard import Guard
    from lakebed.serve.http_connections import Seat
    from lakebed.serve.meters import Meters
    from lakebed.serve.quotas import Quotas

ANSWER: Final = "answer"
"""The state of a request under which its answer's bytes are held until they are sent."""

_BIG_BYTES: Final = 64 * 1024
"""A body from this size on is parsed in a thread."""
_BEARER: Final = "bearer "
_WRITING_THREADS: Final = 8
"""For calls that wait when memory is short, so that reads do not queue behind them."""

_logger: Final = logging.getLogger("lakebed.serve")

Model = TypeVar("Model", bound=BaseModel)


def _stopping_error() -> LakebedError:
    return ServerUnavailableError("the server is stopping")


class HttpCaller:
    """A request whose sender is known."""

    def __init__(
        self,
        *,
        door: RequestPipeline,
        request: Request,
        principal: Principal,
        call: str,
        stack: ExitStack,
    ) -> None:
        self.principal = principal
        self.call = call
        self.names: Sequence[str] | None = None
        """What the call may be made on; None until that was checked."""
        self._door = door
        self._request = request
        self._stack = stack

    @property
    def administers(self) -> bool:
        """Whether the caller administers the log, as every caller of an open log does."""
        return self._door.guard.administers(self.principal)

    @property
    def room(self) -> StateQuota:
        """What the caller may still add to the state."""
        return StateQuota(self._door.log, self.principal.name, administrator=self.administers)

    @property
    def address(self) -> str:
        """Where it calls from, without the port."""
        seat: Seat = self._request.scope["state"]["seat"]
        return seat.address

    def check(self, names: Sequence[str]) -> None:
        """Raise `AccessDeniedError` unless the call may be made on these names."""
        self._door.guard.check(self.principal, self.call, NEEDS[self.call], names)
        self.names = names

    def check_somewhere(self) -> None:
        """Raise `AccessDeniedError` unless the call may be made on some name.

        For calls whose body names what they are about: others do not get it read.
        """
        action = NEEDS[self.call].action
        self._door.guard.check_somewhere(self.principal, self.call, action)

    def check_also(self, call: str, names: Sequence[str]) -> None:
        """Raise `AccessDeniedError` unless another call could be made on these names."""
        self._door.guard.check(self.principal, self.call, NEEDS[call], names)

    def may_read(self, topic: str) -> bool:
        """Return whether the caller may read a topic."""
        return self._door.guard.permits(self.principal, NEEDS["read"], topic)

    def filter_permitted(self, names: Sequence[str]) -> list[str]:
        """Return those names on which the call may be made."""
        need, guard = NEEDS[self.call], self._door.guard
        return [name for name in names if guard.permits(self.principal, need, name)]

    def charge(self, nbytes: int) -> None:
        """Count what is read against what the caller may have in a second."""
        self._door.quotas.charge(self.principal, nbytes)

    def hold(self, nbytes: int, *, always: bool = False) -> None:
        """Count an answer of so many bytes as under way until it is sent, instead of the last size.

        What a connection holds in any case is not counted. Raises `QuotaExceededError` if there is
        no room, unless it is to be counted `always`.
        """
        answer: ExitStack = self._request.scope["state"][ANSWER]
        answer.close()
        if nbytes > BUFFER_BYTES:
            answer.enter_context(self._door.quotas.hold(self.principal, nbytes, always=always))

    async def body(
        self, model: type[Model], bytes_max: int = limits.JSON_CALL_BYTES_MAX
    ) -> tuple[Any, Model]:
        """Return the JSON body, as it came and as the model has checked it."""
        check_json_type(self._request)
        door = self._door
        body = await read_body(
            self._request,
            min(bytes_max, door.body_bytes_max),
            door.config.http_body_timeout_ms / 1000,
            lambda nbytes: door.quotas.admit(self.principal, nbytes),
            self._stack,
        )
        if len(body) < _BIG_BYTES:
            return _check_body(model, body)
        return await door.threads.run(_check_body, model, body)


def _check_body(model: type[Model], body: bytes) -> tuple[Any, Model]:
    value = parse(body)
    return value, check_form(model, value)


Work = Callable[[HttpCaller], Awaitable[Response]]


class RequestPipeline:
    """Lets requests in. To be made and used in the event loop of the HTTP server."""

    def __init__(
        self, *, log: EmbeddedLog, guard: Guard, quotas: Quotas, meters: Meters, config: ServeConfig
    ) -> None:
        self.log = log
        self.config = config
        self.guard = guard
        self.quotas = quotas
        self.meters = meters
        self.threads = Threads(
            "lakebed-gateway", slow_threads=_WRITING_THREADS, closed=_stopping_error
        )
        self.body_bytes_max = min(config.request_bytes_max, limits.JSON_BYTES_MAX)
        self.stopping = asyncio.Event()
        self._places = Places(config)
        self._waiting = 0

    async def answer(
        self, request: Request, call: str, work: Work, names: Sequence[str] | None = None
    ) -> Response:
        """Serve a call; with `names`, only if it may be made on them."""
        began, outcome = time.perf_counter(), "cancelled"
        caller: HttpCaller | None = None
        try:
            with ExitStack() as stack:
                caller = self._enter(request, call, stack)
                if names is not None:
                    caller.check(names)
                response = await work(caller)
            if not isinstance(response, RecordsAnswer):  # whose records are held
                # What a call has changed is told in any case.
                caller.hold(len(response.body), always=request.method != "GET")
            outcome = "ok"
        except LakebedError as error:
            outcome, response = error.code, problem(error)
            tell(call, error, _peer(request))
        except Refused as refused:
            outcome, response = refused.error.code, refusal(refused)
        except GoneError:
            response = Response(status_code=400)  # nobody reads it
        except Exception:
            _logger.exception("an HTTP call failed: %s", call)
            outcome = "internal"
            response = problem(LakebedError("the server could not do this", call=call))
        finally:
            principal = None if caller is None else caller.principal
            self.meters.request(f"http.{call}", outcome, time.perf_counter() - began, principal)
            if caller is not None:
                self._record(caller, outcome)
        return response

    def _record(self, caller: HttpCaller, outcome: str) -> None:
        """Put an administrative act on record; what was refused before, the guard has recorded."""
        call = OPERATIONS.get(caller.call)
        if call is None or caller.names is None or not call.is_audited:
            return
        if outcome == "ok":
            self.guard.did(caller.principal, call.name, caller.names)
        else:
            self.guard.did(
                caller.principal, call.name, caller.names, outcome="failed", reason=outcome
            )

    def authenticate(self, request: Request) -> Principal:
        """Return who is calling, or raise `UnauthenticatedError`."""
        header = request.headers.get("authorization")
        token = None
        if header is not None:
            # Another scheme is no token, and must not be taken for a caller without one.
            token = header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else ""
        return self.guard.authenticate(
            token,
            certificate=request.scope.get("state", {}).get("certificate", ""),
            peer=_peer(request),
        )

    def _enter(self, request: Request, call: str, stack: ExitStack) -> HttpCaller:
        is_open = self.log.access.open
        check_origin(request.headers, request.method, self.config, is_open=is_open)
        principal = self.authenticate(request)
        shipping = self.log.parts.shipping
        if shipping is not None and call != "metrics":
            shipping.check_serving()
        _check_query(request)
        seat: Seat = request.scope["state"]["seat"]
        seat.known = True
        administers = not is_open and self.guard.permits(principal, NEEDS["metrics"], "")
        if seat.spare and not administers:
            raise too_many("connections", self.config.connections_max)
        self._places.check(principal.name, seat.address, administers=administers)
        self._places.take(principal.name, seat.address)
        stack.callback(self._places.leave, principal.name, seat.address)
        length = content_length(request)
        admitted = STEP_BYTES if length is None else min(max(1, length), self.body_bytes_max)
        stack.enter_context(self.quotas.admit(principal, admitted))
        return HttpCaller(door=self, request=request, principal=principal, call=call, stack=stack)

    @contextlib.contextmanager
    def waiting(self, caller: HttpCaller) -> Iterator[None]:
        """Let a call wait for records within the block, or raise `QuotaExceededError`.

        Administrators have a reserve, as they have for other requests and for streams.
        """
        reserved = caller.administers and not self.log.access.open
        most = limits.HTTP_WAITS_MAX + (limits.HTTP_RESERVE if reserved else 0)
        if self._waiting >= most:
            raise too_many("requests that wait", most)
        owner = caller.principal.name, caller.address
        self._waiting += 1
        try:
            with self.quotas.stream(caller.principal, administrator=caller.administers):
                self.meters.streams(1)
                self._places.leave(*owner)
                try:
                    yield
                finally:
                    self._places.take(*owner)
                    self.meters.streams(-1)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let the threads go."""
        self.threads.close(cancel_queued=True)


def _peer(request: Request) -> str:
    return "" if request.client is None else f"{request.client.host}:{request.client.port}"


def _check_query(request: Request) -> None:
    """Refuse parameters that the call does not have, and those that are there twice."""
    route = request.scope["route"]
    allowed = {parameter.alias for parameter in route.dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in allowed or names.count(name) > 1:
            raise InvalidArgumentError(
                "unknown parameter" if name not in allowed else "a parameter is given twice",
                parameter=name[:200],
                known=", ".join(sorted(allowed)) or "none",
            )
