"""How many streams or calls are open at a time: in all, of one principal, and from one address.

A slot is taken when a call begins and released when it ends. Its principal may be known only later
(a certificate), and so may its address; each is counted from then on. Administrators have a reserve
that other callers cannot use up, and no limit for one principal. On a log that knows no callers
every caller is `anonymous` and counts as an administrator; the limit for an address holds there.
"""

from __future__ import annotations

import threading
from typing import Final

from lakebed.config import ServeConfig
from lakebed.errors import QuotaExceededError
from lakebed.types import ANONYMOUS

BUSY_WAIT_MS: Final = 100
"""When to try again where it is not known when there will be room."""


class RequestSlot:
    """One open stream or call."""

    __slots__ = ("address", "administrator", "name", "released")

    def __init__(self, name: str, *, administrator: bool) -> None:
        self.name = name
        """The principal; empty while it is not known."""
        self.administrator = administrator
        self.address = ""
        self.released = False


class Slots:
    """Counts the open streams, or calls, of a server. Any thread."""

    def __init__(self, config: ServeConfig, what: str) -> None:
        self._what = what
        self._most = config.connections_max
        self._reserved = min(config.admin_streams_reserved, config.connections_max // 2)
        self._principal_most = config.principal_streams_max
        self._address_most = config.address_streams_max
        self._guard = threading.Lock()
        self._names: dict[str, int] = {}
        self._addresses: dict[str, int] = {}
        self.count = 0
        """How many are open."""

    def take(self, name: str = "", *, administrator: bool = False) -> RequestSlot:
        """Count another one, or raise `QuotaExceededError`; without a name it is not known yet."""
        administrator = administrator or name == ANONYMOUS
        slot = RequestSlot(name, administrator=administrator)
        with self._guard:
            most = self._most if administrator else self._most - self._reserved
            if self.count >= most:
                raise QuotaExceededError(
                    f"the server has too many {self._what}",
                    principal=name,
                    connections_max=self._most,
                    wait_ms=BUSY_WAIT_MS,
                )
            self._check_principal(name, administrator=administrator)
            self.count += 1
            self._names[name] = self._names.get(name, 0) + 1
        return slot

    def assign(self, slot: RequestSlot, name: str, *, administrator: bool) -> None:
        """Count a slot for its principal, once that is known, or raise `QuotaExceededError`."""
        with self._guard:
            if slot.released or slot.name == name:
                return
            self._check_principal(name, administrator=administrator)
            _count_down(self._names, slot.name)
            slot.name, slot.administrator = name, administrator
            self._names[name] = self._names.get(name, 0) + 1

    def locate(self, slot: RequestSlot, address: str) -> None:
        """Count a slot for the address that it came from, or raise `QuotaExceededError`."""
        if slot.administrator and slot.name != ANONYMOUS:
            return
        with self._guard:
            if slot.released or slot.address:
                return
            count = self._addresses.get(address, 0)
            if count >= self._address_most:
                raise QuotaExceededError(
                    f"the address has too many {self._what}",
                    address=address,
                    address_streams_max=self._address_most,
                    wait_ms=BUSY_WAIT_MS,
                )
            slot.address = address
            self._addresses[address] = count + 1

    def release(self, slot: RequestSlot) -> None:
        """Count a slot no longer; a second time does nothing."""
        with self._guard:
            if slot.released:
                return
            slot.released = True
            self.count -= 1
            _count_down(self._names, slot.name)
            if slot.address:
                _count_down(self._addresses, slot.address)

    def _check_principal(self, name: str, *, administrator: bool) -> None:
        if not administrator and self._names.get(name, 0) >= self._principal_most:
            raise QuotaExceededError(
                f"the principal has too many {self._what}",
                principal=name,
                principal_streams_max=self._principal_most,
                wait_ms=BUSY_WAIT_MS,
            )


def _count_down(counts: dict[str, int], name: str) -> None:
    left = counts.get(name, 0) - 1
    if left > 0:
        counts[name] = left
    else:
        counts.pop(name, None)
