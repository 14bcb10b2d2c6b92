"""The Kafka port of a server: one thread with one event loop, uvloop's if that is installed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakebed.errors import InvalidArgumentError, PackageMissingError
from lakebed.serve.http import tls_context
from lakebed.serve.http_connections import HttpConnections, Seat
from lakebed.serve.http_listener import Listener
from lakebed.serve.http_protocol import report_loop_error
from lakebed.serve.renewal import LiveContext

if TYPE_CHECKING:
    from lakebed.config import ServeConfig
    from lakebed.engine.log import EmbeddedLog as Log
    from lakebed.kafka.connection import KafkaConnection
    from lakebed.kafka.services import Services
    from lakebed.serve.guard import Guard
    from lakebed.serve.meters import Meters
    from lakebed.serve.quotas import Quotas

_logger: Final = logging.getLogger("lakebed.kafka")

AUTOMATIC: Final = -2
"""The port of a server that serves Kafka clients if it can."""
DEFAULT_PORT: Final = 9092
_BACKLOG: Final = 1024
_POLL_SECONDS: Final = 0.02
_LAST_SECONDS: Final = 5.0


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    services: Services
    stop: asyncio.Event


class KafkaServer:
    """A running Kafka port. Any thread may stop it, but not its own."""

    name = "Kafka"

    def __init__(
        self, *, thread: threading.Thread, port: int, running: _Running, tls: LiveContext | None
    ) -> None:
        self.port = port
        """The port it listens on."""
        self._thread = thread
        self._running = running
        self._tls = tls
        self._seconds = 0.0

    def renew(self, context: ssl.SSLContext) -> None:
        """Use other certificates for new connections."""
        if self._tls is not None:
            self._tls.replace(context)

    def stop(self, timeout: float) -> None:
        """Accept no further requests, answer those in flight, and end."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._running.loop.call_soon_threadsafe(self._end, timeout)
            self._thread.join(timeout + _LAST_SECONDS)
        if self._thread.is_alive():
            _logger.error("the Kafka server does not end: timeout_seconds=%s", timeout)

    def _end(self, timeout: float) -> None:
        self._running.services.stop_seconds = timeout
        self._running.services.stopping.set()
        self._running.stop.set()


def start_kafka(
    log: Log, guard: Guard, quotas: Quotas, meters: Meters, config: ServeConfig
) -> KafkaServer | None:
    """Serve Kafka clients by the settings; return None if these have, or allow, no port.

    With the automatic port there is one if the extra is installed, the server is for this machine
    alone, and the port is free.
    """
    port = _port(config)
    if port is None:
        return None
    try:
        listeners = _listen(config.host, port)
    except InvalidArgumentError as error:
        if config.kafka_port != AUTOMATIC:
            raise
        _logger.info("Kafka clients are not served: %s", error)
        return None
    made = _start(log, guard, quotas, meters, config, listeners)
    _logger.info("serving Kafka clients: host=%s port=%d", config.host, made.port)
    return made


def _port(config: ServeConfig) -> int | None:
    if config.kafka_port == -1:
        return None
    is_installed = importlib.util.find_spec("kio") is not None
    if config.kafka_port != AUTOMATIC:
        if not is_installed:
            raise PackageMissingError(
                "Kafka clients need the package kio: pip install 'kio>=0.6,<0.7'",
                setting="kafka_port",
            )
        return config.kafka_port
    if not is_installed or not _is_loopback(config.host):
        return None
    return DEFAULT_PORT if config.port else 0


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _start(
    log: Log,
    guard: Guard,
    quotas: Quotas,
    meters: Meters,
    config: ServeConfig,
    listeners: list[socket.socket],
) -> KafkaServer:
    context = tls_context(config)
    live = None if context is None else LiveContext(context)
    begun: Future[_Running] = Future()

    async def run() -> None:
        from lakebed.kafka.classic_groups import ClassicGroups
        from lakebed.kafka.connection import KafkaConnection
        from lakebed.kafka.services import Services

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_loop_error)
        services = Services(log=log, guard=guard, quotas=quotas, meters=meters, config=config)
        services.groups = ClassicGroups(services)
        seats, connections = HttpConnections(config, meters), set[KafkaConnection]()

        def make(seat: Seat) -> asyncio.Protocol:
            return KafkaConnection(services, seat, connections)

        accepting = [
            Listener(
                listener=listener,
                make=make,
                connections=seats,
                meters=meters,
                tls=context,
                handshake_seconds=config.http_handshake_timeout_ms / 1000,
            )
            for listener in listeners
        ]
        for server in accepting:
            server.start()
        stop = asyncio.Event()
        begun.set_result(_Running(loop, services, stop))
        try:
            await stop.wait()
            await _finish(accepting, connections, services)
        finally:
            services.close()

    port = listeners[0].getsockname()[1]
    thread = threading.Thread(target=_run, args=(run(), begun), name="lakebed-kafka", daemon=True)
    thread.start()
    try:
        return KafkaServer(thread=thread, port=port, running=begun.result(), tls=live)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise


async def _finish(
    accepting: list[Listener], connections: set[KafkaConnection], services: Services
) -> None:
    """Close listeners and connections; those with requests in flight when these are answered."""
    for listener in accepting:
        listener.close()
    services.groups.close()
    deadline = services.loop.time() + services.stop_seconds
    for connection in list(connections):
        connection.shutdown()
    while connections and services.loop.time() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
    for connection in list(connections):
        connection.abandon()
    await asyncio.sleep(0)


def _run(work: Coroutine[Any, Any, None], begun: Future[_Running]) -> None:
    """Serve until `stop`; errors before it listens are raised by the caller."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(work)
    except BaseException as error:
        if begun.done():
            raise
        begun.set_exception(error)


def _loop_factory() -> Any:
    if importlib.util.find_spec("uvloop") is None:
        return None
    uvloop: Any = importlib.import_module("uvloop")
    return uvloop.new_event_loop


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listen on an address; on both addresses of `localhost`, as clients try both."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    listeners: list[socket.socket] = []
    for family, kind, protocol, _, address in addresses if host == "localhost" else addresses[:1]:
        chosen = listeners[0].getsockname()[1] if listeners else port
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and host == "localhost":
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], chosen, *address[2:]))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if not listeners:
                raise _cannot_listen(host, port, error) from error
            continue
        listeners.append(listener)
    return listeners


def _cannot_listen(host: str, port: int, error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(
        "the server cannot listen there: choose another --kafka-port",
        host=host,
        kafka_port=port,
        why=error.strerror or str(error),
    )
