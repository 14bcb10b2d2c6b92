"""Errors of the log as Flight's errors, which carry them."""

from __future__ import annotations

import pyarrow.flight as fl

from lakebed.errors import (
    AccessDeniedError,
    ClosedError,
    LakebedError,
    NotOwnerError,
    ServerUnavailableError,
    UnauthenticatedError,
)
from lakebed.wire.protocol import cut, pack_error


def flight_error(error: LakebedError) -> Exception:
    """Return an error of the log as one of Flight's, which carries it."""
    if isinstance(error, ClosedError):
        error = ServerUnavailableError("the server is stopping")
    kind = fl.FlightServerError
    if isinstance(error, UnauthenticatedError):
        kind = fl.FlightUnauthenticatedError
    elif isinstance(error, AccessDeniedError):
        kind = fl.FlightUnauthorizedError
    elif isinstance(error, ServerUnavailableError | NotOwnerError):
        kind = fl.FlightUnavailableError
    flight: Exception = kind(cut(str(error)), pack_error(error))
    return flight
