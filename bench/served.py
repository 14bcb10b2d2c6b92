"""A log that is served by a process of its own, on loopback, and the peers that are served too."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lakebed
from bench.logs import TOPIC, settings, warm_log
from bench.servers import JetStream, RedisStream, say_once
from lakebed.types import Closing

_STOPS_WITHIN = 60.0


class Served(Closing):
    """A server of a log, and a client of it.

    The log is in its steady state and does nothing automatically, or it is a new one with defaults.
    """

    def __init__(self, folder: Path, partitions: int, *, steady: bool = True) -> None:
        if steady:
            warm_log(folder, partitions).close()
            (folder / "lakebed.toml").write_text(_settings(), encoding="utf8")
        command = [sys.executable, "-m", "lakebed.cli", "serve", "--data", str(folder)]
        command += ["--port", "0", "--http-port", "0", "--kafka-port", "0"]
        with (folder.parent / f"{folder.name}-serve.log").open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        atexit.register(self._process.kill)  # a benchmark that fails leaves nothing running
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said.startswith("serving "):
            self._process.kill()
            raise RuntimeError(f"the server did not start: {said!r}")
        self.url, http = said.partition(" at ")[2].strip().split(", and ")
        self.port, self.http_port = (int(each.rpartition(":")[2]) for each in (self.url, http))
        self.kafka_port = int(self._process.stdout.readline().rpartition(":")[2])
        self.log = lakebed.open(self.url)
        if not steady:
            self.log.get_or_create_topic(TOPIC, partitions=partitions)

    def close(self) -> None:
        """Stop the server in good order."""
        self.log.close()
        self._process.terminate()
        try:
            self._process.wait(_STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _settings() -> str:
    """Return the settings of `bench.logs` as the server's file has them."""
    given = settings()
    names = ("memtable_bytes", "wal_bytes", "checkpoint_interval_ms", "retention_interval_ms")
    lines = [f"{name} = {getattr(given, name)}" for name in names]
    return "\n".join([*lines, "[lake]", "iceberg = false"]) + "\n"


def served_peers(folder: Path, together: int) -> dict[str, Any]:
    """Start Redis and NATS, if installed, with so many records in flight; return both by name."""
    found: dict[str, Any] = {}
    if shutil.which("redis-server") is None:
        say_once("Redis Streams are left out: redis-server is not installed")
    else:
        found["Redis Streams"] = RedisStream(folder / "redis", together)
    if shutil.which("nats-server") is None:
        say_once("NATS JetStream is left out: nats-server is not installed")
    else:
        stream = JetStream(folder / "nats", together)
        name = "NATS JetStream" if stream.durable else "NATS JetStream, synced every 2 minutes"
        found[name] = stream
    return found
