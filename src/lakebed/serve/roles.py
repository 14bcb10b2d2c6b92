"""A server of a log in a store: standby, then owner, then standby again.

| role | answers | leaves the role |
|---|---|---|
| standby | `NotOwnerError` with the owner's address | when the lease has expired or was released |
| owner | everything | when it was fenced, has stopped, or is told to hand over |

A standby listens on the ports on which it serves once it owns the log. An owner that was taken
over closes the log, which refuses everything by then, and follows the new owner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lakebed.config import LogConfig, ServeConfig
from lakebed.engine.log import EmbeddedLog
from lakebed.engine.ownership import Takeover
from lakebed.engine.standby import Standby
from lakebed.errors import InvalidArgumentError, LakebedError, NotOwnerError
from lakebed.serve.server import Server, StartProtocol, address_to_advertise, check_startable
from lakebed.serve.standby_listener import StandbyListener

_log = logging.getLogger("lakebed.serve")

_LOOK_SECONDS: Final = 0.05
_ASK_SECONDS: Final = 1.0
"""How often an owner asks the store whether it is to hand over."""
_PORT_SECONDS: Final = 30.0
"""How long a port is waited for that this process has used a moment ago."""

Report = Callable[[str, str], None]
"""Called with each new role and the URL."""


class Roles:
    """Runs the roles of one server, one after the other. One thread runs; any thread stops."""

    def __init__(
        self,
        folder: Path,
        config: LogConfig,
        serve: ServeConfig,
        *,
        standby: bool,
        report: Report | None = None,
        protocols: Sequence[StartProtocol] = (),
    ) -> None:
        """Serve the log; with `standby`, wait while another process owns it, and follow it.

        An owner starts the ports of `protocols` too, see `Server`.
        """
        self._protocols = protocols
        self._folder = folder
        self._waits = standby
        self._log_config = config
        self._config = serve
        self._report = report or (lambda _role, _url: None)
        self._stopping = threading.Event()
        self._yield_seconds = 0.0
        """How long the next standby lets another one take over first."""
        self._standby: Standby | None = None
        self._guard = threading.Lock()
        self.server: Server | None = None
        """The server, while this process owns the log."""
        self.abandoned = False

    def run(self) -> None:
        """Follow, own, follow again, until `stop`; hand the log over then."""
        while not self._stopping.is_set():
            log = self._follow()
            if log is not None:
                self._own(log)
                if not self._waits and not self._stopping.is_set():
                    raise NotOwnerError(
                        "another process has taken over the log; serve it with --standby to follow"
                    )

    def stop(self) -> None:
        """End the role and return from `run`."""
        self._stopping.set()
        with self._guard:
            if self._standby is not None:
                self._standby.close()

    def reload(self) -> None:
        """Look for new certificates, if this process owns the log."""
        if self.server is not None:
            self.server.reload()

    # Standby

    def _follow(self) -> EmbeddedLog | None:
        """Return the log once this process owns it; None if it is to stop."""
        standby = Standby(self._folder, self._log_config, yield_seconds=self._yield_seconds)
        self._yield_seconds = 0.0
        with self._guard:
            self._standby = standby
        if self._stopping.is_set():
            return None
        listener = self._listen(standby)
        try:
            self._config = replace(self._config, port=listener.port, http_port=listener.http_port)
            self._report("standby", address_to_advertise(self._config))
            _import_all(self._config)
            return self._take_over(standby)
        finally:
            listener.stop()

    def _listen(self, standby: Standby) -> StandbyListener:
        tls = self._wait_for_port(lambda: check_startable(self._config))

        def refuse() -> NotOwnerError:
            return NotOwnerError("this server is a standby", address=standby.owner_address())

        def figures() -> dict[str, object]:
            view = standby.view
            return {
                "role": "standby",
                "address": standby.owner_address(),
                "owner_term": 0 if view.lease is None else view.lease.term,
                "replica_index": view.index,
                "replica_slot": view.slot,
                "replica_age_ms": _age_ms(view.read_at),
            }

        return StandbyListener(self._config, refuse, figures, **tls)

    def _take_over(self, standby: Standby) -> EmbeddedLog | None:
        if not self._waits:
            return self._open(Takeover(address_to_advertise(self._config)))
        while not self._stopping.is_set():
            watch = standby.follow()
            if watch is None:
                return None
            began = time.monotonic()
            try:
                log = self._open(Takeover(address_to_advertise(self._config), watch))
            except NotOwnerError as error:
                _log.info("another server was first: %s", error)
                continue
            _log.info("took over: ms=%d", (time.monotonic() - began) * 1000)
            return log
        return None

    def _open(self, takeover: Takeover) -> EmbeddedLog:
        return EmbeddedLog.open(self._folder, self._log_config, takeover=takeover)

    # Owner

    def _own(self, log: EmbeddedLog) -> None:
        server = Server(log, self._config, protocols=self._protocols)
        try:
            self._wait_for_port(server.start)
        except BaseException:
            log.close()
            raise
        self.server = server
        self._report("owner", server.url)
        ask_at = time.monotonic()
        while not self._stopping.wait(_LOOK_SECONDS) and not _is_over(log):
            if self._waits and time.monotonic() >= ask_at:
                if _is_asked(log):
                    self._yield_seconds = self._log_config.wal.lease_ms / 1000
                    _log.info("an operator asks this server to hand over")
                    break
                ask_at = time.monotonic() + _ASK_SECONDS
        if not self._stopping.is_set():
            _log.warning("this server does not own the log any more; it becomes a standby")
        self.server = None
        server.hand_over()
        self.abandoned = server.abandoned

    def _wait_for_port(self, start: Callable[[], Any]) -> Any:
        """Start to listen; the port may be closing still that this process has used."""
        until = time.monotonic() + _PORT_SECONDS
        while True:
            try:
                return start()
            except InvalidArgumentError as error:
                used = "Address already in use" in str(error.facts.get("why", ""))
                if not used or self._config.port == 0 or time.monotonic() > until:
                    raise
            if self._stopping.wait(_LOOK_SECONDS):
                raise LakebedError("the server is stopping")


def _import_all(config: ServeConfig) -> None:
    """Import what an owner needs now: it takes longer than taking over does."""
    from lakebed.serve import access_log, flight, guard, meters, quotas  # noqa: F401

    if config.http_port >= 0:
        import uvicorn  # noqa: F401

        from lakebed.serve import http_app, record_socket  # noqa: F401


def _is_over(log: EmbeddedLog) -> bool:
    """Return True if this process cannot acknowledge anything in the log any more."""
    shipping = log.parts.shipping
    lost = shipping is not None and shipping.lost is not None
    return lost or log.parts.core.broken is not None or bool(log.parts.wal.stats().poisoned)


def _is_asked(log: EmbeddedLog) -> bool:
    """Return True if an operator asks for a hand-over; False as well while the store is away."""
    shipping = log.parts.shipping
    try:
        return shipping is not None and shipping.is_asked_to_hand_over()
    except LakebedError as error:
        _log.debug("the store does not say whether to hand over: %s", error)
        return False


def _age_ms(read_at: float) -> int:
    return int((time.monotonic() - read_at) * 1000) if read_at else -1
