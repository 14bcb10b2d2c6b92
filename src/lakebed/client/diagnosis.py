"""Why a server cannot be reached: what is at the other end, when it is not what the URL says.

gRPC tells little about a handshake that failed, and tries again. So while the first call of a
client does not get through, this looks every few seconds: a mistake that no repetition mends is
told at once. A server that is starting or stopping is not a mistake.
"""

from __future__ import annotations

import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from lakebed.client.config import ClientConfig
from lakebed.errors import LakebedError, TlsError

_SECONDS: Final = 2.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client of HTTP/2 begins, with settings that say nothing."""
_ALERT: Final = b"\x15\x03"
"""How TLS begins to say that it did not understand."""
_SETTINGS: Final = 4


def diagnosis(url: str, port: int, config: ClientConfig) -> LakebedError | None:
    """Return the mistake that keeps a client from its server; None if there is none to be seen."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as plain:
            if parts.scheme == "lakebed":
                return _plainly(plain, host, port, url)
            return _by_tls(plain, host, url, config)
    except ssl.SSLCertVerificationError as error:
        return TlsError(
            "the server's certificate is not trusted",
            url=url,
            reason=error.verify_message,
            ca=config.ca or "those of the system",
        )
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return None  # it hangs up, as a server does that is stopping
    except ssl.SSLError as error:
        return _translate(error, url)
    except OSError:
        return None  # no server is there, or not now


def _plainly(plain: socket.socket, host: str, port: int, url: str) -> LakebedError | None:
    answer = _answer(plain)
    if answer.startswith(_ALERT) or (not answer and _speaks_tls(host, port)):
        return TlsError("the server speaks TLS: use lakebed+tls://", url=url)
    return _unless_flight(answer, url)


def _by_tls(plain: socket.socket, host: str, url: str, config: ClientConfig) -> LakebedError | None:
    context = ssl.create_default_context(cafile=config.ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # gRPC is not as strict as new Pythons are
    context.set_alpn_protocols(["h2"])
    if config.cert is not None:
        context.load_cert_chain(config.cert, config.key)
    with context.wrap_socket(plain, do_handshake_on_connect=False, server_hostname=host) as secured:
        secured.do_handshake()  # in the block: it is closed whatever the other end does
        if secured.selected_alpn_protocol() != "h2":
            return TlsError("this port does not speak Flight; is it the port of HTTP?", url=url)
        answer = _answer(secured)
        if not answer and config.cert is None:
            return _wants_certificate(url)
        return _unless_flight(answer, url)


def _answer(connection: socket.socket) -> bytes:
    """Begin as a client of HTTP/2 does; return the answer, nothing if the other end hangs up."""
    try:
        connection.sendall(_PREFACE)
        return connection.recv(64)
    except ConnectionError:
        return b""


def _speaks_tls(host: str, port: int) -> bool:
    """Begin as a client of TLS does, trusting anybody, to see whether that is understood."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def _unless_flight(answer: bytes, url: str) -> LakebedError | None:
    """See whether somebody answered as a server of HTTP/2 does: with settings."""
    if len(answer) >= 4 and answer[3] == _SETTINGS:
        return None
    if answer.startswith(b"HTTP/1"):
        return TlsError("this is the port of HTTP, not of Flight", url=url)
    return None


def _wants_certificate(url: str) -> TlsError:
    return TlsError(
        "the server requires a client certificate: set LAKEBED_CERT and LAKEBED_KEY", url=url
    )


def _translate(error: ssl.SSLError, url: str) -> LakebedError:
    reason = str(error.reason or error)
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
        return TlsError("the server does not speak TLS: use lakebed://", url=url)
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return _wants_certificate(url)
    return TlsError("no secure connection could be established", url=url, reason=reason)
