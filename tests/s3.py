"""A real S3 API for tests: moto's server in a process of its own, and a proxy that misbehaves.

`server()` starts the one, `Proxy` stands before it and does what it is told: answer an error, cut
a connection in the middle of a body, keep a client waiting. Both are on loopback alone. A test
package that wants them imports the fixtures: `from tests.s3 import proxy, s3`.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree

import pytest

from lakebed.host import store_bucket

KEY, SECRET, REGION = "key-of-the-test", "secret-of-the-test", "us-east-1"
FOREVER = 1 << 30
_buckets = itertools.count(1)


def options(url: str, **more: str) -> dict[str, str]:
    """Return the options of a store at `url`, by the names pyiceberg has for them."""
    return {
        "s3.endpoint": url,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": REGION,
        **{name.replace("_", "-").replace("s3-", "s3.", 1): text for name, text in more.items()},
    }


@dataclass(frozen=True)
class Server:
    """A server that is running, and what a test asks of it beside the store's own door."""

    url: str

    def bucket(self) -> str:
        """Make a bucket of its own for a test; return its name."""
        name = f"bucket-{next(_buckets)}"
        self.request("PUT", f"/{name}")
        return name

    def keys(self, bucket: str) -> list[str]:
        """List every key of a bucket, as the server sees it."""
        keys: list[str] = []
        while True:
            after = urllib.parse.quote(keys[-1]) if keys else ""
            page = ElementTree.fromstring(
                self.request("GET", f"/{bucket}?list-type=2&start-after={after}")
            )
            found = [each.text or "" for each in page.iter() if each.tag.endswith("}Key")]
            keys += found
            if not found or not any(
                each.tag.endswith("}IsTruncated") and each.text == "true" for each in page.iter()
            ):
                return keys

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Replace an object behind the store's back."""
        self.request("PUT", f"/{bucket}/{key}", data)

    def request(self, method: str, path: str, data: bytes | None = None) -> bytes:
        """Ask the server directly."""
        headers = {"Content-Type": "application/octet-stream"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return bytes(answer.read())


def free_port() -> int:
    """Return a port of loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_PROGRAM = """
import os, sys
from moto.server import ThreadedMotoServer
running = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
running.start()
print(running.get_host_and_port()[1], flush=True)
sys.stdin.read()
os._exit(0)
"""
"""Says its port once it listens, and ends with its parent, however that ends."""


@contextlib.contextmanager
def server(environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Run moto's server in a process of its own until the block ends."""
    child = subprocess.Popen(
        # Warnings are errors in this process; those of other people's code stay in theirs.
        [sys.executable, "-W", "ignore", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )
    with child:
        assert child.stdout is not None
        try:
            port = int(child.stdout.readline())
            yield Server(f"http://127.0.0.1:{port}")
        finally:
            child.kill()


@dataclass
class Misbehaviour:
    """What the proxy does to the next `times` requests of a method whose path has a text in it."""

    method: str
    containing: str
    times: int
    status: int = 0
    code: str = ""
    cut: bool = False
    hang: bool = False
    cut_answer: bool = False

    def matches(self, method: str, path: str) -> bool:
        """Whether it is for this request."""
        return self.times > 0 and self.method in (method, "*") and self.containing in path


@dataclass(frozen=True)
class Seen:
    """A request that reached the proxy."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass
class Proxy:
    """A proxy in front of a server. Any thread."""

    target: str
    seen: list[Seen] = field(default_factory=list)
    dropped_headers: tuple[str, ...] = ()
    """Headers of requests, in lower case, that are not forwarded."""

    def __post_init__(self) -> None:
        self._guard = threading.Lock()
        self._plans: list[Misbehaviour] = []
        self.released = threading.Event()
        self.waiting = threading.Event()
        self._http = _Listener(("127.0.0.1", 0), _Handler)
        self._http.proxy = self
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def answer(
        self, status: int, code: str, *, method: str = "*", containing: str = "", times: int = 1
    ) -> None:
        """Answer an error of S3 instead of forwarding."""
        self._plan(Misbehaviour(method, containing, times, status=status, code=code))

    def cut(self, *, method: str, containing: str = "", times: int = 1) -> None:
        """Forward nothing, and reset the connection in the middle of the body.

        The request's body, or that of the answer if the request has none.
        """
        self._plan(Misbehaviour(method, containing, times, cut=True))

    def cut_answer(self, *, method: str, containing: str = "", times: int = 1) -> None:
        """Forward the request, and reset the connection instead of answering."""
        self._plan(Misbehaviour(method, containing, times, cut_answer=True))

    def hang(self, *, method: str = "*", containing: str = "", times: int = 1) -> None:
        """Never answer; `waiting` is set as soon as a request is kept."""
        self._plan(Misbehaviour(method, containing, times, hang=True))

    def behave(self) -> None:
        """Forget every plan."""
        with self._guard:
            self._plans.clear()

    def count(self, method: str, containing: str = "") -> int:
        """Count the requests that came."""
        return sum(each.method == method and containing in each.path for each in list(self.seen))

    def take(self, seen: Seen) -> Misbehaviour | None:
        """Note a request; return what to do to it."""
        with self._guard:
            self.seen.append(seen)
            for plan in self._plans:
                if plan.matches(seen.method, seen.path):
                    plan.times -= 1
                    return plan
        return None

    def close(self) -> None:
        """Let kept requests go and stop."""
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _plan(self, plan: Misbehaviour) -> None:
        with self._guard:
            self._plans.append(plan)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    proxy: Proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away in the middle is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def _serve(self) -> None:
        proxy = self.server.proxy
        plan = proxy.take(Seen(self.command, self.path, dict(self.headers)))
        if plan is not None and plan.cut and self._has_body():
            self.rfile.read(1)
            self._reset()
            return
        body = self._body()
        if plan is None:
            self._forward(body)
        elif plan.hang:
            proxy.waiting.set()
            proxy.released.wait()
            self._reset()
        elif plan.cut:
            self._forward(body, half=True)
        elif plan.cut_answer:
            self._forward(body, silent=True)
        else:
            self._refuse(plan)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _has_body(self) -> bool:
        return int(self.headers.get("Content-Length") or 0) > 0 or self._chunked()

    def _chunked(self) -> bool:
        return "chunked" in self.headers.get("Transfer-Encoding", "")

    def _body(self) -> bytes:
        if not self._chunked():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, body: bytes, *, half: bool = False, silent: bool = False) -> None:
        host = urllib.parse.urlsplit(self.server.proxy.target).netloc
        upstream = http.client.HTTPConnection(host, timeout=600)
        never = ("transfer-encoding", "content-length", "expect", "connection")
        dropped = {*never, *self.server.proxy.dropped_headers}
        headers = {key: text for key, text in self.headers.items() if key.lower() not in dropped}
        try:
            upstream.request(
                self.command, self.path, body, headers | {"Content-Length": str(len(body))}
            )
            answer = upstream.getresponse()
            contents = answer.read()
            if silent:
                self._reset()
            else:
                self._answer(answer.status, answer.getheaders(), contents, half=half)
        finally:
            upstream.close()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, half: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, text in headers:
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, text)
        length = {name.lower(): text for name, text in headers}.get("content-length")
        stated = length if self.command == "HEAD" and length is not None else str(len(body))
        self.send_header("Content-Length", stated)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            self._reset()

    def _refuse(self, plan: Misbehaviour) -> None:
        text = f"<Error><Code>{plan.code}</Code><Message>the proxy was told to</Message></Error>"
        body = b"" if self.command == "HEAD" else text.encode()
        self._answer(plan.status, [("Content-Type", "application/xml")], body)

    def _reset(self) -> None:
        """Close so that the other side gets a reset, not an orderly end."""
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Report nothing: `seen` is the log."""


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """One server for the whole run."""
    with server() as running:
        yield running


@pytest.fixture
def proxy(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy for one test, which counts requests: the library repeats none."""
    monkeypatch.setattr(store_bucket, "REPETITIONS", 0)
    standing = Proxy(s3.url)
    yield standing
    standing.close()
