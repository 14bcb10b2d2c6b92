"""Proof: a server under load, killed again and again, as are its writers, keeps what it promised.

The ledger is kept here, outside of whatever is killed. After each restart of the server, and at the
end, every acknowledged record is in the log exactly once, and nothing is there that should not be.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebed import Log
from tests import forked
from tests.proof.scale import LONG, SEED, kept_on_failure, rng
from tests.serve.support import ServerProcess
from tests.serve.writers import Ledger, make_topics
from tests.waiting import PATIENCE_SECONDS, until

_ROOT = Path(__file__).parents[2]
_TEST = "tests/proof/test_server_load.py::test_a_killed_server_keeps_every_acknowledged_record"
_PROCESSES = 3
_SECONDS = 600.0
"""How long the long form runs."""
_SHORT_ROUNDS = 4
_SETTINGS = """
memtable_bytes = 262144
wal_bytes = 262144
checkpoint_interval_ms = {checkpoint}

[wal]
file_bytes = 65536

[lake]
iceberg = false
"""


class WriterProcess:
    """Writers in a process that can be killed; what they report goes into the ledger."""

    def __init__(self, server: ServerProcess, name: str, ledger: Ledger, errors: Path) -> None:
        self._ledger = ledger
        self._errors = errors
        with errors.open("ab") as stderr:
            self._process = forked.Popen(
                [sys.executable, "-m", "tests.proof.server_writer", server.url, name, str(SEED)],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # the last one may be cut
                self._ledger.take(json.loads(line))

    def check(self) -> None:
        """Raise if it ended."""
        assert self._process.poll() is None, f"a writer failed: {self._errors.read_text()}"

    def kill(self) -> None:
        """Kill it, and take what it reported before."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        self._listener.join(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Load:
    """Writers that write without end, and a server that does not last."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        checkpoint = chance.choice((20, 1000, 300_000))
        self.server = ServerProcess(folder, toml=_SETTINGS.format(checkpoint=checkpoint))
        self.ledger = Ledger()
        self.done: Counter[str] = Counter()
        self._chance = chance
        self._names = (f"p{number}" for number in itertools.count())
        self._writers: list[WriterProcess] = []

    def begin(self) -> None:
        """Start everything."""
        self.server.start()
        with self.server.open() as log:
            make_topics(log)
        self._writers = [self._writer() for _ in range(_PROCESSES)]

    def _writer(self) -> WriterProcess:
        errors = self.server.folder.with_suffix(".writers")
        return WriterProcess(self.server, next(self._names), self.ledger, errors)

    def round(self) -> None:
        """Wait for acknowledgements, then strike."""
        goal = self.ledger.acks + self._chance.randint(20, 400)

        def reached() -> bool:
            for writer in self._writers:
                writer.check()
            return self.ledger.acks >= goal

        until(reached, f"{self.ledger.acks} acknowledgements; {self.ledger.failures[-3:]}")
        strikes: list[Callable[[], None]] = [self._kill_server, self._kill_writer, self._both]
        strikes.append(self._stop_server)
        strike = strikes[self.done.total() % len(strikes)]  # each of them comes
        strike()
        self.done[strike.__name__.strip("_")] += 1

    def _kill_server(self) -> None:
        self.server.kill()
        self.server.start()

    def _stop_server(self) -> None:
        assert self.server.stop() == 0
        self.server.start()

    def _kill_writer(self) -> None:
        victim = self._chance.randrange(len(self._writers))
        self._writers[victim].kill()
        self._writers[victim] = self._writer()

    def _both(self) -> None:
        """Kill everybody, and look at what is there before anyone writes again."""
        self.server.kill()
        for writer in self._writers:
            writer.kill()
        with Log.open(self.server.folder) as log:
            self.ledger.check(log)
            log.verify()
        self.server.start()
        self._writers = [self._writer() for _ in self._writers]

    def end(self) -> None:
        """End the writers, then look through a client, and at what is on disk."""
        for writer in self._writers:
            writer.kill()
        with self.server.open() as log:
            self.ledger.check(log)
        self.server.kill()
        with Log.open(self.server.folder) as log:
            self.ledger.check(log)
            log.verify()

    def clear(self) -> None:
        """Leave no process behind."""
        for writer in self._writers:
            writer.kill()
        self.server.__exit__()


@pytest.mark.proof
def test_a_killed_server_keeps_every_acknowledged_record(tmp_path: Path) -> None:
    """Acknowledged: there, once, at its place. Refused: not there. Unknown: whole or not at all."""
    load = Load(tmp_path / "log", rng("server-load"))
    began = time.monotonic()
    with kept_on_failure(tmp_path, _TEST):
        try:
            load.begin()
            rounds = 0
            while rounds < _SHORT_ROUNDS or (LONG and time.monotonic() - began < _SECONDS):
                load.round()
                rounds += 1
            load.end()
        finally:
            load.clear()
        assert "unforeseen" not in load.server.said
        fenced = [each for each in load.ledger.failures if "Fenced" in each]
        assert not fenced, fenced
