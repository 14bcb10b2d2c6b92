"""HTTP requests that are worked on at a time: of one principal, from one address, and in all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakebed import limits
from lakebed.errors import QuotaExceededError

if TYPE_CHECKING:
    from lakebed.config import ServeConfig

_BUSY_WAIT_MS: Final = 1_000
"""When to try again: when a place is free is not known."""


class Places:
    """The requests of one server. To be used in its event loop."""

    def __init__(self, config: ServeConfig) -> None:
        self._principal_most = config.http_principal_requests_max
        self._address_most = config.http_address_requests_max
        self._all = 0
        self._principals: dict[str, int] = {}
        self._addresses: dict[str, int] = {}

    def check(self, principal: str, address: str, *, administers: bool) -> None:
        """Raise `QuotaExceededError` if there is no place; a few are kept for administrators."""
        if self._principals.get(principal, 0) >= self._principal_most:
            raise too_many("requests of this principal", self._principal_most)
        if self._addresses.get(address, 0) >= self._address_most:
            raise too_many("requests from this address", self._address_most)
        most = limits.HTTP_REQUESTS_MAX + (limits.HTTP_RESERVE if administers else 0)
        if self._all >= most:
            raise too_many("requests", most)

    def take(self, principal: str, address: str) -> None:
        """Count a request that is worked on."""
        self._all += 1
        self._principals[principal] = self._principals.get(principal, 0) + 1
        self._addresses[address] = self._addresses.get(address, 0) + 1

    def leave(self, principal: str, address: str) -> None:
        """Count a request no longer."""
        self._all -= 1
        for counts, name in ((self._principals, principal), (self._addresses, address)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


def too_many(what: str, most: int) -> QuotaExceededError:
    """Return the error of one request too many."""
    return QuotaExceededError(f"the server has too many {what}", most=most, wait_ms=_BUSY_WAIT_MS)
