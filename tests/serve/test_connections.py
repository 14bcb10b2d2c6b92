"""Which connections are shut down: decided by what the kernel and the server say of them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from typing import Any

import pytest

from lakebed import ServeConfig
from lakebed.serve.connections import Connections, host_of
from lakebed.serve.sockets import Seen, Sockets
from tests.waiting import until

MIB = 1 << 20


class Told:
    """Stands for the sockets of a process: a test says what is seen."""

    def __init__(self) -> None:
        self.received: dict[str, int] = {}
        self.closed: list[str] = []

    def look(self) -> list[Seen]:
        """Return what the test says."""
        return [Seen(peer, 3, size) for peer, size in self.received.items()]

    def shut_down(self, seen: Seen) -> bool:
        """Note that a connection is shut down."""
        self.closed.append(seen.peer)
        del self.received[seen.peer]
        return True


class Watched:
    """Connections with a clock that a test moves."""

    def __init__(self, *, asks_for_token: bool = True, **settings: Any) -> None:
        self.now = 0.0
        self.told = Told()
        self.reasons: list[str] = []
        self.connections = Connections(
            ServeConfig(**settings),
            asks_for_token=lambda: asks_for_token,
            count_cut=self.reasons.append,
            clock=lambda: self.now,
        )

    def look(self, **received: int) -> list[str]:
        """Look once; return the connections that were shut down."""
        self.told.received.update(received)
        self.told.closed.clear()
        self.connections.look(self.told)  # type: ignore[arg-type]
        return sorted(self.told.closed)


def test_a_connection_is_known_once_a_call_of_it_was_authenticated() -> None:
    watched = Watched(flight_unauthenticated_bytes_max=MIB)
    assert watched.look(a=MIB, b=MIB) == []
    watched.connections.note_heard("a")
    assert watched.look(a=2 * MIB, b=MIB + 1) == ["b"]
    watched.now = 1000.0
    assert watched.look(c=1) == []
    watched.now = 1031.0
    assert watched.look() == ["c"]
    assert watched.look() == []


def test_a_log_without_tokens_gives_every_connection_the_same_room() -> None:
    watched = Watched(asks_for_token=False, flight_unauthenticated_bytes_max=MIB)
    assert watched.look(a=100 * MIB) == []
    assert watched.look(a=145 * MIB) == ["a"]


def test_a_known_connection_may_send_what_its_streams_may() -> None:
    """Beyond what has reached the server; each stream may have a message under way."""
    watched = Watched()
    watched.connections.note_heard("a")
    assert watched.look(a=1000) == []
    with watched.connections.stream("a"), watched.connections.stream("a"):
        assert watched.look(a=300 * MIB) == []
        watched.connections.note_heard("a")
        assert watched.look(a=301 * MIB) == []
    assert watched.look(a=301 * MIB + 144 * MIB) == []
    assert watched.look(a=301 * MIB + 145 * MIB) == ["a"]
    assert watched.reasons == ["a request is too large"]
    assert not watched.connections._streams


def test_connections_that_are_not_known_have_a_limit_together() -> None:
    """The largest go first; a client that has only begun is left alone."""
    watched = Watched(flight_unauthenticated_bytes_max=MIB)
    sizes = {f"peer{number}": MIB - 1000 * number for number in range(9)}
    assert watched.look(**sizes, small=1000) == ["peer0"]
    assert watched.look() == []


def test_the_newest_connections_beyond_a_limit_go_and_unknown_ones_first() -> None:
    watched = Watched(flight_connections_max=20, flight_address_connections_max=2)
    peers = [f"ipv4:10.0.0.{number % 10}:{number}" for number in range(20)]
    assert watched.look(**dict.fromkeys(peers, 1)) == []
    watched.now = 1.0
    newest = "ipv4:10.0.0.1:99"
    watched.connections.note_heard(newest)
    assert watched.look(**{newest: 1}) == ["ipv4:10.0.0.1:11"]
    watched.now = 2.0
    assert watched.look(**{"ipv4:10.0.0.77:1": 1}) == ["ipv4:10.0.0.77:1"]
    assert watched.reasons == ["too many connections of one address", "too many connections"]


def test_a_connection_is_cut_when_the_server_asks_for_it() -> None:
    watched = Watched()
    watched.look(a=1, b=1)
    watched.connections.cut("a", "it is to go")
    watched.connections.cut("gone", "it is not there")
    assert watched.look() == ["a"]
    assert watched.reasons == ["it is to go"]


def test_each_reason_is_logged_at_most_once_a_second_with_what_was_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A reason that is new is logged at once, however lately another one was."""
    watched = Watched()
    watched.look(a=1, b=1, c=1, d=1)
    for peer, reason, now in (("a", "one", 0.0), ("b", "one", 0.1), ("c", "two", 0.2)):
        watched.now = now
        watched.connections.cut(peer, reason)
        watched.look()
    watched.now = 1.5
    watched.connections.cut("d", "one")
    watched.look()
    said = [record.getMessage().partition("reason=")[2] for record in caplog.records]
    assert said == ["one more=0", "two more=0", "one more=1"]


