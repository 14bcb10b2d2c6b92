"""A log served over HTTP for a test, and the simplest client there is."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lakebed import Log, ServeConfig
from lakebed.serve.guard import Guard
from lakebed.serve.http import HttpServer, start_http
from lakebed.serve.meters import Meters
from lakebed.serve.quotas import Quotas
from lakebed.serve.server import Server


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the error that the body tells of."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert set(self.json) == {"code", "message", "retriable", "advice", "facts"}
        return str(self.json["code"])


class Served:
    """A served log."""

    def __init__(
        self,
        log: Log,
        server: HttpServer | Server,
        meters: Meters,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.log = log
        self.server = server
        self.port = server.http_port if isinstance(server, Server) else server.port
        self.meters = meters
        self.tls = tls
        self.token = ""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def connection(self) -> http.client.HTTPConnection:
        """Open a connection."""
        if self.tls is not None:
            return http.client.HTTPSConnection(
                "localhost", self.port, timeout=600, context=self.tls
            )
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        chunked: bool = False,
    ) -> Answer:
        """Send a request with bytes (or an iterable of them) as its body, and return the answer."""
        given = dict(headers or {})
        if self.token:
            given.setdefault("Authorization", f"Bearer {self.token}")
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, body, given, encode_chunked=chunked)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request with a JSON body."""
        text = None if body is None else json.dumps(body).encode()
        return self.send(method, path, text, {"Content-Type": "application/json"})

    def stop(self, timeout: float) -> None:
        """Stop the HTTP server."""
        assert isinstance(self.server, HttpServer)
        self.server.stop(timeout)

    def get(self, path: str) -> Answer:
        """Get a path."""
        return self.send("GET", path)


@contextlib.contextmanager
def served(
    folder: Path,
    *,
    ready: Callable[[], tuple[bool, str]] | None = None,
    tls: ssl.SSLContext | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Serve a new log."""
    config = ServeConfig(**{"http_port": 0, "port": 0, **settings})
    meters = Meters()
    with Log.open(folder) as log, contextlib.closing(Guard(log, config)) as guard:
        server = start_http(
            log, guard, Quotas(config), meters, config, ready=ready or (lambda: (True, ""))
        )
        try:
            yield Served(log, server, meters, tls)
        finally:
            server.stop(20)
