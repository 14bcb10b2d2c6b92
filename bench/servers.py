"""Redis Streams and NATS JetStream as peers: servers of their own, in a folder, on loopback.

They are measured where their programs are installed (Debian: `redis-server`, `nats-server`). A
client's package is imported when one is made.
"""

from __future__ import annotations

import asyncio
import atexit
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from bench.peers import Peer

_STARTS_WITHIN = 10.0
_TOGETHER = 1000
"""Records that are sent before answers are waited for, and fetched at once."""

Records = Generator[bytes, None, None]
"""First nothing, when whoever gives them waits; then each record as it comes."""


class RedisClient:
    """A client of a Redis stream: XADD, pipelined so many at a time."""

    def __init__(self, port: int, together: int = _TOGETHER) -> None:
        import redis

        self.port = port
        self._together = together
        self._client = redis.Redis(port=port)

    def append(self, records: list[bytes]) -> None:
        """Add a batch; the pipeline is answered when it is synced."""
        for start in range(0, len(records), self._together):
            with self._client.pipeline(transaction=False) as pipeline:
                for record in records[start : start + self._together]:
                    pipeline.xadd("log", {"v": record})
                pipeline.execute()

    def scan(self) -> int:
        """Read with XRANGE, 1,000 at a time."""
        count, start = 0, "-"
        while found := self._client.xrange("log", min=start, count=_TOGETHER):
            count += len(found)
            start = "(" + found[-1][0].decode()
        return count

    def follow(self) -> Records:
        """Return what comes from now on."""
        last = self._client.xinfo_stream("log")["last-generated-id"] if self._any() else "0"
        yield b""
        while True:
            for _, found in self._client.xread({"log": last}, block=0, count=_TOGETHER):
                for _, record in found:
                    yield record[b"v"]
                last = found[-1][0]

    def _any(self) -> bool:
        return bool(self._client.exists("log"))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class RedisStream(RedisClient):
    """A Redis of its own, with `appendfsync always`, and a client of its stream."""

    def __init__(self, folder: Path, together: int = _TOGETHER) -> None:
        folder.mkdir()
        port = free_port()
        settings = f"bind 127.0.0.1\nport {port}\ndir {folder.absolute()}\nappendonly yes\n"
        settings += 'appendfsync always\nsave ""\nlogfile redis.log\n'
        (folder / "redis.conf").write_text(settings, encoding="utf8")
        self._server = started("redis-server", str(folder / "redis.conf"), port=port)
        super().__init__(port, together)

    def close(self) -> None:
        """Stop the server."""
        super().close()
        stop(self._server)


class JetClient:
    """A client of a NATS JetStream: so many publishes on their way."""

    def __init__(self, port: int, together: int = _TOGETHER) -> None:
        import nats

        self.port = port
        self._loop = asyncio.Runner()
        self._client: Any = self._loop.run(nats.connect(f"nats://127.0.0.1:{port}"))
        self._stream: Any = self._client.jetstream(timeout=60, publish_async_max_pending=together)
        self._loop.run(self._stream.add_stream(name="log", subjects=["log"], storage="file"))

    def append(self, records: list[bytes]) -> None:
        """Publish a batch and wait for all answers."""
        self._loop.run(self._publish(records))

    async def _publish(self, records: list[bytes]) -> None:
        answers = [await self._stream.publish_async("log", record) for record in records]
        await asyncio.gather(*answers)

    def scan(self) -> int:
        """Fetch with an ordered pull consumer, 1,000 at a time."""
        return self._loop.run(self._fetch())

    async def _fetch(self) -> int:
        from nats.js import api

        total = (await self._stream.stream_info("log")).state.messages
        config = api.ConsumerConfig(ack_policy=api.AckPolicy.NONE)
        consumer = await self._stream.pull_subscribe("log", config=config)
        count = 0
        while count < total:
            count += len(await consumer.fetch(min(_TOGETHER, total - count)))
        await consumer.unsubscribe()
        return count

    def follow(self) -> Records:
        """Return what comes from now on."""
        from nats.js import api

        config = api.ConsumerConfig(
            ack_policy=api.AckPolicy.NONE, deliver_policy=api.DeliverPolicy.NEW
        )
        consumer = self._loop.run(self._stream.pull_subscribe("log", config=config))
        yield b""
        while True:
            for message in self._loop.run(consumer.fetch(1, timeout=60)):
                yield message.data

    def close(self) -> None:
        """Close the connection."""
        self._loop.run(self._client.close())
        self._loop.close()


class JetStream(JetClient):
    """A NATS of its own with `sync_interval: always`, where it knows that, and a client of it."""

    def __init__(self, folder: Path, together: int = _TOGETHER) -> None:
        folder.mkdir()
        self.durable = True
        port = free_port()
        path = folder / "nats.conf"
        path.write_text(_nats_settings(folder, port, "sync_interval: always"), encoding="utf8")
        if subprocess.run(["nats-server", "-t", "-c", path], capture_output=True).returncode:
            # Before 2.10 a server syncs every two minutes, and nothing can change that.
            self.durable = False
            path.write_text(_nats_settings(folder, port, ""), encoding="utf8")
        self._server = started("nats-server", "-c", str(path), port=port)
        super().__init__(port, together)

    def close(self) -> None:
        """Stop the server."""
        super().close()
        stop(self._server)


def installed(folder: Path) -> dict[str, Peer]:
    """Start the servers whose programs are there; say once which are not."""
    found: dict[str, Peer] = {}
    kinds: tuple[tuple[str, str, Callable[[Path], Peer]], ...] = (
        ("Redis Streams", "redis-server", RedisStream),
        ("NATS JetStream", "nats-server", JetStream),
    )
    for name, program, kind in kinds:
        if shutil.which(program) is None:
            say_once(f"{name} is left out: {program} is not installed")
        else:
            found[name] = kind(folder / program)
    return found


_SAID: set[str] = set()


def say_once(text: str) -> None:
    """Report on standard error why something is not in the table."""
    if text not in _SAID:
        _SAID.add(text)
        print(text, file=sys.stderr)


def _nats_settings(folder: Path, port: int, extra: str) -> str:
    return (
        f"listen: 127.0.0.1:{port}\nlog_file: '{folder.absolute()}/nats.log'\n"
        f"jetstream {{ store_dir: '{folder.absolute()}'\n {extra} }}\n"
    )


def free_port() -> int:
    """Return a port of loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def started(
    *command: str,
    port: int,
    within: float = _STARTS_WITHIN,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server and wait until it takes connections."""
    server = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    atexit.register(server.kill)  # a benchmark that fails leaves nothing running
    deadline = time.monotonic() + within
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return server
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                stop(server)
                raise RuntimeError(f"{command[0]} did not start") from None
            time.sleep(0.05)


def stop(server: subprocess.Popen[bytes]) -> None:
    """End a server, in good order if it can."""
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
