"""The access log: one line for each request that has ended. Off unless `access_log` is set.

What a line says rides on the principal of its call, which is a new object for each call: the guard
adds the names that it checks, the quotas the bytes that they count. So a stream has the bytes of
all its messages. Requests without a known caller are in the audit, and not here.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from lakebed.serve.logs import mask_tokens

_log: Final = logging.getLogger("lakebed.access")
_NAMES_MAX: Final = 5


class CallFacts:
    """What is known of one call when it ends. For the threads of that call."""

    __slots__ = ("names", "nbytes")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.nbytes = 0

    def name(self, names: Any) -> None:
        """Add the topics or groups that a call is about."""
        for name in names[:_NAMES_MAX]:
            text = mask_tokens(str(name)[:200])
            if text not in self.names and len(self.names) < _NAMES_MAX:
                self.names.append(text)


class AccessLog:
    """Writes lines, so many in a second; of the rest one line tells how many there were."""

    def __init__(self, lines_per_second: int) -> None:
        self._most = lines_per_second
        self._guard = threading.Lock()
        self._second = 0
        self._written = 0
        self._more = 0

    def request(self, principal: Any, call: str, outcome: str, seconds: float) -> None:
        """Write the line of a request, if it may be written."""
        facts = getattr(principal, "facts", None)
        if facts is None or not self._may_write():
            return
        _log.info(
            "request",
            extra={
                "principal": principal.name,
                "peer": principal.peer,
                "call": call,
                "names": ",".join(facts.names),
                "bytes": facts.nbytes,
                "ms": round(seconds * 1000, 3),
                "outcome": outcome,
            },
        )

    def _may_write(self) -> bool:
        with self._guard:
            second = int(time.monotonic())
            more = 0
            if second != self._second:
                more, self._more, self._written, self._second = self._more, 0, 0, second
            self._written += 1
            passed = self._written <= self._most
            self._more += not passed
        if more:
            _log.info("more requests were served: requests=%d", more)
        return passed
