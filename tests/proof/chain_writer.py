"""A process that owns a log in a store and writes until it is killed, paused or taken over.

    python -m tests.proof.chain_writer FOLDER STORE RUN SEED MODE

Modes: `store` and `local` write until killed, acknowledged by that; `script` lives the life
that `engine_writer` scripts, on a log in a store. Reports are lines of JSON (see `engine_ledger`).
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace
from pathlib import Path

from lakebed import AckMode, LakeConfig, Log, LogConfig
from lakebed.api import transaction as transactions
from lakebed.errors import NotOwnerError, RejectedError, StopError, UnknownOutcomeError
from tests.proof.engine_life import Worker
from tests.proof.engine_writer import SCRIPT, THREADS, Script, produce, random_config, tell

LEASE_MS = 600


def in_store(config: LogConfig, store: str, acks: str = "store") -> LogConfig:
    """Return settings of a log in a store that is a folder."""
    wal = replace(
        config.wal,
        acks=AckMode(acks),
        ship_ms=20 if acks == "local" else 0,
        lease_ms=LEASE_MS,
    )
    return replace(config, wal=wal, lake=LakeConfig(store=f"file://{store}", iceberg=False))


class Owner:
    """Threads that write until another process owns the log."""

    def __init__(self, log: Log, run: int, seed: str) -> None:
        self._workers = [
            Worker(log, tell, random.Random(f"{seed}/{run}/{each}"), run=run, thread=each)
            for each in range(THREADS)
        ]

    def write(self) -> None:
        """Write until killed, or refused because another process owns the log."""
        self._workers[0].prepare()
        threads = [threading.Thread(target=self._work, args=(worker,)) for worker in self._workers]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _work(self, worker: Worker) -> None:
        try:
            while True:
                if worker.rng.random() < 0.1:
                    produce(worker)
                else:
                    worker.step()
                failure, worker.failure = worker.failure, None
                if isinstance(failure, NotOwnerError | UnknownOutcomeError | StopError):
                    return
                assert failure is None or isinstance(failure, RejectedError), failure
        except BaseException as error:
            tell(["failed", f"{type(error).__name__} {error} while {worker.doing}"])
            os._exit(3)


def main(folder: str, store: str, run: str, seed: str, mode: str) -> None:
    """Live one life of the writer."""
    transactions._WRITE_BYTES = 600  # type: ignore[misc]  # large ones write before they commit
    if mode == "script":
        Script(Path(folder), int(run), in_store(SCRIPT, store)).live()
        tell(["phase", "closed"])
        return
    rng = random.Random(f"{seed}/{run}")
    tell(["phase", "opening"])
    log = Log.open(folder, in_store(random_config(rng), store, mode))
    tell(["phase", "opened"])
    Owner(log, int(run), seed).write()
    tell(["phase", "refused"])
    os._exit(0)
