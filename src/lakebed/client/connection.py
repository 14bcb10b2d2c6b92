"""The way to a server: one connection, calls and tickets over it, and what is tried again.

A call that certainly did not reach the server is repeated until `retry_ms` have passed, as is one
that may be made twice. Whether any other one happened when the connection broke under way is not
known: it raises `UnknownOutcomeError`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from lakebed.client.config import ClientConfig
from lakebed.client.diagnosis import diagnosis
from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    LakebedError,
    ProtocolError,
    QuotaExceededError,
    ServerUnavailableError,
    UnauthenticatedError,
    UnknownOutcomeError,
)
from lakebed.host import OsDisk, read_file
from lakebed.host.forks import keep_forever, watch_forks
from lakebed.host.retry import Backoff, retry
from lakebed.operations.description import Pace
from lakebed.operations.routes import STREAMS
from lakebed.operations.table import OPERATIONS
from lakebed.wire.protocol import VERSION, pack, unpack, unpack_error
from lakebed.wire.quiet import quieten

_log = logging.getLogger("lakebed.client")

SCHEMES: Final = {"lakebed": "grpc+tcp", "lakebed+tls": "grpc+tls"}
UNIX: Final = "lakebed+unix"
"""The scheme of a log that is served to one user's processes only, by a Unix socket."""
PORT: Final = 4747
PAUSE_SECONDS: Final = 0.02
PAUSE_SECONDS_MAX: Final = 1.0
_QUICK_SECONDS: Final = 60.0
"""A call that a living server answers soon is given up after so long."""
_LEAST_SECONDS: Final = 5.0
"""What an attempt is given however short `retry_ms` is: a server may be slow."""
_ONCE_SECONDS: Final = 2.0
_TELL_SECONDS: Final = 2.0
"""After so long it is told that a call is being repeated."""
_HELLO_SECONDS: Final = 5.0
"""How long one attempt waits for the first answer of a server."""
_LOOK_SECONDS: Final = 2.0
"""How often it is looked for a mistake while the first answer does not come."""
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),  # every log has a connection of its own
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

Result = TypeVar("Result")


class _Process:
    """What this process inherited by a fork."""

    has_parents_grpc = False
    """The parent used gRPC at the fork: here it has lost its threads, and every call would hang."""


_process: Final = _Process()


