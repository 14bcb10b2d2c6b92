"""The HTTP application: health, metrics, the gateway, and what is true of every answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from lakebed.errors import LakebedError
from lakebed.serve.gateway import add_gateway, answer
from lakebed.serve.http_door import ANSWER, HttpCaller, RequestPipeline
from lakebed.serve.http_errors import HEADERS, Refused, problem, refusal
from lakebed.serve.http_head import head_fault
from lakebed.serve.openapi import add_route, document

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ReadyState = Callable[[], tuple[bool, str]]
"""Tells whether the log can be used, and if not, why."""

_HEADERS: Final = tuple((name.encode(), value.encode()) for name, value in HEADERS.items())
_CLOSING_HEADERS: Final = (*_HEADERS, (b"connection", b"close"))
_PIECE_BYTES: Final = 256 * 1024
"""A longer answer is handed over in pieces of this size, the next one when the last is taken."""


def make_app(door: RequestPipeline, ready: ReadyState) -> ASGIApp:
    """Make the application."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        default_response_class=Response,
        generate_unique_id_function=lambda route: route.name,
    )
    _add_health(app, door, ready)
    add_gateway(app, door)
    description = document(app)
    app.openapi = lambda: description  # type: ignore[method-assign]  # as FastAPI's own pages advise
    app.add_exception_handler(RequestValidationError, _Invalid(door))
    app.add_exception_handler(HTTPException, _Unrouted(app))
    return _Envelope(app, door)


def _add_health(app: FastAPI, door: RequestPipeline, ready: ReadyState) -> None:
    @add_route(app, "live")
    async def live() -> Response:
        """Answer while the process lives."""
        return answer({"status": "live"})

    @add_route(app, "ready")
    async def is_ready() -> Response:
        """Return whether the log can be used; 503 and the reason if not."""
        if door.stopping.is_set():
            is_up, reason = False, "the server is stopping"
        else:
            is_up, reason = await door.threads.run(_state, ready)
        return answer({"ready": is_up, "reason": reason}, 200 if is_up else 503)

    @add_route(app, "metrics")
    async def metrics(request: Request) -> Response:
        """Return every counter, as Prometheus text or OpenMetrics."""

        async def work(_: HttpCaller) -> Response:
            accept = request.headers.get("accept", "")
            shown = await door.threads.run(door.meters.render, door.log, accept)
            return Response(shown.body, headers={"Content-Type": shown.content_type})

        return await door.answer(request, "metrics", work, ())


def _state(ready: ReadyState) -> tuple[bool, str]:
    try:
        return ready()
    except LakebedError as error:
        return False, str(error)


class _Invalid:
    """Answers requests whose path or parameters are not as the route has them."""

    def __init__(self, door: RequestPipeline) -> None:
        self._door = door

    async def __call__(self, request: Request, error: Any) -> Response:
        """Return the answer; like any other only to those who are known."""

        async def work(_: HttpCaller) -> Response:
            first = error.errors()[0]
            parameter = first["loc"][-1] if first["loc"] else ""
            raise Refused(400, "a parameter is not allowed", parameter=parameter, why=first["msg"])

        return await self._door.answer(request, request.scope["route"].name, work)


class _Unrouted:
    """Answers requests that have no route."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, request: Request, error: Any) -> Response:
        """Return the answer: 404, or 405 with the methods that there are."""
        allowed = sorted(self._methods(request.scope))
        if error.status_code == 405 and allowed:
            headers = {"Allow": ", ".join(allowed)}
            return refusal(Refused(405, "the path does not have this method", headers=headers))
        return refusal(
            Refused(
                error.status_code,
                "unknown path: GET /openapi.json lists all paths",
                path=request.url.path[:200],
            )
        )

    def _methods(self, scope: Scope) -> set[str]:
        methods: set[str] = set()
        for route in self._app.routes:
            if route.matches(scope)[0] is not Match.NONE:
                methods |= getattr(route, "methods", None) or set()
        return methods


class _Envelope:
    """Around every request: counted bytes, headers of every answer, and no failure without one."""

    def __init__(self, app: ASGIApp, door: RequestPipeline) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what its answer holds is released when it is sent."""
        state = scope["state"]
        connection, seat = state["connection"], state["seat"]
        exchange = _Exchange(self._door, receive, send, closes=seat.spare)
        try:
            with ExitStack() as state[ANSWER]:
                await self._serve(scope, exchange)
                await connection.drain()
        finally:
            state.clear()  # a connection in it would leave the request to the garbage collector

    async def _serve(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            await self._answer(scope, exchange)
        except Exception:
            if exchange.begun:
                raise
            response = problem(LakebedError("the server could not do this"))
            await response(scope, exchange.receive, exchange.send)
            raise

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        fault = head_fault(name for name, _ in scope["headers"])
        app = self._app if fault is None else refusal(fault)
        await app(scope, exchange.receive, exchange.send)


class _Exchange:
    """The bytes of one request and its answer."""

    def __init__(
        self, door: RequestPipeline, receive: Receive, send: Send, *, closes: bool
    ) -> None:
        self.begun = False
        """Whether the answer was begun."""
        self._meters = door.meters
        self._receive = receive
        self._send = send
        self._headers = _CLOSING_HEADERS if closes else _HEADERS

    async def receive(self) -> Message:
        """Receive the next part of the request."""
        message = await self._receive()
        self._meters.count_received(len(message.get("body", b"")))
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer: a long one in pieces, as the client takes them."""
        if message["type"] == "http.response.start":
            self.begun = True
            message["headers"] = [*message.get("headers", ()), *self._headers]
        body = message.get("body", b"")
        if len(body) > _PIECE_BYTES:
            view = memoryview(body)
            last = (len(view) - 1) // _PIECE_BYTES * _PIECE_BYTES
            for start in range(0, last, _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                await self._send({**message, "body": piece, "more_body": True})
                self._meters.count_sent(_PIECE_BYTES)
            body = view[last:]
            message = {**message, "body": body}
        await self._send(message)
        self._meters.count_sent(len(body))
