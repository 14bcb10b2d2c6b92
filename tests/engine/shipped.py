"""Logs in a store that is a folder: opened on one machine after another, which are folders too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lakebed
from lakebed import LakeConfig, LogConfig, WalConfig
from lakebed.engine.log import EmbeddedLog


class Machines:
    """A store, and machines that open the log in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        self.store.mkdir(exist_ok=True)

    def config(self, **wal: Any) -> LogConfig:
        """Return settings that acknowledge by the store, unless told otherwise."""
        given: dict[str, Any] = {"acks": "store", "lease_ms": 600, **wal}
        timeout_ms = given.pop("write_timeout_ms", 30_000)
        return LogConfig(
            wal=WalConfig(**given),
            lake=LakeConfig(store=f"file://{self.store}", iceberg=False),
            write_timeout_ms=timeout_ms,
        )

    def open(self, machine: str, **wal: Any) -> EmbeddedLog:
        """Open the log on a machine."""
        log = lakebed.open(self.root / machine, self.config(**wal))
        assert isinstance(log, EmbeddedLog)
        return log

    def take_away_store(self) -> None:
        """Let the store not answer."""
        self.store.rename(self.root / "away")

    def bring_back_store(self) -> None:
        """Let it answer again."""
        (self.root / "away").rename(self.store)

    def slots(self) -> list[Path]:
        """List the slots in the store."""
        return sorted(self.store.glob("*/wal/*"))


def values(log: lakebed.Log, topic: str = "orders") -> list[bytes]:
    """Return every value of a topic with one partition."""
    found: list[bytes] = log.read(topic, max_records=100_000).column("value").to_pylist()
    return found