class Connection:
    """One server, as one client reaches it. Any thread."""

    def __init__(
        self, url: str, config: ClientConfig, woken: threading.Event | None = None
    ) -> None:
        self.url = url
        self.config = config = config.resolved()
        location, self._port, tls = _location(url)
        self._options: dict[str, Any] = {"generic_options": list(_OPTIONS)}
        if tls:
            _check_pem(config)
            if config.ca is not None:
                self._options["tls_root_certs"] = _pem(config.ca)
            if config.cert is not None and config.key is not None:
                self._options["cert_chain"] = _pem(config.cert)
                self._options["private_key"] = _pem(config.key)
        self._location = location
        quieten()
        headers = [] if config.token is None else [_header(config.token)]
        self._headers = headers
        self.options = fl.FlightCallOptions(headers=headers)
        self._client: Any = None
        self._guard = threading.Lock()
        self._woken = threading.Event() if woken is None else woken
        """Set when nothing is to be repeated any more."""
        self.closed = False
        self.forked = False
        """Whether this is a copy in a child process: the connection is the parent's."""
        watch_forks(self)

    def after_fork(self) -> None:
        """Leave the connection to the parent process."""
        self.forked = True
        self._guard = threading.Lock()  # a thread of the parent may have held the other one
        if self._client is not None:
            _process.has_parents_grpc = True
            keep_forever(self._client)

    def check_process(self) -> None:
        """Raise `ClosedError` in a process that was forked from the one that opened the log."""
        if self.forked or _process.has_parents_grpc:
            raise self.forked_error()

    def forked_error(self) -> ClosedError:
        """Return the error of everything that a forked process tries."""
        return ClosedError(
            "a served log cannot be used in a process that was forked while one was open: start"
            " the process by multiprocessing's spawn method, and open the log again there",
            url=self.url,
        )

    @property
    def client(self) -> Any:
        """The Flight client."""
        self.check_process()
        with self._guard:
            if self.closed:
                raise ClosedError("the log is closed", url=self.url)
            if self._client is None:
                self._client = fl.connect(self._location, **self._options)
            return self._client

    def call(self, name: str, /, **request: Any) -> Any:
        """Make a call and return its reply."""
        body = pack(request)
        action = fl.Action(name, body)
        begun = time.monotonic()
        operation = OPERATIONS[name]
        is_slow = operation.pace is Pace.SLOW

        def attempt() -> Any:
            options = self.options if is_slow else self._in_time(begun)
            results = list(self.client.do_action(action, options))
            if len(results) != 1:
                raise ProtocolError("a call has one reply", call=name, got=len(results))
            return unpack(memoryview(results[0].body))

        return self.repeated(attempt, safe=operation.safe)

    def _in_time(self, begun: float, wait_ms: int = 0) -> Any:
        """Return the options of an attempt of a call: the one place that computes its deadline.

        What is left of `retry_ms`, but no less than a slow server needs, and how long the server
        waits for records; 60 seconds at most.
        """
        left = begun + self.config.retry_ms / 1000 - time.monotonic()
        return self._within(min(_QUICK_SECONDS, max(_LEAST_SECONDS, left) + wait_ms / 1000))

    def _within(self, seconds: float) -> Any:
        """Return the options of a call that a server which lives answers in time."""
        return fl.FlightCallOptions(headers=self._headers, timeout=seconds)

    def hello(self, seconds: float | None = None) -> dict[str, Any]:
        """Ask the server who it is, for `retry_ms` or as long as given.

        A server that is being restarted is waited for. A mistake that no repetition mends (TLS, a
        token, a port that speaks something else) is told at once, also if it shows later.
        """
        action = fl.Action("hello", pack({}))
        look_at = 0.0

        def attempt() -> Any:
            nonlocal look_at
            try:
                (reply,) = self.client.do_action(action, self._within(_HELLO_SECONDS))
            except (pa.ArrowException, OSError) as failure:
                unavailable = isinstance(self.error_of(failure), ServerUnavailableError)
                if unavailable and self._port and time.monotonic() >= look_at:
                    mistake = diagnosis(self.url, self._port, self.config)
                    look_at = time.monotonic() + _LOOK_SECONDS
                    if mistake is not None:
                        raise mistake from failure
                raise
            return unpack(memoryview(reply.body))

        said = self.repeated(attempt, safe=True, seconds=seconds)
        if not isinstance(said, dict) or said.get("protocol") != VERSION:
            raise ProtocolError("the server speaks another protocol", url=self.url)
        return said

    def call_once(self, name: str, /, **request: Any) -> None:
        """Make a call that may as well fail: it is not repeated, and its reply is not wanted."""
        try:
            action = fl.Action(name, pack(request))
            list(self.client.do_action(action, self._within(_ONCE_SECONDS)))
        except (pa.ArrowException, OSError) as failure:
            raise self.error_of(failure) from failure

    def get(self, ticket: dict[str, Any]) -> tuple[pa.Table, Any]:
        """Return the table that a ticket stands for, and what the server says beside it."""
        packed = fl.Ticket(pack(ticket))
        begun = time.monotonic()

        def attempt() -> pa.Table:
            options = self.options
            if STREAMS[ticket["call"]].pace is not Pace.SLOW:
                options = self._in_time(begun, ticket.get("wait_ms") or 0)
            return self.client.do_get(packed, options).read_all()

        table = self.repeated(attempt, safe=True)
        metadata = dict(table.schema.metadata or {})
        said = metadata.pop(b"lakebed", None)
        return (
            table.replace_schema_metadata(metadata or None),
            None if said is None else unpack(said),
        )

    def stream(self, ticket: dict[str, Any]) -> Any:
        """Begin the stream of batches that a ticket stands for."""
        packed = fl.Ticket(pack(ticket))
        return self.repeated(lambda: self.client.do_get(packed, self.options), safe=True)

    def repeated(
        self, attempt: Callable[[], Result], *, safe: bool, seconds: float | None = None
    ) -> Result:
        """Try until it succeeds, is refused, or has been tried for long enough."""
        try:
            return retry(
                attempt,
                (pa.ArrowException, OSError),
                seconds_max=self.config.retry_ms / 1000 if seconds is None else seconds,
                backoff=Backoff(PAUSE_SECONDS, PAUSE_SECONDS_MAX),
                on_error=_Outages(self, safe=safe).check,
                wait=self._woken.wait,
            )
        except (pa.ArrowException, OSError) as failure:
            raise self.error_of(failure) from failure

    def error_of(self, failure: BaseException) -> LakebedError:
        """Return what Flight raised as one of ours."""
        if isinstance(failure, LakebedError):
            return failure
        if self.closed:
            return ClosedError("the log is closed", url=self.url)
        info = getattr(failure, "extra_info", None)
        if info:
            return unpack_error(info)
        reason = str(failure).partition(". gRPC client debug")[0][:300]
        if isinstance(failure, fl.FlightUnauthenticatedError):
            return UnauthenticatedError("the server refuses the call", reason=reason)
        if isinstance(failure, fl.FlightInternalError | fl.FlightServerError):
            return ProtocolError("the server failed", url=self.url, reason=reason)
        return ServerUnavailableError("the server does not answer", url=self.url, reason=reason)

    def close(self) -> None:
        """End the connection."""
        if self.forked:
            self.closed = True
            return
        with self._guard:
            self.closed = True
            client, self._client = self._client, None
        self._woken.set()
        if client is not None:
            with contextlib.suppress(pa.ArrowException):
                client.close()