def test_an_address_is_a_peer_without_its_port() -> None:
    assert host_of("ipv4:10.0.0.1:5000") == "ipv4:10.0.0.1"
    assert host_of("unix:path") == "unix:path"


# Real sockets


@contextlib.contextmanager
def _accepted(family: socket.AddressFamily, host: str) -> Any:
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.bind((host, 0))
        listening.listen()
        port = listening.getsockname()[1]
        with socket.create_connection((host, port)) as client:
            server, _ = listening.accept()
            with server:
                yield port, client, server


def test_the_connections_of_a_port_are_seen_with_the_bytes_that_came() -> None:
    for family, host, peer in (
        (socket.AF_INET, "127.0.0.1", "ipv4:127.0.0.1"),
        (socket.AF_INET6, "::1", "ipv6:%5B::1%5D"),
    ):
        accepted = _accepted(family, host)
        with accepted as (port, client, server), contextlib.closing(Sockets(port)) as sockets:
            client.sendall(bytes(5000))
            until(lambda: sockets.look()[0].received == 5000)  # it is called here
            (seen,) = sockets.look()
            assert host_of(seen.peer) == peer
            assert seen.fd == server.fileno()
            assert sockets.shut_down(seen)
            assert client.recv(1) == b""
            server.close()
            assert sockets.look() == []


def test_a_descriptor_of_another_connection_is_left_alone() -> None:
    accepted = _accepted(socket.AF_INET, "127.0.0.1")
    with accepted as (port, client, server), contextlib.closing(Sockets(port)) as sockets:
        (seen,) = sockets.look()
        assert not sockets.shut_down(seen._replace(peer="ipv4:127.0.0.1:1"))
        assert not sockets.shut_down(seen._replace(fd=99_999))
        server.sendall(b"still there")
        assert client.recv(100) == b"still there"


def test_a_descriptor_that_is_used_again_has_its_new_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with contextlib.closing(Sockets(address[1])) as sockets, contextlib.ExitStack() as stack:
            for _ in range(3):
                client = stack.enter_context(socket.create_connection(address))
                with listening.accept()[0]:
                    (seen,) = sockets.look()
                    assert seen.peer == f"ipv4:127.0.0.1:{client.getsockname()[1]}"
                assert sockets.look() == []


def test_a_connection_is_seen_and_shut_down_without_a_free_descriptor() -> None:
    """In another process: pytest and its plugins need descriptors."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DESCRIPTORS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "EMFILE\nseen\nshut down\n"), done.stderr


_WITHOUT_DESCRIPTORS = """
import errno, os, resource, socket
from lakebed.serve.sockets import Sockets

listening = socket.create_server(("127.0.0.1", 0))
sockets = Sockets(listening.getsockname()[1])
client = socket.create_connection(listening.getsockname())
server = listening.accept()[0]
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
try:
    while True:
        os.dup(0)
except OSError as error:
    print(errno.errorcode[error.errno])
(seen,) = sockets.look()
print("seen")
assert sockets.shut_down(seen)
assert client.recv(1) == b""
print("shut down")
"""
