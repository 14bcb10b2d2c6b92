"""Which of several servers a client calls: the one that owns the log, as far as is known.

A server that does not own the log refuses a call with `NotOwnerError`, which names the owner if the
server knows it. The client goes there; without a name, and when a server does not answer, it goes
to the next one of its URL. An owner that the URL does not name is followed as well, but never from
TLS to an address without it.
"""

from __future__ import annotations

import threading

from lakebed.client.address import Address, parse_addresses
from lakebed.errors import InvalidArgumentError, NotOwnerError
from lakebed.host.forks import watch_forks


class OwnerRoute:
    """The addresses of a log's servers, and the one in use. Any thread."""

    def __init__(self, url: str) -> None:
        self._addresses = parse_addresses(url)
        self._current = self._addresses[0]
        self._guard = threading.Lock()
        watch_forks(self)

    def after_fork(self) -> None:
        """Take a lock that no thread of the parent holds."""
        self._guard = threading.Lock()

    @property
    def current(self) -> Address:
        """The address to call."""
        return self._current

    @property
    def has_several(self) -> bool:
        """Whether another server may answer if this one does not."""
        return len(self._addresses) > 1

    @property
    def tls(self) -> bool:
        """Whether connections use TLS."""
        return self._addresses[0].tls

    def others(self) -> list[Address]:
        """Return the addresses of the URL that are not in use."""
        return [address for address in self._addresses if address != self._current]

    def leave(self, address: Address) -> None:
        """Go to the next server of the URL, unless another thread has left this one already."""
        with self._guard:
            if address == self._current:
                self._current = self._next(address)

    def follow(self, address: Address, error: NotOwnerError) -> None:
        """Go to the owner that a server named; to the next server if it named none."""
        owner = self._owner(error)
        with self._guard:
            if address != self._current:
                return
            usable = owner is not None and owner.location != address.location
            self._current = owner if owner is not None and usable else self._next(address)

    def use(self, address: Address) -> None:
        """Go to a server that has said that it owns the log."""
        with self._guard:
            self._current = address

    def _next(self, address: Address) -> Address:
        if address not in self._addresses:
            return self._addresses[0]
        following = self._addresses.index(address) + 1
        return self._addresses[following % len(self._addresses)]

    def _owner(self, error: NotOwnerError) -> Address | None:
        """Return the address that an error names, as this client may use it."""
        try:
            (owner,) = parse_addresses(str(error.facts.get("address", "")))
        except (InvalidArgumentError, ValueError):
            return None
        addresses = (address for address in self._addresses if address.location == owner.location)
        return next(addresses, owner if owner.tls == self.tls and owner.port else None)
