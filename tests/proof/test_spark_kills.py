"""Proof: whatever dies under a stream from topic to topic, each record arrives once.

The stream runs in an application of its own, against a server of its own. Its driver, its Python
workers and the server are killed, at random and at every step of the sink; the application is
started again until the stream comes to its end. Then the output has exactly the input's records.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.host.failpoints import VARIABLE
from tests.proof.scale import LONG, kept_on_failure, rng, trials
from tests.proof.spark_driver import BATCH_RECORDS
from tests.serve.support import ServerProcess
from tests.spark.support import multiset
from tests.waiting import PATIENCE_SECONDS

FILE = "tests/proof/test_spark_kills.py"
STEPS = ("begun", "written", "prepared", "committing", "committed")
"""The steps of the sink; those up to `prepared` are in tasks."""

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    pytest.mark.timeout(0 if LONG else 600),
]


class Driver:
    """The application, which can be killed with everything it has started."""

    def __init__(self, url: str, folder: Path, *, failpoints: str = "", runs: int = 1) -> None:
        environment = {**os.environ, VARIABLE: failpoints} if failpoints else None
        self._errors = (folder / "driver.stderr").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.proof.spark_driver", url),
                *(str(folder / "checkpoint"), str(runs)),
            ],
            env=environment,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self.failures: list[str] = []

    def event(self, seconds: float = PATIENCE_SECONDS) -> str | None:
        """Wait for the next thing that happens; None if it has ended."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        assert ready, "the driver says nothing"
        line = self._process.stdout.readline()
        if not line:
            return None
        said: dict[str, Any] = json.loads(line)
        if said["event"] == "failed":
            self.failures.append(said["error"])
        return str(said["event"])

    def done(self) -> bool:
        """Wait for the end; return whether the stream came to its own."""
        while (event := self.event()) is not None:
            if event == "done":
                return True
        return False

    def workers(self) -> list[int]:
        """Return the Python processes that the application has started."""
        return [pid for pid in self._family() if b"-m\0lakebed.spark.daemon\0" in _command(pid)]

    def _family(self) -> list[int]:
        """Return every process of the session that the application began."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._process.pid:
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """Kill driver, Java and workers at once."""
        while found := [pid for pid in self._family() if _alive(pid)]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait(60)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _alive(pid: int) -> bool:
    """Return whether a process runs, and is not only waited for."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def copying(folder: Path, test: str, batches: int) -> Iterator[tuple[ServerProcess, lakebed.Log]]:
    """Serve a log with an input of some batches, in files and in memory."""
    with (
        kept_on_failure(folder, test),
        ServerProcess(folder / "log") as server,
        server.open() as log,
    ):
        log.create_topic("in", 3)
        log.create_topic("out", 2)
        add(log, 0, batches // 2)
        log.checkpoint()
        add(log, batches // 2, batches)
        yield server, log


def add(log: lakebed.Log, first: int, last: int) -> None:
    """Append the input of some batches."""
    for number in range(first, last):
        log.append_batch(
            "in",
            [
                {"key": f"{number}-{each}", "value": f"value {number}-{each}".encode()}
                for each in range(BATCH_RECORDS)
            ],
        )


def check(log: lakebed.Log) -> None:
    """See that the output has each record of the input once."""
    wanted, found = multiset(log, "in"), multiset(log, "out")
    assert set(wanted.values()) == {1}
    assert found == wanted, (
        f"lost={(wanted - found).total()} twice={(found - wanted).total()} of {wanted.total()}"
    )


def finish(server: ServerProcess, folder: Path, log: lakebed.Log) -> None:
    """Let an application that nobody harms do the rest, and compare."""
    with Driver(server.url, folder) as driver:
        assert driver.done(), driver.failures
    check(log)


@pytest.mark.prove
def test_a_killed_driver_leaves_no_record_lost_or_twice(tmp_path: Path) -> None:
    """Kills around each step of the sink, which the failpoint makes longer, and at random."""
    test = f"{FILE}::test_a_killed_driver_leaves_no_record_lost_or_twice"
    chance = rng("spark driver")
    kills = trials(1, 60)
    with copying(tmp_path, test, 4 + 2 * kills) as (server, log):
        for _ in range(kills):
            step = chance.choice(STEPS) if LONG else "committed"
            armed = f"spark.sink.{step}=delay:1500@{chance.choice([1, 2])}"
            with Driver(server.url, tmp_path, failpoints=armed) as driver:
                assert driver.event() == "session"
                _await_step(log, step)
                time.sleep(chance.uniform(0, 1.2))  # the moment within the step is what is drawn
                driver.kill()
        finish(server, tmp_path, log)


def _await_step(log: lakebed.Log, step: str) -> None:
    """Wait until a step of some batch is at hand."""
    before = log.offsets("out")
    if step == "committed":
        _await(lambda: log.offsets("out") != before, step)
    else:
        _await(lambda: log.stats().open_transactions > 0, step)


def _await(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that comes after Spark's start, which takes its time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"it does not happen: {what}"
        pause.wait(0.02)


@pytest.mark.prove
def test_workers_and_the_server_may_die_at_any_step(tmp_path: Path) -> None:
    """Workers die at the third to fifth hit of a step; whatever else is killed, it goes on."""
    test = f"{FILE}::test_workers_and_the_server_may_die_at_any_step"
    chance = rng("spark workers")
    rounds, batches = trials(1, 30), trials(5, 10)
    with copying(tmp_path, test, batches) as (server, log):
        for number in range(rounds):
            if number:
                add(log, batches * number, batches * number + batches)
            armed = ";".join(
                f"spark.sink.{step}=kill@{nth}"
                for step, nth in zip(STEPS, _hits(chance), strict=True)
            )
            with Driver(server.url, tmp_path, failpoints=armed, runs=40) as driver:
                assert driver.event() == "session"
                with _meanwhile(lambda: _strike(server, driver, log, chance)):
                    assert driver.done(), driver.failures
            check(log)
        log.verify()


def _hits(chance: random.Random) -> list[int]:
    """Draw at which hit of its life a worker dies at each step; it gets by the first ones."""
    return [chance.randint(3, 5) for _ in STEPS]


def _strike(server: ServerProcess, driver: Driver, log: lakebed.Log, chance: random.Random) -> None:
    """Kill workers, then the server, while batches are written."""
    before = log.offsets("out")
    _await(lambda: log.offsets("out") != before, "the first batch is written")
    for _ in range(2):
        workers = driver.workers()
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
        time.sleep(chance.uniform(0.1, 0.8))  # the moment is what is drawn
    server.kill()
    time.sleep(chance.uniform(0, 1.0))
    server.start()


@contextlib.contextmanager
def _meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread while the block runs; its failure is the block's."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failures:
        raise failures[0]
