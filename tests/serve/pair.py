"""Servers of one log in a store, in processes that a test can kill, pause and start again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests import forked
from tests.s3 import free_port
from tests.waiting import until

_ROOT = Path(__file__).parents[2]
LEASE_MS = 1500


class StoreServer:
    """`lakebed serve --standby` of a log in a folder store, on a port that stays the same."""

    def __init__(self, root: Path, name: str, *options: str, acks: str = "store") -> None:
        self.folder = root / name
        self.port = free_port()
        self.output = root / f"{name}.out"
        self._store = root / "store"
        self._store.mkdir(exist_ok=True)
        self._options = options or ("--standby",)
        self._acks = acks
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    @property
    def is_owner(self) -> bool:
        """Whether its last role is that of the owner."""
        return self.said.rfind("role: owner") > self.said.rfind("role: standby")

    def start(self) -> StoreServer:
        """Start it, and wait until it has a role."""
        before = self.said.count(" role: ")
        settings = {"LAKEBED_WAL_LEASE_MS": str(LEASE_MS), "LAKEBED_WAL_ACKS": self._acks}
        with self.output.open("ab") as output:
            self._process = forked.Popen(
                [
                    *(sys.executable, "-m", "lakebed.cli", "serve"),
                    *("--data", f"file://{self._store}", "--folder", str(self.folder)),
                    *("--port", str(self.port), "--http-port", "-1", *self._options),
                ],
                cwd=_ROOT,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        until(lambda: self.said.count(" role: ") > before or not self.alive, "it has a role")
        assert self.alive, self.said
        return self

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def lose(self) -> None:
        """Kill it and remove its folder: its machine is gone."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(120)

    def end(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGCONT)
            self.kill()