class _Outages:
    """The failed attempts at one call: which of them are worth another one."""

    def __init__(self, connection: Connection, *, safe: bool) -> None:
        self._connection = connection
        self._safe = safe
        self._begun = time.monotonic()
        self._reported = False

    def check(self, failure: Exception) -> float | None:
        """Return how long the server asks to wait; raise what no repetition changes."""
        connection = self._connection
        error = connection.error_of(failure)
        if isinstance(error, QuotaExceededError):
            return _wait_seconds(error)
        if not isinstance(error, ServerUnavailableError):
            raise error from failure
        if not self._safe and not is_unsent(failure):
            raise UnknownOutcomeError(
                "the connection was lost during the call", url=connection.url
            ) from failure
        if time.monotonic() - self._begun > _TELL_SECONDS and not self._reported:
            self._reported = True
            _log.warning("waiting for the server: url=%s %s", connection.url, error)
        return None


def is_unsent(failure: BaseException) -> bool:
    """Return whether a call certainly did not reach the server's log."""
    if getattr(failure, "extra_info", None):
        return True  # the server itself says that it did not do it
    return "failed to connect" in str(failure) or "Connection refused" in str(failure)


def _wait_seconds(error: LakebedError) -> float:
    wait = error.facts.get("wait_ms", 0)
    return wait / 1000 if isinstance(wait, int | float) else 0.0


def _location(url: str) -> tuple[str, int, bool]:
    """Return where a URL leads, as Flight says it, and whether that is by TLS."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORT
    except ValueError as error:
        raise InvalidArgumentError("not a log's URL", url=url, reason=str(error)) from error
    if parts.scheme == UNIX:
        if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
            raise InvalidArgumentError("must be lakebed+unix:// and an absolute path", url=url)
        return f"grpc+unix://{parts.path}", 0, False
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None:
        raise InvalidArgumentError(
            "the URL of a served log must be lakebed://HOST:PORT or lakebed+tls://HOST:PORT",
            scheme=parts.scheme,
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidArgumentError(
            "a URL must not contain a token: use LAKEBED_TOKEN or ClientConfig"
        )
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InvalidArgumentError("the URL of a served log must have a host and a port", url=url)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{port}", port, scheme == "grpc+tls"


def _header(token: str) -> tuple[bytes, bytes]:
    if not token.isascii() or not token.isprintable():
        raise InvalidArgumentError("token must be printable ASCII")
    return (b"authorization", b"Bearer " + token.encode())


def _check_pem(config: ClientConfig) -> None:
    """Refuse files that hold no certificates: gRPC would only find that nobody answers."""
    for what, path in (("ca", config.ca), ("cert", config.cert), ("key", config.key)):
        if path is not None and b"-----BEGIN " not in _pem(path):
            raise InvalidArgumentError("a file for TLS is not PEM", setting=what, file=path)
    if (config.cert is None) != (config.key is None):
        raise InvalidArgumentError(
            "a client certificate needs its key: set both LAKEBED_CERT and LAKEBED_KEY"
        )


def _pem(path: str) -> bytes:
    try:
        return read_file(OsDisk(), Path(path))
    except OSError as error:
        raise InvalidArgumentError(
            "a file for TLS cannot be read", file=path, reason=error.strerror
        ) from error
