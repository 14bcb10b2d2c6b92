"""The TCP connections of one port, as the kernel shows them to the process that accepted them."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from lakebed.host.open_descriptors import OpenDescriptors

_COOKIE: Final = 57
"""`SO_COOKIE`: a number that no other socket has had since the machine started."""
_COOKIE_BYTES: Final = 8
_TCP_INFO_BYTES: Final = 256
_RECEIVED: Final = struct.Struct("@Q")
_RECEIVED_AT: Final = 128
"""Where `tcpi_bytes_received` is in Linux's `struct tcp_info`."""


class Seen(NamedTuple):
    """A connection as the kernel shows it."""

    peer: str
    """As gRPC names it, such as `ipv4:127.0.0.1:50000`."""
    fd: int
    received: int


class Sockets:
    """The connections that this process has accepted on a port. One thread at a time.

    It works without a free descriptor too: then connections are to be shut down above all.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._descriptors = OpenDescriptors()
        self._peers: dict[int, tuple[object, str | None]] = {}
        """The identity and peer of each socket, by descriptor; None if it is no such connection."""

    def close(self) -> None:
        """Close what it keeps open; a second time does nothing."""
        self._descriptors.close()

    def look(self) -> list[Seen]:
        """Return the connections that are open."""
        connections: list[Seen] = []
        descriptors = self._descriptors.list()
        for fd in descriptors:
            with contextlib.suppress(OSError):  # it is no socket, or was closed since
                seen = self._look(fd)
                if seen is not None:
                    connections.append(seen)
        if len(self._peers) > len(descriptors):
            left = set(descriptors)
            self._peers = {fd: peer for fd, peer in self._peers.items() if fd in left}
        return connections

    def _look(self, fd: int) -> Seen | None:
        # No copy of the descriptor: should it be another one's by now, this reads a wrong number
        # once. Neither call releases the interpreter lock.
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
        try:
            identity = _identity(connection)
            before = self._peers.get(fd)
            if before is None or before[0] != identity:
                before = self._peers[fd] = (identity, self._peer(fd))
            return None if before[1] is None else Seen(before[1], fd, _count_received(connection))
        finally:
            connection.detach()

    def _peer(self, fd: int) -> str | None:
        try:
            with self._borrow(fd) as connection:
                return _peer_of(connection, self._port)
        except OSError:
            return None  # it listens, or is gone

    def shut_down(self, seen: Seen) -> bool:
        """Shut a connection down, unless its descriptor is another one's by now."""
        with contextlib.suppress(OSError), self._borrow(seen.fd) as connection:
            if _peer_of(connection, self._port) == seen.peer:
                connection.shutdown(socket.SHUT_RDWR)
                return True
        return False

    @contextlib.contextmanager
    def _borrow(self, fd: int) -> Iterator[socket.socket]:
        """Hold a copy of a descriptor as a socket, whatever becomes of the descriptor."""
        with self._descriptors.copy(fd) as copy:
            connection = socket.socket(fileno=copy)
            try:
                yield connection
            finally:
                connection.detach()


def _identity(connection: socket.socket) -> object:
    """Return what tells a socket from every other one; raise `OSError` for what is no socket."""
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _COOKIE, _COOKIE_BYTES)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            raise
        return os.fstat(connection.fileno()).st_ino  # a kernel without cookies


def _count_received(connection: socket.socket) -> int:
    """Return how many bytes a connection has received."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])


def _peer_of(connection: socket.socket, port: int) -> str | None:
    """Return the peer of a connection to a port, as gRPC names it; None for any other socket."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    if connection.type != socket.SOCK_STREAM or connection.getsockname()[1] != port:
        return None
    host, peer_port = connection.getpeername()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return f"ipv6:%5B{host}%5D:{peer_port}"
        address = address.ipv4_mapped
    return f"ipv4:{address}:{peer_port}"
