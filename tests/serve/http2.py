"""A client that sends HTTP/2 frames by hand: calls that no gRPC library would make."""

from __future__ import annotations

import contextlib
import socket

from tests.serve.support import ServerProcess, raw_socket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE = "/arrow.flight.protocol.FlightService/"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_FRAME_BYTES = 16_384
_END_STREAM, _END_HEADERS = 1, 4
_ANSWER_SECONDS = 90.0


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def _length(value: int) -> bytes:
    """Return the length of a text in a header: seven bits, and more bytes if they do not do."""
    if value < 127:
        return bytes([value])
    rest, encoded = value - 127, [127]
    while rest >= 128:
        encoded.append(rest % 128 + 128)
        rest //= 128
    return bytes([*encoded, rest])


def _header(name: str, value: str) -> bytes:
    """Return a header as literals that are not indexed."""
    texts = [text.encode() for text in (name, value)]
    return b"\x00" + b"".join(_length(len(text)) + text for text in texts)


class Http2:
    """A connection on which calls are begun and need not be ended."""

    def __init__(self, server: ServerProcess) -> None:
        self.socket: socket.socket = raw_socket(server)
        self.socket.sendall(PREFACE + frame(_SETTINGS, 0, 0, b""))
        self._next = 1

    def begin(self, method: str, token: str | None = None) -> int:
        """Send the headers of a call, and nothing else; return the number of its stream."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": SERVICE + method,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        block = b"".join(_header(name, value) for name, value in headers.items())
        stream, self._next = self._next, self._next + 2
        self.socket.sendall(frame(_HEADERS, _END_HEADERS, stream, block))
        return stream

    def send(self, stream: int, data: bytes) -> None:
        """Send data of a call, no more than its first window allows."""
        for start in range(0, len(data), _FRAME_BYTES):
            part = data[start : start + _FRAME_BYTES]
            self.socket.sendall(frame(_DATA, 0, stream, part))

    def wait_for_ends(self, count: int) -> bytes:
        """Read until the server has ended so many calls; return the headers of its answers."""
        self.socket.settimeout(_ANSWER_SECONDS)
        stream = self.socket.makefile("rb")
        headers = []
        while count:
            head = stream.read(9)
            assert len(head) == 9, "the connection ended"
            payload = stream.read(int.from_bytes(head[:3], "big"))
            if head[3] == _HEADERS:
                headers.append(payload)
                count -= bool(head[4] & _END_STREAM)
        return b"".join(headers)

    def ended(self) -> bool:
        """Read until the server has closed the connection."""
        return is_ended(self.socket)

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def is_ended(connection: socket.socket) -> bool:
    """Read until the server has closed a connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65_536):
            pass
    return True
