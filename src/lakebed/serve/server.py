"""A log that is served: Flight and HTTP over one embedded log, started and stopped together.

Stopping finishes what is under way: new calls are refused, those that wait are woken, put streams
are told to end and have their last acknowledgements written; then a checkpoint makes the next start
quick, and the folder is released. Whoever cannot wait for that kills the process: nothing that was
acknowledged is lost.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from lakebed.config import ServeConfig
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.host import OsDisk, read_file
from lakebed.serve.own_socket import OwnSocket
from lakebed.serve.renewal import Renewal
from lakebed.types import Closing
from lakebed.wire.private_paths import hide_folders

if TYPE_CHECKING:
    from lakebed.serve.flight import FlightServer
    from lakebed.serve.guard import Guard
    from lakebed.serve.http import HttpServer
    from lakebed.serve.meters import Meters
    from lakebed.serve.quotas import Quotas

_log = logging.getLogger("lakebed.serve")

_HAND_OVER_SECONDS: Final = 0.3
"""How long calls under way are waited for when another server is to take over."""


class ProtocolServer(Protocol):
    """A port of a further protocol."""

    name: str
    port: int

    def renew(self, context: ssl.SSLContext) -> None:
        """Use other certificates for new connections."""
        ...

    def stop(self, timeout: float) -> None:
        """Finish what is in flight, and end."""
        ...


StartProtocol = Callable[
    [EmbeddedLog, "Guard", "Quotas", "Meters", ServeConfig], "ProtocolServer | None"
]


class Server(Closing):
    """Serves an open log over the network. The log is its own from `start` to `stop`."""

    def __init__(
        self,
        log: EmbeddedLog,
        config: ServeConfig | None = None,
        *,
        for_own_processes: bool = False,
        protocols: Sequence[StartProtocol] = (),
    ) -> None:
        """Serve a log; `for_own_processes` by a Unix socket, which only this user can reach.

        `protocols` start further ports, which share the callers, limits and counters of this one.
        """
        self.log = log
        self._protocols = protocols
        self.ports: list[ProtocolServer] = []
        """The ports of further protocols."""
        self._for_own_processes = for_own_processes
        self._socket: OwnSocket | None = None
        self.config = log.config.serve if config is None else config
        self._flight: FlightServer | None = None
        self._http: HttpServer | None = None
        self._guard: Any = None
        self._renewal: Renewal | None = None
        self._stop = threading.Lock()
        self._stopped = False
        self.abandoned = False
        """Whether it has stopped while calls of clients went on that did not end in time."""

    # Where it is

    @property
    def port(self) -> int:
        """The port of Flight."""
        return 0 if self._flight is None else int(self._flight.port)

    @property
    def http_port(self) -> int:
        """The port of HTTP; -1 if there is none."""
        return -1 if self._http is None else int(self._http.port)

    @property
    def url(self) -> str:
        """What clients open; of a server on every address, those on this machine."""
        if self._socket is not None:
            return self._socket.url
        scheme = "lakebed+tls" if self.config.tls_cert else "lakebed"
        return f"{scheme}://{reachable(self.config.host)}:{self.port}"

    # Life

    def start(self) -> Self:
        """Begin to serve; an address that cannot be had is an `InvalidArgumentError`."""
        from lakebed.serve.access_log import AccessLog
        from lakebed.serve.flight import FlightServer
        from lakebed.serve.guard import Guard
        from lakebed.serve.meters import Meters
        from lakebed.serve.quotas import Quotas

        lacking = check_exposed(self.config, is_open=self.log.access.open)
        if lacking:
            _log.warning(
                "anyone who reaches this address can read and write: host=%s lacking=%s",
                self.config.host,
                "; ".join(lacking),
            )
        tls = check_startable(self.config)
        hide_folders(self.log.folder, *filter(None, [self.config.backups]))
        self._guard = Guard(self.log, self.config, for_own_processes=self._for_own_processes)
        quotas, meters = Quotas(self.config), Meters()
        if self._for_own_processes:
            self._socket = OwnSocket()
        location = "" if self._socket is None else self._socket.location
        if self.config.access_log:
            meters.access_log = AccessLog(self.config.access_log_lines_per_second)
        try:
            self._flight = FlightServer(
                log=self.log,
                guard=self._guard,
                quotas=quotas,
                meters=meters,
                config=self.config,
                location=location,
                **tls,
            )
        except Exception as error:
            self._guard.close()
            self._remove_socket()
            raise _cannot_listen(self.config.host, "port", self.config.port, error) from error
        try:
            if self.config.http_port >= 0:
                from lakebed.serve.http import start_http

                self._http = start_http(
                    self.log, self._guard, quotas, meters, self.config, ready=self._ready
                )
            for start in self._protocols:
                port = start(self.log, self._guard, quotas, meters, self.config)
                self.ports += [] if port is None else [port]
        except BaseException:
            if self._http is not None:
                self._http.stop(0.0)
            self._flight.end()
            self._guard.close()
            raise
        if self.config.tls_cert:
            self._renewal = Renewal(self.config, self._renew_tls)
        self._count(meters)
        self.log.parts.wal.announce(self.url)
        if self.log.parts.shipping is not None:
            address = address_to_advertise(replace(self.config, port=self.port))
            self.log.parts.shipping.lease.announce(address)
        _log.info("serving: url=%s http_port=%d log=%s", self.url, self.http_port, self.log.folder)
        return self

    def stop(self) -> None:
        """Finish what is under way, checkpoint, and release the log. A second call does nothing."""
        with self._stop:
            if self._stopped:
                return
            self._stopped = True
            self._finish_calls()
            if self.log.parts.replica is None:
                self._checkpoint()
            self.log.close()
            if self._flight is not None:
                self.abandoned = not self._flight.end()
            self._remove_socket()
            _log.info("stopped: log=%s", self.log.folder)

    def _checkpoint(self) -> None:
        try:
            self.log.checkpoint()
        except LakebedError as error:
            _log.error("the last checkpoint failed; the WAL has everything: %s", error)

    def hand_over(self) -> None:
        """Stop quickly: what is acknowledged is in the store, from where another server continues.

        No checkpoint is taken, and calls that do not end soon are not waited for.
        """
        with self._stop:
            if self._stopped:
                return
            self._stopped = True
            self._finish_calls(min(self.config.stop_timeout_ms / 1000, _HAND_OVER_SECONDS))
            self.log.close()
            if self._flight is not None:
                self.abandoned = not self._flight.end()
            _log.info("handed over: log=%s", self.log.folder)

    def detach(self) -> None:
        """Finish what is under way and stop to serve; the log stays open."""
        with self._stop:
            if self._stopped:
                return
            self._stopped = True
            self._finish_calls()
            self.log.parts.wal.announce("")
            if self._flight is not None:
                self.abandoned = not self._flight.end()
            self._remove_socket()

    def _remove_socket(self) -> None:
        if self._socket is not None:
            self._socket.remove()

    def reload(self) -> None:
        """Look for new certificates, and open the file of the audit again (SIGHUP)."""
        if self._renewal is not None:
            self._renewal.look()
        if self._guard is not None and self._guard.audit_file is not None:
            self._guard.audit_file.reopen()

    def _renew_tls(self) -> None:
        from lakebed.serve.http import tls_context

        flight, context = flight_tls(self.config), tls_context(self.config)
        if self._http is not None and self._http.tls is not None and context is not None:
            self._http.tls.replace(context)
        for port in self.ports:
            if (renewed := tls_context(self.config)) is not None:
                port.renew(renewed)
        if self._flight is not None and not self._flight.stopping:
            self._flight.renew(**flight)

    def _count(self, meters: Meters) -> None:
        """Have the counters of the parts shown with the metrics."""
        guard, renewal = self._guard, self._renewal
        file, keys = guard.audit_file, guard.issuer_keys
        meters.watch("audit_lost", "Audit records lost.", lambda: guard.audit_lost)
        meaning = "Audit records that the audit file could not take."
        meters.watch("audit_file_lost", meaning, lambda: 0 if file is None else file.lost)
        meaning = "New certificates taken."
        meters.watch("tls_renewals", meaning, lambda: 0 if renewal is None else renewal.renewed)
        meaning = "New certificates that could not be used."
        meters.watch(
            "tls_renewals_failed", meaning, lambda: 0 if renewal is None else renewal.failed
        )
        meaning = "Fetches of the issuer's keys that failed."
        meters.watch("oidc_fetches_failed", meaning, lambda: 0 if keys is None else keys.failures)

    def _finish_calls(self, seconds: float | None = None) -> None:
        if self._renewal is not None:
            self._renewal.close()
        if seconds is None:
            seconds = self.config.stop_timeout_ms / 1000
        if self._flight is not None:
            self._flight.begin_stop()
            left = self._flight.wait_idle(seconds)
            if left:
                _log.warning("calls did not end in time: calls=%d", left)
        if self._http is not None:
            self._http.stop(seconds)
        for port in self.ports:
            port.stop(seconds)
        if self._guard is not None:
            self._guard.close()

    def idle_seconds(self) -> float:
        """Return for how long no call has been under way."""
        return 0.0 if self._flight is None else self._flight.idle_seconds()

    def close(self) -> None:
        """Stop it."""
        self.stop()

    def __enter__(self) -> Self:
        return self if self._flight is not None else self.start()

    def _ready(self) -> tuple[bool, str]:
        """Return whether calls are served, and why not."""
        if self._flight is None or self._flight.stopping:
            return False, "the server is stopping"
        replica = self.log.parts.replica
        if replica is not None and not replica.is_current():
            return False, "the replica is behind: the store does not answer"
        broken = self.log.parts.core.broken or self.log.parts.wal.stats().poisoned
        if not broken:
            shipping = self.log.parts.shipping
            if shipping is not None and not shipping.lease.is_valid():
                return False, "another server may own the log"
            if self.log.parts.budget.disk_full:
                return False, "the disk is full: writes are refused"
            lacking = self.log.parts.wal.room_failure()
            if lacking is not None:
                return False, f"no WAL file can be made, so writes are refused: {lacking.code}"
            return True, ""
        # Whoever asks need not be known; why it has stopped may name files.
        return False, "the log has stopped; see the server's log"


def check_exposed(config: ServeConfig, *, is_open: bool) -> list[str]:
    """Refuse to serve others than this machine without TLS and tokens, unless told to.

    Gives what is lacking all the same.
    """
    if _is_loopback(config.host):
        return []
    lacking = [] if config.tls_cert else ["TLS (tls_cert and tls_key)"]
    if is_open and not (config.tls_client_ca or config.oidc_issuer):
        lacking.append("a token or a rule (`lakebed token create`)")
    if lacking and not config.insecure:
        raise InvalidArgumentError(
            "an address that others can reach needs "
            + " and ".join(lacking)
            + ", or the setting `insecure`",
            host=config.host,
        )
    return lacking


def check_startable(config: ServeConfig) -> dict[str, Any]:
    """Refuse TLS files that cannot be read, and addresses that cannot be had; give Flight's TLS."""
    from lakebed.serve.http import tls_context

    tls = flight_tls(config)
    tls_context(config)  # which says what is wrong with a certificate; Flight does not
    _check_address(config.host, "port", config.port)
    if config.http_port >= 0:
        _check_address(config.host, "http_port", config.http_port)
    return tls


