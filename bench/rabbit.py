"""RabbitMQ as a peer: a broker of its own on loopback, and a client that speaks just enough AMQP.

It is measured where its program is installed (Debian: `rabbitmq-server`). Two kinds of queue keep
records on disk: a `quorum` queue syncs before it confirms and forgets what was consumed; a `stream`
keeps everything and leaves syncing to the system. pika encodes what is said once for a connection;
its own publishing waits for each confirmation, so that a batch is written to the socket here.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.servers import free_port, started, stop

PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""Debian's program itself: the one in the path changes to another user."""

_STARTS_WITHIN = 60.0
_RECV_BYTES = 1 << 18
_METHOD, _BODY, _FRAME_END = 1, 3, b"\xce"
_CHANNEL = 1
_ACK = (60, 80)
_REFUSALS = ((60, 120), (10, 50), (20, 40))
"""A record was not taken, or the connection or the channel is closed."""
_PREFETCH = 1000

Frame = tuple[int, bytes]
"""Its kind, and what is in it."""


def program() -> str | None:
    """Return the path of the program, if it is installed."""
    found = shutil.which("rabbitmq-server")
    return PROGRAM if found and Path(PROGRAM).exists() else found


class Broker:
    """A RabbitMQ with its data, names and ports to itself."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        place = folder.absolute()
        self.port, names, others = (free_port() for _ in range(3))
        (folder / "plugins").write_text("[].\n", encoding="ascii")
        environment = {
            **os.environ,
            "HOME": str(place),  # of the secret that Erlang makes
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(others),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        # Erlang would start its name server by itself, and leave it running.
        command = ("epmd", "-address", "127.0.0.1", "-port", str(names))
        self._names = started(*command, port=names, environment=environment)
        try:
            self._server = started(
                program() or PROGRAM, port=self.port, within=_STARTS_WITHIN, environment=environment
            )
        except BaseException:
            stop(self._names)
            raise

    def close(self) -> None:
        """Stop the broker and its name server."""
        stop(self._server)
        stop(self._names)


class Connection:
    """One connection with one channel on which publishes are confirmed."""

    def __init__(self, port: int, connected: socket.socket | None = None) -> None:
        from pika import spec

        self.socket = connected or socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        start = self._answer(0, spec.Connection.Start)
        self.version = _text(start.server_properties.get("version", ""))
        who = {"mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"}
        self._say(0, spec.Connection.StartOk(client_properties={}, **who))
        self._answer(0, spec.Connection.Tune)
        self._say(0, spec.Connection.TuneOk(channel_max=1, frame_max=131_072, heartbeat=0))
        self._call(0, spec.Connection.Open(virtual_host="/"), spec.Connection.OpenOk)
        self._call(_CHANNEL, spec.Channel.Open(), spec.Channel.OpenOk)
        self._call(_CHANNEL, spec.Confirm.Select(), spec.Confirm.SelectOk)

    def declare(self, queue: str, kind: str) -> None:
        """Make a durable queue of a kind, if it is not there."""
        from pika import spec

        made = spec.Queue.Declare(queue=queue, durable=True, arguments={"x-queue-type": kind})
        self._call(_CHANNEL, made, spec.Queue.DeclareOk)

    def consume(self, queue: str) -> None:
        """Have records sent from the first one on."""
        from pika import spec

        self._call(_CHANNEL, spec.Basic.Qos(prefetch_count=_PREFETCH), spec.Basic.QosOk)
        given = spec.Basic.Consume(queue=queue, arguments={"x-stream-offset": "first"})
        self._call(_CHANNEL, given, spec.Basic.ConsumeOk)

    def acknowledge(self, tag: int) -> None:
        """Report that all records up to this one have come."""
        payload = struct.pack(">HHQB", 60, 80, tag, 1)
        self.socket.sendall(_frame(_METHOD, payload))

    def frames(self) -> list[Frame]:
        """Wait for what comes; return the frames that are whole."""
        data = self.socket.recv(_RECV_BYTES)
        if not data:
            raise ConnectionError("the broker hung up")
        found, self._buffer = split(self._buffer + data)
        return found

    def close(self) -> None:
        """Hang up."""
        self.socket.close()

    def _call(self, channel: int, method: Any, answer: type) -> Any:
        self._say(channel, method)
        return self._answer(channel, answer)

    def _say(self, channel: int, method: Any) -> None:
        from pika import frame

        self.socket.sendall(frame.Method(channel, method).marshal())

    def _answer(self, channel: int, kind: Any) -> Any:
        from pika import frame

        while True:
            used, found = frame.decode_frame(self._buffer)
            if found is None:
                received = self.socket.recv(_RECV_BYTES)
                if not received:
                    raise ConnectionError("the broker has hung up")
                self._buffer += received
            else:
                self._buffer = self._buffer[used:]
                if not isinstance(found.method, kind) or found.channel_number != channel:
                    raise RuntimeError(f"RabbitMQ refused: {found.method}")
                return found.method


def split(data: bytes) -> tuple[list[Frame], bytes]:
    """Take the whole frames from the front of what came; return them and the rest."""
    found, at = [], 0
    while len(data) - at >= 8:
        size = int.from_bytes(data[at + 3 : at + 7], "big")
        if len(data) - at < size + 8:
            break
        found.append((data[at], data[at + 7 : at + 7 + size]))
        at += size + 8
    return found, data[at:]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, _CHANNEL, len(payload)) + payload + _FRAME_END


def publisher(queue: str) -> Callable[[bytes], bytes]:
    """Return a function that makes the frames of a publish of a record that is to be kept."""
    from pika import frame, spec

    given = spec.Basic.Publish(exchange="", routing_key=queue)
    method = frame.Method(_CHANNEL, given).marshal()
    heads: dict[int, bytes] = {}

    def frames(record: bytes) -> bytes:
        size = len(record)
        if size not in heads:
            properties = spec.BasicProperties(delivery_mode=2)
            heads[size] = method + frame.Header(_CHANNEL, size, properties).marshal()
        return heads[size] + _frame(_BODY, record)

    return frames


def confirmed(kind: int, payload: bytes) -> int:
    """Return the number up to which (or which alone) a frame confirms, 0 if it does not."""
    if kind != _METHOD:
        return 0
    method = struct.unpack_from(">HH", payload)
    if method in _REFUSALS:
        raise RuntimeError(f"RabbitMQ refused a record: {payload!r}")
    return int.from_bytes(payload[4:12], "big") if method == _ACK else 0


class RabbitClient:
    """A client of a queue: a batch of publishes, then their confirmations."""

    def __init__(self, port: int, kind: str) -> None:
        self.port = port
        self.kind = self._queue = kind
        self._connection = Connection(port)
        self._connection.declare(self._queue, kind)
        self._frames = publisher(self._queue)
        self._sent = 0

    @property
    def version(self) -> str:
        """Return the version that the broker tells."""
        return self._connection.version

    def append(self, records: list[bytes]) -> None:
        """Publish a batch and wait until all of it is confirmed."""
        waiting = set(range(self._sent + 1, self._sent + len(records) + 1))
        self._sent += len(records)
        self._connection.socket.sendall(b"".join(map(self._frames, records)))
        while waiting:
            for kind, payload in self._connection.frames():
                if tag := confirmed(kind, payload):
                    if payload[12] & 1:  # this one and all before
                        waiting = {each for each in waiting if each > tag}
                    else:
                        waiting.discard(tag)

    def scan(self) -> int:
        """Consume from the first record on, as many as were appended here."""
        reader = Connection(self.port)
        reader.consume(self._queue)
        count = told = 0
        while count < self._sent:
            for kind, _payload in reader.frames():
                count += kind == _BODY
            if count - told >= _PREFETCH // 2:
                told = count
                reader.acknowledge(told)
        reader.close()
        return count

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class RabbitQueue(RabbitClient):
    """A broker of its own, and a client of one queue of it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._broker = Broker(folder)
        try:
            super().__init__(self._broker.port, kind)
        except BaseException:
            self._broker.close()
            raise

    def close(self) -> None:
        """Stop the broker."""
        super().close()
        self._broker.close()
