"""What a call of Flight is begun with: its caller, counted from its headers to its end.

gRPC gives each put stream a thread when its headers arrive, and Arrow waits there for the first
message. The middleware runs in between, so it is where such a call is authenticated and counted:
raising there frees the thread at once. All other calls reach the server as soon as the middleware
has passed them, and are authenticated there, where their address is known for the audit.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow.flight as fl

if TYPE_CHECKING:
    from lakebed.serve.guard import Principal
    from lakebed.serve.slots import RequestSlot

_log = logging.getLogger("lakebed.serve")

PUT: Final = fl.FlightMethod.DO_PUT
OFFERED: Final = frozenset(
    [
        fl.FlightMethod.DO_ACTION,
        fl.FlightMethod.DO_GET,
        fl.FlightMethod.DO_PUT,
        fl.FlightMethod.GET_FLIGHT_INFO,
        fl.FlightMethod.LIST_ACTIONS,
        fl.FlightMethod.LIST_FLIGHTS,
    ]
)
"""Methods that the server has; the others are refused before anything of them is read."""


class Caller(fl.ServerMiddleware):  # type: ignore[misc]  # pyarrow ships no types
    """One call: what its headers say about its caller, and what is held until it ends."""

    def __init__(self, token: str | None) -> None:
        self.token = token
        self.principal: Principal | None = None
        """Set if it was authenticated by its headers alone."""
        self.administrator = False
        """Whether its principal administers the log."""
        self.slot: RequestSlot | None = None
        self.progress = 0.0
        """When a part of its answer was last handed to gRPC."""
        self._ends: list[tuple[Callable[[Any], object], Any]] = []

    def at_end(self, function: Callable[[Any], object], argument: Any) -> None:
        """Have a function called when the call has ended, and its answer is sent.

        It must not raise. Every call has one or two: an `ExitStack` takes several times as long.
        """
        self._ends.append((function, argument))

    def hold(self, context: contextlib.AbstractContextManager[None]) -> None:
        """Enter a context, and leave it when the call has ended."""
        stack = contextlib.ExitStack()
        stack.enter_context(context)
        self.at_end(contextlib.ExitStack.close, stack)

    def end(self) -> None:
        """Release what the call has held."""
        while self._ends:
            function, argument = self._ends.pop()
            function(argument)

    def call_completed(self, _exception: Any) -> None:
        """Release what the call has held."""
        self.end()


class Callers(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Takes the token out of a call's headers, and lets the call begin or refuses it."""

    def __init__(self, begin: Callable[[Any, Caller], None]) -> None:
        super().__init__()
        self._begin = begin

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> Caller:
        """Look at the headers of a call."""
        caller = Caller(_token(headers))
        try:
            self._begin(info.method, caller)
        except fl.FlightError:
            caller.end()
            raise
        except Exception as error:
            caller.end()
            _log.exception("a call failed in an unforeseen way: method=%s", info.method)
            raise fl.FlightInternalError("the server failed") from error
        return caller


def _token(headers: dict[str, list[Any]]) -> str | None:
    """Return the token of a call, None without one; what is no single token is never valid."""
    values = headers.get("authorization")  # names of HTTP/2 headers are in lower case
    if not values:
        return None
    scheme, _, token = str(values[0]).partition(" ")
    return token.strip() if scheme.lower() == "bearer" and len(values) == 1 else ""
