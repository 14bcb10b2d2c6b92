"""A server process that speaks HTTP, and clients of it that send whatever bytes they like."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lakebed.serve.server import Server
from tests.serve.support import ServerProcess
from tests.waiting import PATIENCE_SECONDS

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.contextmanager
def http_process(folder: Path, *settings: str) -> Iterator[ServerProcess]:
    """Run a server with HTTP."""
    toml = "[lake]\niceberg = false\n"
    with ServerProcess(folder, *settings, toml=toml, http_port=0) as server:
        yield server


def connect(server: ServerProcess, *, small_window: bool = False) -> socket.socket:
    """Connect to the HTTP port; with a small window, most of an answer stays with the server."""
    made = socket.socket()
    made.settimeout(PATIENCE_SECONDS)
    if small_window:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", server.http_port))
    return made


def head(method: str, path: str, token: str = "", **headers: object) -> bytes:
    """Return the head of a request."""
    given = {"Host": "localhost", **{name.replace("_", "-"): headers[name] for name in headers}}
    if token:
        given["Authorization"] = f"Bearer {token}"
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {given[name]}" for name in given)]
    return "\r\n".join([*lines, "", ""]).encode()


def status(connection: socket.socket) -> int:
    """Return the status of the next answer; 0 if the connection ends without one."""
    try:
        line = connection.makefile("rb").readline()
    except ConnectionError:
        return 0
    return int(line.split()[1]) if line else 0


def is_closed(connection: socket.socket) -> bool:
    """Read to the end of a connection that the server closes."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def call(
    server: ServerProcess | Server, method: str, path: str, body: Any = None, *, token: str = ""
) -> tuple[int, bytes]:
    """Make one request; return the status and the body of its answer."""
    client = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_SECONDS)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    with contextlib.closing(client):
        client.request(method, path, data, headers)
        answer = client.getresponse()
        return answer.status, answer.read()


def is_alive(server: ServerProcess) -> bool:
    """Return whether a new connection gets an answer to a health probe."""
    with connect(server) as probe:
        probe.sendall(LIVE)
        return status(probe) == 200


def events(server: ServerProcess, token: str = "") -> dict[str, int]:
    """Return what has happened to HTTP connections, by the server's own count."""
    code, text = call(server, "GET", "/metrics", token=token)
    assert code == 200, text
    prefix = 'lakebed_http_events_total{event="'
    lines = [line[len(prefix) :] for line in text.decode().splitlines() if line.startswith(prefix)]
    return {name: int(float(count)) for name, _, count in (line.partition('"} ') for line in lines)}
