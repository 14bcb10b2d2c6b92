"""The HTTP server: in a thread of its own, with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakebed.errors import InvalidArgumentError
from lakebed.serve.renewal import LiveContext

if TYPE_CHECKING:
    import uvicorn

    from lakebed.config import ServeConfig
    from lakebed.engine.log import EmbeddedLog
    from lakebed.serve.guard import Guard
    from lakebed.serve.http_door import RequestPipeline
    from lakebed.serve.meters import Meters
    from lakebed.serve.quotas import Quotas

_logger: Final = logging.getLogger("lakebed.serve")

_KEEP_ALIVE_SECONDS: Final = 30
_BACKLOG: Final = 1024
_LAST_SECONDS: Final = 5.0
"""How long a stop waits, beyond its timeout, for what was cancelled to end."""


class _Parts(NamedTuple):
    """What the thread of a server works with."""

    loop: asyncio.AbstractEventLoop
    door: RequestPipeline
    server: uvicorn.Server


class HttpServer:
    """A running HTTP server. Any thread may stop it, but not its own."""

    def __init__(
        self, *, thread: threading.Thread, port: int, parts: _Parts, tls: LiveContext | None = None
    ) -> None:
        self.port = port
        """The port it listens on."""
        self._thread = thread
        self._parts = parts
        self.tls = tls
        """What new connections use for TLS."""

    def stop(self, timeout: float = 30.0) -> None:
        """Take no further requests, finish those under way, and end; a second call does nothing.

        Requests that wait for records are answered at once. What is not done after `timeout`
        seconds is cut off.
        """
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._parts.loop.call_soon_threadsafe(self._end, timeout)
            self._thread.join(timeout + _LAST_SECONDS)
        if self._thread.is_alive():  # the log is closed next, which ends what is left
            _logger.error("the HTTP server does not end: timeout_seconds=%s", timeout)

    def _end(self, timeout: float) -> None:
        _, door, server = self._parts
        door.stopping.set()
        server.config.timeout_graceful_shutdown = timeout  # type: ignore[assignment]  # it may be
        server.should_exit = True


def start_http(
    log: EmbeddedLog,
    guard: Guard,
    quotas: Quotas,
    meters: Meters,
    config: ServeConfig,
    *,
    ready: Callable[[], tuple[bool, str]],
) -> HttpServer:
    """Serve a log over HTTP, on `config.host` and `config.http_port`; returns when it listens.

    `ready` tells whether the log can be used, and if not, why.
    """
    from lakebed.serve.http_app import make_app
    from lakebed.serve.http_door import RequestPipeline
    from lakebed.serve.http_protocol import report_loop_error

    context = tls_context(config)
    live = None if context is None else LiveContext(context)
    listener = _listener(config.host, config.http_port)
    begun: Future[_Parts] = Future()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(report_loop_error)
        door = RequestPipeline(log=log, guard=guard, quotas=quotas, meters=meters, config=config)
        try:
            server = _server(make_app(door, ready), door, config, context)
            server.on_start = lambda: begun.set_result(
                _Parts(asyncio.get_running_loop(), door, server)
            )
            await server.serve([listener])
        finally:
            door.close()

    thread = threading.Thread(target=_run, args=(run, begun), name="lakebed-http", daemon=True)
    port = listener.getsockname()[1]
    thread.start()
    try:
        return HttpServer(thread=thread, port=port, parts=begun.result(), tls=live)
    except BaseException:
        listener.close()
        raise


def _run(run: Callable[[], Coroutine[Any, Any, None]], begun: Future[_Parts]) -> None:
    """Serve until told to stop; what goes wrong before it listens is told to whoever started it."""
    try:
        asyncio.run(run())
    except BaseException as error:
        if begun.done():
            raise
        begun.set_exception(error)


def _server(
    app: Any, door: RequestPipeline, config: ServeConfig, context: ssl.SSLContext | None
) -> Any:
    import uvicorn

    from lakebed.bridge.completions import CompletionQueue
    from lakebed.serve.http_connections import HttpConnections, Seat
    from lakebed.serve.http_listener import Listener
    from lakebed.serve.http_protocol import HttpConnection
    from lakebed.serve.record_socket import RecordSocket

    connections = HttpConnections(config, door.meters)

    class SocketWriter(RecordSocket):
        """WebSockets of this server."""

    SocketWriter.door = door
    SocketWriter.completions = CompletionQueue(asyncio.get_running_loop())

    class Limited(HttpConnection):
        """Connections of this server."""

        meters = door.meters
        stall_seconds = config.http_stall_timeout_ms / 1000

    class UvicornServer(uvicorn.Server):
        """A server that counts connections before their handshake, and tells when it listens."""

        on_start: Callable[[], None]

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await self.lifespan.startup()
            listeners = [self._listen(bound) for bound in sockets or ()]
            self.servers = listeners  # type: ignore[assignment]  # they close as asyncio's do
            self.started = True
            self.on_start()

        def _listen(self, listener: socket.socket) -> Listener:
            made = Listener(
                listener=listener,
                make=self._protocol,
                connections=connections,
                meters=door.meters,
                tls=self.config.ssl,
                handshake_seconds=config.http_handshake_timeout_ms / 1000,
            )
            made.start()
            return made

        def _protocol(self, seat: Seat) -> asyncio.Protocol:
            return Limited(self.config, self.server_state, self.lifespan.state, seat)

    options = uvicorn.Config(
        app,
        loop="asyncio",
        http=Limited,
        ws=SocketWriter,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        backlog=_BACKLOG,
        ssl_context_factory=None if context is None else lambda *_: context,
    )
    return UvicornServer(options)


def _listener(host: str, port: int) -> socket.socket:
    """Listen on an address, or say why that cannot be."""
    if port < 0:
        raise InvalidArgumentError("HTTP is disabled by http_port", http_port=port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the server cannot listen there",
        host=host,
        http_port=port,
        why=error.strerror or str(error),
    )


def tls_context(config: ServeConfig) -> ssl.SSLContext | None:
    """Return what HTTP shows and asks for, or say why the certificates cannot be used."""
    if not config.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
        if config.tls_client_ca:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # also those of OpenSSL
        raise InvalidArgumentError(
            "the certificates cannot be used",
            tls_cert=config.tls_cert,
            tls_key=config.tls_key,
            tls_client_ca=config.tls_client_ca or "none",
            why=error.strerror or str(error),
        ) from error
    return context
