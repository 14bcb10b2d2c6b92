"""What the log lines say of refused calls and connections; a flood of them is only counted."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
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
_REASONS_MAX: Final = 100
"""Reasons that are remembered; the code has fewer."""


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
_connections: Final = defaultdict[str, _Limit](
    lambda: _Limit(1, "more lines about HTTP connections were left out: lines=%d")
)
"""By what is told, of which there are few."""


class OncePerSecond(logging.Filter):
    """Lets one record a second pass for each reason; the next one says how many were left out.

    A reason is a text without its values, and where the code raised: so bad requests in any number
    do not hide a fault of the server.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._last: dict[object, tuple[int, int]] = {}
        """By reason: the second of the last line, and how many were left out since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a record is to be logged."""
        reason = _reason(record)
        with self._guard:
            now = int(monotonic())
            second, left_out = self._last.get(reason, (-1, 0))
            if second == now:
                self._last[reason] = (now, left_out + 1)
                return False
            self._last[reason] = (now, 0)
            if len(self._last) > _REASONS_MAX:
                del self._last[next(iter(self._last))]
        record.msg = str(record.msg).strip()
        if left_out:
            record.msg += f": lines left out before: {left_out}"
        return True


def _reason(record: logging.LogRecord) -> object:
    """Return what distinguishes a record from those that say the same with other values."""
    kind, _, trace = record.exc_info or (None, None, None)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    line = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return record.levelno, record.msg, kind, line


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
    """Log what happened to HTTP connections, in one line a second for each message."""
    if _connections[message].may_tell():
        _log.warning(message, extra={name: value for name, value in facts.items() if value != ""})
