"""Certificates that are replaced while a server runs: looked at now and then, and when asked to.

New files are used by both ports for new connections, if they fit together; if not, the old ones
stay, and the log lines say why. Connections that are open keep the certificates they began with.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lakebed.config import ServeConfig
from lakebed.errors import LakebedError

_log = logging.getLogger("lakebed.serve")

_Print = tuple[tuple[int, int, int] | None, ...]
_NO_TICKETS: Final = 0


class LiveContext:
    """The TLS context of a listener, of which each handshake uses the newest."""

    def __init__(self, first: ssl.SSLContext) -> None:
        # A ticket would bring a client back without a look at its certificate.
        first.num_tickets = _NO_TICKETS
        first.options |= ssl.OP_NO_TICKET
        first.sni_callback = self._choose
        self._newest = first

    def replace(self, context: ssl.SSLContext) -> None:
        """Use another context from the next handshake on."""
        context.num_tickets = _NO_TICKETS
        context.options |= ssl.OP_NO_TICKET
        self._newest = context

    def _choose(self, connection: Any, name: str | None, first: ssl.SSLContext) -> None:
        """Choose the context of a handshake, also of a client that names no host."""
        connection.requested_name = name  # which Kafka clients are told to come back to
        newest = self._newest
        if newest is not first:
            connection.context = newest


class Renewal:
    """Watches the files of the TLS settings in a thread. Any thread may ask for a look."""

    def __init__(self, config: ServeConfig, renew: Callable[[], None]) -> None:
        self._files = [config.tls_cert, config.tls_key, config.tls_client_ca]
        self._seconds = config.tls_reload_ms / 1000
        self._renew = renew
        self._seen = self._look()
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self.renewed = 0
        """How often new certificates were taken."""
        self.failed = 0
        """How often new files could not be used."""
        if self._seconds:
            threading.Thread(target=self._run, name="lakebed-tls", daemon=True).start()

    def look(self) -> None:
        """Take new certificates, if the files have changed."""
        with self._guard:
            seen = self._look()
            if seen == self._seen or self._ended.is_set():
                return
            self._seen = seen
            try:
                self._renew()
            except LakebedError as error:
                self.failed += 1
                _log.warning("new certificates cannot be used, the old ones stay: %s", error)
            except Exception:
                self.failed += 1
                self._seen = ()  # the next look tries again
                _log.exception("new certificates could not be taken")
            else:
                self.renewed += 1
                _log.info("new certificates are used: tls_cert=%s", self._files[0])

    def close(self) -> None:
        """Look no more; waits for a look that has begun."""
        self._ended.set()
        with self._guard:
            pass

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self.look()

    def _look(self) -> _Print:
        return tuple(map(_print_of, self._files))


def _print_of(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced."""
    try:
        status = Path(path).stat() if path else None
    except OSError:
        return None
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)
