"""What a server answers while it does not own the log: where the owner is, and its health.

Every call of Flight, and every request of HTTP but those for health and metrics, is refused with
`NotOwnerError` before its caller is known: a standby has no state to look tokens up in, and says
nothing but the address that clients were configured with.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow.flight as fl
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from lakebed.config import ServeConfig
from lakebed.errors import NotOwnerError
from lakebed.serve.flight_errors import flight_error
from lakebed.serve.flight_listener import shut_down
from lakebed.serve.log_metrics import role
from lakebed.serve.meters import expose
from lakebed.wire.quiet import quieten

_log = logging.getLogger("lakebed.serve")

_REQUEST_SECONDS: Final = 10.0

Refuse = Callable[[], NotOwnerError]
"""Returns the error of a call that only the owner answers."""
Figures = Callable[[], Mapping[str, object]]
"""Returns the role, and what is known about the owner."""


class StandbyListener:
    """Listens where the server will serve once it owns the log. Any thread stops it."""

    def __init__(self, config: ServeConfig, refuse: Refuse, figures: Figures, **tls: Any) -> None:
        quieten()
        scheme = "grpc+tls" if tls else "grpc"
        self._flight = _RefusingFlight(refuse, f"{scheme}://{config.host}:{config.port}", **tls)
        try:
            self._http = None
            if config.http_port >= 0:
                self._http = _start_http(config, refuse, figures)
        except BaseException:
            shut_down(self._flight, 2.0)
            raise

    @property
    def port(self) -> int:
        """The port of Flight."""
        return int(self._flight.port)

    @property
    def http_port(self) -> int:
        """The port of HTTP; -1 if there is none."""
        return -1 if self._http is None else int(self._http.server_address[1])

    def stop(self) -> None:
        """Close both ports."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
        shut_down(self._flight, 2.0)


class _RefusingFlight(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Refuses every call."""

    def __init__(self, refuse: Refuse, location: str, **tls: Any) -> None:
        self._refuse = refuse
        super().__init__(location, **tls)

    def _error(self) -> Exception:
        return flight_error(self._refuse())

    def do_action(self, _context: Any, _action: Any) -> Any:
        """Refuse a call."""
        raise self._error()

    def list_actions(self, _context: Any) -> Any:
        """Refuse a call."""
        raise self._error()

    def do_get(self, _context: Any, _ticket: Any) -> Any:
        """Refuse a call."""
        raise self._error()

    def do_put(self, _context: Any, _descriptor: Any, _reader: Any, _writer: Any) -> Any:
        """Refuse a call."""
        raise self._error()

    def do_exchange(self, _context: Any, _descriptor: Any, _reader: Any, _writer: Any) -> Any:
        """Refuse a call."""
        raise self._error()

    def list_flights(self, _context: Any, _criteria: Any) -> Any:
        """Refuse a call."""
        raise self._error()

    def get_flight_info(self, _context: Any, _descriptor: Any) -> Any:
        """Refuse a call."""
        raise self._error()

    def get_schema(self, _context: Any, _descriptor: Any) -> Any:
        """Refuse a call."""
        raise self._error()


class _HttpServer(http.server.ThreadingHTTPServer):
    """Answers health probes. Each request has a thread, which ends with it."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: Any, tls: Any) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        super().__init__(address, handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer a request; the handshake of TLS is made in the request's thread."""
        request.settimeout(_REQUEST_SECONDS)
        if self._tls is not None:
            request = self._tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, *_connection: Any) -> None:
        """Log what went wrong with a connection; it is its client's concern."""
        _log.debug("a connection to a standby failed", exc_info=True)


def _start_http(config: ServeConfig, refuse: Refuse, figures: Figures) -> _HttpServer:
    from lakebed.serve.http import tls_context
    from lakebed.serve.http_errors import HEADERS, body_of, status_of

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers one connection."""

        server_version, sys_version = "lakebed", ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            shown = dict(figures())
            if path == "/health/live":
                self._answer(200, {"status": "live", "role": shown["role"]})
            elif path == "/health/ready":
                reason = f"this server is a {shown['role']}"
                self._answer(503, {"ready": False, "reason": reason, **shown})
            elif path == "/metrics":
                accept = self.headers.get("accept", "")
                self._send(200, *expose(role_metrics(shown), accept))
            else:
                self._refuse()

        def _refuse(self) -> None:
            error = refuse()
            self._answer(status_of(error), body_of(error))

        do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse  # noqa: N815

        def _answer(self, status: int, body: Mapping[str, object]) -> None:
            self._send(status, "application/json", json.dumps(body, default=str).encode())

        def _send(self, status: int, kind: str, data: bytes) -> None:
            self.close_connection = True
            self.send_response(status)
            for name, value in {**HEADERS, "content-type": kind, "connection": "close"}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as its base has it
            """Log nothing: probes come every few seconds."""

    server = _HttpServer((config.host, config.http_port), Handler, tls_context(config))
    thread = threading.Thread(
        target=server.serve_forever, args=(0.1,), name="lakebed-standby-http", daemon=True
    )
    thread.start()
    return server


def role_metrics(shown: Mapping[str, object]) -> Iterator[Metric]:
    """Return a role and its figures."""
    yield role(str(shown["role"]))
    for name, value in shown.items():
        with contextlib.suppress(TypeError, ValueError):
            if name not in ("role", "address"):
                meaning = f"The standby's {name.replace('_', ' ')}."
                yield GaugeMetricFamily(f"lakebed_{name}", meaning, value=float(str(value)))
