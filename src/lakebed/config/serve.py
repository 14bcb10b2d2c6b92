"""Settings of the process that serves a log over the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lakebed import limits
from lakebed.config.checks import check_bounds, refuse
from lakebed.config.oidc import check_oidc
from lakebed.config.principal_rules import parse_principal_rules


@dataclass(frozen=True)
class ServeConfig:
    """Settings of the process that serves a log over the network."""

    host: str = "127.0.0.1"
    """The address to listen on. Any but a loopback one needs TLS and tokens, or `insecure`."""

    port: int = 4747
    """The port of Arrow Flight, the one of `lakebed://host:port`; 0 for any that is free."""

    http_port: int = 4748
    """The port of HTTP: REST, health, metrics; 0 for any that is free, -1 for no HTTP."""

    advertise: str = ""
    """Host, or host and port, under which clients reach this server if it is one of several; empty
    for `host`, or this machine's name if that means every address.
    """

    kafka_port: int = -2
    """The port for Kafka clients; 0 for any that is free, -1 for none. -2 is 9092 (a free one if
    `port` is 0), if `lakebed[kafka]` is installed, `host` is a loopback address, and it is free.
    """

    kafka_advertised_address: str = ""
    """`host:port` under which Kafka clients find the server. Without it, the name that the client
    used for TLS, or the address that it is connected to.
    """

    kafka_auto_create_topics: bool = True
    """Whether a Kafka client creates a topic by asking for it, if it may manage topics."""

    tls_cert: str = ""
    """File with the certificate that the server shows, PEM; empty for no TLS."""

    tls_key: str = ""
    """File with the certificate's key, PEM."""

    tls_client_ca: str = ""
    """File with the certificates of those who sign for clients, PEM.

    With it every client must show a certificate that one of them has signed.
    """

    tls_reload_ms: int = 10_000
    """How often the files of TLS are looked at for new certificates; 0 for SIGHUP alone."""

    tls_principal: str = "name"
    """Which kind of name in a client's certificate is taken: `name`, `uri` or `email`."""

    tls_principal_rules: str = ""
    """How that name becomes a principal's: RULE:pattern/replacement/[LU], DEFAULT."""

    insecure: bool = False
    """Whether to serve others than this machine without TLS, or before there is a token."""

    connections_max: int = 2_000
    """Streams that are served at a time; the next ones are refused until one ends."""

    principal_streams_max: int = 1_000
    """Streams of one principal at a time, and its other calls; administrators are not limited."""

    address_streams_max: int = 1_500
    """Streams from one address at a time; those of administrators do not count."""

    admin_streams_reserved: int = 16
    """Streams out of `connections_max` that only administrators can open; at most half of it."""

    flight_connections_max: int = 4_000
    """TCP connections of Flight at a time; the newest beyond it are closed."""

    flight_address_connections_max: int = 1_500
    """TCP connections of Flight from one address at a time; the newest beyond it are closed."""

    flight_unauthenticated_bytes_max: int = 17 * limits.MIB
    """Bytes that a connection may send before one of its calls is authenticated."""

    flight_unauthenticated_ms: int = 30_000
    """How long a connection may stay open before one of its calls is authenticated."""

    flight_stall_timeout_ms: int = 30_000
    """How long a client may take nothing of an answer before its connection is closed."""

    request_bytes_max: int = 64 * limits.MIB
    """The largest request accepted."""

    inflight_bytes_max: int = 256 * limits.MIB
    """Bytes of all requests that are being served at a time."""

    principal_inflight_bytes_max: int = 128 * limits.MIB
    """Bytes of one principal's requests that are being served at a time."""

    principal_bytes_per_second: int = 0
    """How many bytes one principal may write and read in a second; 0 for no limit."""

    principal_requests_per_second: int = 0
    """How many requests one principal may make in a second; 0 for no limit."""

    http_address_connections_max: int = 1_500
    """HTTP connections of one address at a time; its longest idle one makes room for the next."""

    http_principal_requests_max: int = 256
    """HTTP requests of one principal that are served at a time."""

    http_address_requests_max: int = 512
    """HTTP requests from one address that are served at a time."""

    http_body_timeout_ms: int = 30_000
    """How long the body of an HTTP request may take, beside one second for each 64 KiB."""

    http_stall_timeout_ms: int = 30_000
    """How long an HTTP client may take nothing of its answer before its connection is closed."""

    http_handshake_timeout_ms: int = 10_000
    """How long the TLS handshake of an HTTP connection may take."""

    stop_timeout_ms: int = 30_000
    """How long a stopping server waits for the requests that it has begun."""

    backups: str = ""
    """The folder in which the server puts backups that a client asks for; empty for none."""

    log_format: str = "text"
    """How the server's own log lines are written: `text` or `json`, one object a line."""

    audit: bool = True
    """Whether refused calls and administrative acts are written to the topic `__audit`."""

    audit_file: str = ""
    """File that the audit is also appended to, one JSON object a line; empty for none."""

    access_log: bool = False
    """Whether each request has a log line: principal, call, names, bytes, time, outcome."""

    access_log_lines_per_second: int = 1_000
    """Lines of the access log in a second; the requests beyond them are only counted."""

    oidc_issuer: str = ""
    """The issuer whose tokens (JWT) are accepted beside the log's own; empty for none."""

    oidc_audience: str = ""
    """The audience that such a token must name: this server."""

    oidc_jwks: str = ""
    """Where the issuer's public keys are (JWKS): an https:// URL, or the path of a file."""

    oidc_algorithms: str = "RS256,ES256"
    """The algorithms that a token may be signed with."""

    oidc_principal_claim: str = "sub"
    """The claim that names the principal; a dot leads into a claim that is an object."""

    oidc_principal_rules: str = ""
    """How the claim becomes a principal's name: RULE:pattern/replacement/[LU], DEFAULT."""

    oidc_roles_claim: str = ""
    """The claim whose values stand for roles; empty: a token brings no roles."""

    oidc_roles: Mapping[str, str] = field(default_factory=dict)
    """Values of that claim, and the role that each stands for; others mean nothing."""

    oidc_leeway_ms: int = 30_000
    """How far the clocks of issuer and server may differ."""

    oidc_refresh_ms: int = 300_000
    """How often the issuer's keys are fetched."""

    oidc_stale_ms: int = 86_400_000
    """How long keys are used that could not be fetched again."""

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        check_bounds(self, SERVE_BOUNDS)
        check_oidc(self)
        for name in ("insecure", "audit", "access_log", "kafka_auto_create_topics"):
            if not isinstance(getattr(self, name), bool):
                refuse(name, getattr(self, name), "true or false")
        for name in (
            "host",
            "advertise",
            "tls_cert",
            "tls_key",
            "tls_client_ca",
            "tls_principal_rules",
            "backups",
            "audit_file",
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.isprintable():
                refuse(name, value, "text")
        if not self.host or self.host != self.host.strip():
            refuse("host", self.host, "an address or a name")
        if self.log_format not in LOG_FORMATS:
            refuse("log_format", self.log_format, "one of " + " | ".join(LOG_FORMATS))
        if self.tls_principal not in TLS_PRINCIPALS:
            refuse("tls_principal", self.tls_principal, "one of " + " | ".join(TLS_PRINCIPALS))
        parse_principal_rules("tls_principal_rules", self.tls_principal_rules)
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            refuse(missing, "", "given too: a certificate and its key belong together")
        if self.tls_client_ca and not self.tls_cert:
            refuse("tls_cert", "", "given too: tls_client_ca needs TLS")
        if self.port and self.port == self.http_port:
            refuse("http_port", self.http_port, "another one than port")
        if self.kafka_port > 0 and self.kafka_port in (self.port, self.http_port):
            refuse("kafka_port", self.kafka_port, "another one than port and http_port")
        _check_kafka_address(self.kafka_advertised_address)


def _check_kafka_address(address: object) -> None:
    """Raise if clients cannot connect to the address."""
    if address == "":
        return
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65_536
    bare = host.strip("[]")
    if not is_port or not bare or not host.isprintable() or " " in host:
        refuse("kafka_advertised_address", address, "host:port")
    if bare in ("0.0.0.0", "::"):  # noqa: S104  # it is refused
        refuse("kafka_advertised_address", address, "an address that clients can connect to")


LOG_FORMATS: Final = ("text", "json")
TLS_PRINCIPALS: Final = ("name", "uri", "email")
SERVE_BOUNDS: Final = {
    "port": (0, 65_535),
    "http_port": (-1, 65_535),
    "kafka_port": (-2, 65_535),
    "connections_max": (1, 1_000_000),
    "principal_streams_max": (1, 1_000_000),
    "address_streams_max": (1, 1_000_000),
    "admin_streams_reserved": (0, 1_000_000),
    "flight_connections_max": (1, 1_000_000),
    "flight_address_connections_max": (1, 1_000_000),
    "flight_unauthenticated_bytes_max": (64 * limits.KIB, 2 * limits.GIB),
    "flight_unauthenticated_ms": (100, 3_600_000),
    "flight_stall_timeout_ms": (100, 3_600_000),
    "request_bytes_max": (64 * limits.KIB, limits.ENTRY_BYTES_MAX),
    "inflight_bytes_max": (64 * limits.KIB, 1024 * limits.GIB),
    "principal_inflight_bytes_max": (64 * limits.KIB, 1024 * limits.GIB),
    "principal_bytes_per_second": (0, 1024 * limits.GIB),
    "principal_requests_per_second": (0, 1_000_000_000),
    "http_address_connections_max": (1, 1_000_000),
    "http_principal_requests_max": (1, 1_000_000),
    "http_address_requests_max": (1, 1_000_000),
    "http_body_timeout_ms": (100, 3_600_000),
    "http_stall_timeout_ms": (100, 3_600_000),
    "http_handshake_timeout_ms": (100, 3_600_000),
    "stop_timeout_ms": (0, 3_600_000),
    "tls_reload_ms": (0, 86_400_000),
    "access_log_lines_per_second": (1, 1_000_000),
    "oidc_leeway_ms": (0, 600_000),
    "oidc_refresh_ms": (1_000, 86_400_000),
    "oidc_stale_ms": (1_000, 30 * 86_400_000),
}
