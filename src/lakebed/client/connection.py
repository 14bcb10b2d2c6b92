"""The way to a server: one connection, calls and tickets over it, and what is tried again.

A call that certainly did not reach the server is repeated until `retry_ms` have passed, as is one
that may be made twice. Whether any other one happened when the connection broke under way is not
known: it raises `UnknownOutcomeError`.

A URL may name several servers of one log. `client/route.py` decides which of them is called; calls
are repeated at another one as they are repeated at a server that was restarted.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from lakebed.client.address import Address
from lakebed.client.config import ClientConfig
from lakebed.client.diagnosis import diagnosis
from lakebed.client.route import OwnerRoute
from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    LakebedError,
    NotOwnerError,
    PoisonedError,
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
_ELSEWHERE_SECONDS: Final = 2.0
"""How long a server is waited for if the URL names another one: an owner that is paused, or cut
off, must not hold up its clients."""
_WAIT_MS_ELSEWHERE: Final = 2_000
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
        self.route = OwnerRoute(url)
        self._options: dict[str, Any] = {"generic_options": list(_OPTIONS)}
        if self.route.tls:
            _check_pem(config)
            if config.ca is not None:
                self._options["tls_root_certs"] = _pem(config.ca)
            if config.cert is not None and config.key is not None:
                self._options["cert_chain"] = _pem(config.cert)
                self._options["private_key"] = _pem(config.key)
        quieten()
        headers = [] if config.token is None else [_header(config.token)]
        self._headers = headers
        self.options = fl.FlightCallOptions(headers=headers)
        self._clients: dict[str, Any] = {}
        """The Flight client of each location that was called."""
        self._log_id = ""
        """The log that the first server serves; the others must serve the same one."""
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
        if self._clients:
            _process.has_parents_grpc = True
            keep_forever(dict(self._clients))

    def check_process(self) -> None:
        """Raise `ClosedError` in a process that was forked from the one that opened the log."""
        if self.forked or _process.has_parents_grpc:
            raise self.fork_error()

    def fork_error(self) -> ClosedError:
        """Return the error of everything that a forked process tries."""
        return ClosedError(
            "a served log cannot be used in a process that was forked while one was open: start"
            " the process by multiprocessing's spawn method, and open the log again there",
            url=self.url,
        )

    @property
    def client(self) -> Any:
        """The Flight client of the server in use."""
        address = self.route.current
        client = self._clients.get(address.location)
        if client is None or self.closed or self.forked or _process.has_parents_grpc:
            client = self._connect(address)
        return client

    def _connect(self, address: Address) -> Any:
        """Connect to a server; to a second one only if it serves the same log."""
        client = self._client_of(address)
        if self._log_id:
            self._check_hello(self._ask(client), address)
        with self._guard:
            self._clients[address.location] = client
        return client

    def _ask(self, client: Any) -> Any:
        """Return what a server says of itself."""
        action = fl.Action("hello", pack({}))
        try:
            (reply,) = client.do_action(action, self._within(self._hello_seconds()))
        except (pa.ArrowException, OSError) as failure:
            if getattr(failure, "extra_info", None):
                raise
            # In the words of gRPC for a call that was not sent: whatever is called was not.
            raise fl.FlightUnavailableError(f"failed to connect: {failure}") from failure
        return unpack(memoryview(reply.body))

    def _client_of(self, address: Address) -> Any:
        """Return a Flight client of an address, which need not be one that was called before."""
        self.check_process()
        with self._guard:
            if self.closed:
                raise ClosedError("the log is closed", url=self.url)
            client = self._clients.get(address.location)
            return fl.connect(address.location, **self._options) if client is None else client

    def _check_hello(self, said: Any, address: Address) -> None:
        """Refuse a server of another protocol, or of another log than the first one serves."""
        if not isinstance(said, dict) or said.get("protocol") != VERSION:
            raise ProtocolError("the server speaks another protocol", url=address.url)
        if self._log_id and said.get("log") != self._log_id:
            raise InvalidArgumentError(
                "the servers of a URL must serve one log",
                url=address.url,
                log=self._log_id,
                got=said.get("log"),
            )

    def call(self, name: str, /, **request: Any) -> Any:
        """Make a call and return its reply."""
        body = pack(request)
        action = fl.Action(name, body)
        begun = time.monotonic()
        operation = OPERATIONS[name]
        is_slow = operation.pace is Pace.SLOW

        def attempt() -> Any:
            options = self.options
            if not is_slow:
                options = self._in_time(begun, may_go_elsewhere=operation.safe)
            results = list(self.client.do_action(action, options))
            if len(results) != 1:
                raise ProtocolError("a call has one reply", call=name, got=len(results))
            return unpack(memoryview(results[0].body))

        return self.repeat(attempt, safe=operation.safe)

    def _in_time(self, begun: float, wait_ms: int = 0, *, may_go_elsewhere: bool = False) -> Any:
        """Return the options of an attempt of a call: the one place that computes its deadline.

        What is left of `retry_ms`, but no less than a slow server needs, and how long the server
        waits for records; 60 seconds at most. What another server can be asked as well is given
        only what a slow server needs.
        """
        left = begun + self.config.retry_ms / 1000 - time.monotonic()
        least = max(_LEAST_SECONDS, left)
        if may_go_elsewhere and self.route.has_several:
            least = _LEAST_SECONDS
        return self._within(min(_QUICK_SECONDS, least + wait_ms / 1000))

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
            address = self.route.current
            try:
                (reply,) = self.client.do_action(action, self._within(self._hello_seconds()))
            except (pa.ArrowException, OSError) as failure:
                unavailable = isinstance(self.error_of(failure), ServerUnavailableError)
                if unavailable and address.port and time.monotonic() >= look_at:
                    mistake = diagnosis(address.url, address.port, self.config)
                    look_at = time.monotonic() + _LOOK_SECONDS
                    if mistake is not None:
                        raise mistake from failure
                raise
            return unpack(memoryview(reply.body))

        said = self.repeat(attempt, safe=True, seconds=seconds)
        self._check_hello(said, self.route.current)
        self._log_id = str(said.get("log", ""))
        return dict(said)

    def _hello_seconds(self) -> float:
        return _ELSEWHERE_SECONDS if self.route.has_several else _HELLO_SECONDS

    def wait_ms_max(self, most: int) -> int:
        """Return how long a request may wait at the server: not long if there is another one."""
        return min(most, _WAIT_MS_ELSEWHERE) if self.route.has_several else most

    def look_elsewhere(self) -> bool:
        """Ask the other servers whether one of them owns the log; if so, use it from now on."""
        for address in self.route.others():
            try:
                client = self._client_of(address)
                said = self._ask(client)
                self._check_hello(said, address)
            except (LakebedError, pa.ArrowException, OSError):
                continue  # it does not own the log, or is gone as well
            if said.get("role", "owner") == "owner":
                with self._guard:
                    self._clients[address.location] = client
                self.route.use(address)
                return True
        return False

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
                wait_ms = ticket.get("wait_ms") or 0
                options = self._in_time(begun, wait_ms, may_go_elsewhere=True)
            return self.client.do_get(packed, options).read_all()

        table = self.repeat(attempt, safe=True)
        metadata = dict(table.schema.metadata or {})
        said = metadata.pop(b"lakebed", None)
        return (
            table.replace_schema_metadata(metadata or None),
            None if said is None else unpack(said),
        )

    def stream(self, ticket: dict[str, Any]) -> Any:
        """Begin the stream of batches that a ticket stands for."""
        packed = fl.Ticket(pack(ticket))
        return self.repeat(lambda: self.client.do_get(packed, self.options), safe=True)

    def repeat(
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

    def may_pass(self, error: LakebedError, *, safe: bool) -> bool:
        """Return True if a repetition may succeed, at this server or at another one.

        A log that has stopped stays stopped until it is opened again; another server may own it.
        """
        if isinstance(error, ServerUnavailableError | NotOwnerError):
            return True
        stopped = isinstance(error, UnknownOutcomeError | PoisonedError)
        return safe and stopped and self.route.has_several

    def leave(self, address: Address, error: LakebedError) -> None:
        """Call another server from now on: the one that an error names, or the next one."""
        if isinstance(error, NotOwnerError):
            self.route.follow(address, error)
        elif self.may_pass(error, safe=True):
            self.route.leave(address)

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
            clients, self._clients = self._clients, {}
        self._woken.set()
        for client in clients.values():
            with contextlib.suppress(pa.ArrowException):
                client.close()


class _Outages:
    """The failed attempts at one call: which of them are worth another one."""

    def __init__(self, connection: Connection, *, safe: bool) -> None:
        self._connection = connection
        self._safe = safe
        self._address = connection.route.current
        self._begun = time.monotonic()
        self._reported = False

    def check(self, failure: Exception) -> float | None:
        """Return how long the server asks to wait; raise what no repetition changes."""
        connection = self._connection
        error = connection.error_of(failure)
        if isinstance(error, QuotaExceededError):
            return _wait_seconds(error)
        if not connection.may_pass(error, safe=self._safe):
            raise error from failure
        if not self._safe and not is_unsent(failure):
            raise UnknownOutcomeError(
                "the connection was lost during the call", url=connection.url
            ) from failure
        connection.leave(self._address, error)
        self._address = connection.route.current
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
