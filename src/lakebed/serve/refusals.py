"""What the log lines say of refused calls and connections; a flood of them is only counted."""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import Final

from lakebed.errors import (
    AccessDeniedError,
    LakebedError,
    ProtocolError,
    StopError,
    UnauthenticatedError,
)

_log: Final = logging.getLogger("lakebed.serve")

_LINES_PER_SECOND: Final = 10


class _Limit:
    """Lets so many lines pass in a second; the rest are counted, and the count is told."""

    def __init__(self, most: int, counted: str = "more calls were refused: calls=%d") -> None:
        self._most = most
        self._counted = counted
        self._guard = threading.Lock()
        self._second = 0
        self._told = 0
        self._untold = 0

    def may_tell(self) -> bool:
        """Return whether the next line may be written."""
        with self._guard:
            second = int(monotonic())
            if second != self._second:
                untold, self._untold, self._told, self._second = self._untold, 0, 0, second
                if untold:
                    _log.warning(self._counted, untold)
            self._told += 1
            if self._told <= self._most:
                return True
            self._untold += 1
            return False


_limit: Final = _Limit(_LINES_PER_SECOND)
_connections: Final = _Limit(1, "more lines about HTTP connections were left out: lines=%d")


class OncePerSecond(logging.Filter):
    """Lets one record a second pass; the next one says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._second = -1
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a record is to be logged."""
        with self._guard:
            second = int(monotonic())
            if second == self._second:
                self._left_out += 1
                return False
            self._second, left_out, self._left_out = second, self._left_out, 0
        record.msg = str(record.msg).strip()
        if left_out:
            record.msg += f": lines left out before: {left_out}"
        return True


def tell(call: str, error: LakebedError, peer: str) -> None:
    """Log that a call failed, if those who look after the server should know."""
    if isinstance(error, StopError):
        _log.error("the log has stopped: call=%s %s", call, error)
    elif isinstance(error, ProtocolError):
        if _limit.may_tell():
            _log.warning("a request does not follow the protocol: call=%s %s", call, error)
    elif isinstance(error, AccessDeniedError | UnauthenticatedError) and _limit.may_tell():
        call_facts = {} if "call" in error.facts else {"call": call}
        _log.warning("a call was refused: %s", error, extra={**call_facts, "peer": peer})


def tell_upgrade(topic: str, principal: str, peer: str, error: LakebedError) -> None:
    """Log that a WebSocket was turned away."""
    if _limit.may_tell():
        context = {"topic": topic, "principal": principal, "peer": peer}
        extra = {
            name: value for name, value in context.items() if value and name not in error.facts
        }
        _log.info("a WebSocket was refused: %s", error, extra=extra)


def tell_connections(message: str, **facts: object) -> None:
    """Log what happened to HTTP connections, in one line a second."""
    if _connections.may_tell():
        _log.warning(message, extra={name: value for name, value in facts.items() if value != ""})
