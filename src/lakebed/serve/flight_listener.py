"""Another listener for a Flight server that runs: how its certificate is replaced.

gRPC reads a server's certificate once, and pyarrow offers no way to replace it. So the old listener
is closed and a new one opened on the same port. The old one's connections are told to go away
(GOAWAY): calls under way on them end as they would, the next calls of these clients connect again.
Between the two listeners, for some milliseconds, connections are refused, which clients retry.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

import pyarrow.flight as fl

_log = logging.getLogger("lakebed.serve")

_TRY_SECONDS: Final = 0.05
_TRIES: Final = 600


class FlightListener(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """Listens for another server, which answers all calls."""

    def __init__(self, server: Any, location: str, middleware: Any, **tls: Any) -> None:
        self._server = server
        super().__init__(location, middleware=middleware, **tls)

    def do_action(self, context: Any, action: Any) -> Any:
        """Hand a call over."""
        return self._server.do_action(context, action)

    def list_actions(self, context: Any) -> Any:
        """Hand a call over."""
        return self._server.list_actions(context)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Hand a call over."""
        return self._server.do_get(context, ticket)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> Any:
        """Hand a call over."""
        return self._server.do_put(context, descriptor, reader, writer)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> Any:
        """Hand a call over."""
        return self._server.do_exchange(context, descriptor, reader, writer)

    def list_flights(self, context: Any, criteria: Any) -> Any:
        """Hand a call over."""
        return self._server.list_flights(context, criteria)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Hand a call over."""
        return self._server.get_flight_info(context, descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Hand a call over."""
        return self._server.get_schema(context, descriptor)


def shut_down(listener: Any, seconds: float) -> bool:
    """Close a listener's port at once; return True if its calls have ended within the time."""
    ending = threading.Thread(target=listener.shutdown, name="lakebed-serve-end", daemon=True)
    ending.start()
    ending.join(seconds)
    return not ending.is_alive()


def listen_again(
    old: Any, server: Any, location: str, middleware: Any, tls: dict[str, Any]
) -> FlightListener:
    """Close a listener, and return one on the same port that shows another certificate.

    Raises what pyarrow raises if the port cannot be had again.
    """
    shut_down(old, 0.0)
    pause = threading.Event()
    for _ in range(_TRIES - 1):
        try:
            return FlightListener(server, location, middleware, **tls)
        except Exception as error:
            _log.debug("the port is not free yet: %s", error)
            pause.wait(_TRY_SECONDS)
    return FlightListener(server, location, middleware, **tls)