def _check_address(host: str, setting: str, port: int) -> None:
    """Listen for a moment where a server will: gRPC says of no address why it cannot be had."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, setting, port, error) from error
    problem: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            problem = error
            if error.errno == errno.EADDRINUSE:
                break
        else:
            return
    if problem is not None:
        raise _cannot_listen(host, setting, port, problem) from problem


def _cannot_listen(host: str, setting: str, port: int, error: Exception) -> InvalidArgumentError:
    message = "the server cannot listen there"
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        message += f": choose another --{setting.replace('_', '-')}"
    why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return InvalidArgumentError(message, host=host, **{setting: port}, why=why)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable(host: str) -> str:
    """Return a host as it stands in a URL: one that means every address is called localhost."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            return "localhost"
    return f"[{host}]" if ":" in host else host


def address_to_advertise(config: ServeConfig) -> str:
    """Return the URL under which other machines reach a server, as its lease and errors name it."""
    host, port = config.advertise or config.host, config.port
    if config.advertise and (match := re.fullmatch(r"(.*[^:]):(\d{1,5})", host)):
        host, port = match[1], int(match[2])
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
    scheme = "lakebed+tls" if config.tls_cert else "lakebed"
    bare = ":" in host and not host.startswith("[")
    return f"{scheme}://{f'[{host}]' if bare else host}:{port}"


def flight_tls(config: ServeConfig) -> dict[str, Any]:
    """Return Flight's options for TLS; none if the server has no certificate."""
    if not config.tls_cert:
        return {}
    tls: dict[str, Any] = {
        "tls_certificates": [(_pem(config.tls_cert), _pem(config.tls_key))],
    }
    if config.tls_client_ca:
        tls["verify_client"] = True
        tls["root_certificates"] = _pem(config.tls_client_ca)
    return tls


def _pem(path: str) -> bytes:
    try:
        return read_file(OsDisk(), Path(path))
    except OSError as error:
        raise InvalidArgumentError(
            "a file of the TLS settings cannot be read", file=path, reason=error.strerror
        ) from error
