"""A standalone Spark cluster of real processes on this machine, from the pip package."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

SPARK_HOME = Path(pyspark.__file__).parent
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"
_PATIENCE_SECONDS = 300


class Cluster:
    """A master and its workers; `master` is the URL that an application is given."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.master = ""
        self._folder = folder
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            **environment,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, workers: int) -> None:
        """Start the master and workers of one core each; return when they are one cluster."""
        self._start("master", "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1", "-p", "0",
                    "--webui-port", "0")  # fmt: skip
        self.master = self._await("master", _STARTED)[1]
        names = [f"worker-{number}" for number in range(workers)]
        for name in names:
            self._start(name, "org.apache.spark.deploy.worker.Worker", "-h", "127.0.0.1",
                        "--webui-port", "0", "-c", "1", "-m", "1g",
                        "-d", str(self._folder / name), self.master)  # fmt: skip
        for name in names:
            self._await(name, re.compile(_REGISTERED))

    def kill_worker(self) -> None:
        """Kill the last worker with its executors, as a machine dies."""
        process = self._processes.pop()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=_PATIENCE_SECONDS)

    def stop(self) -> None:
        """Kill everything."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=_PATIENCE_SECONDS)

    def _start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as said:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *command],
                stdout=said,
                stderr=subprocess.STDOUT,
                env={**self._environment, "SPARK_WORKER_DIR": str(self._folder / name)},
                start_new_session=True,
            )
        self._processes.append(process)

    def _await(self, name: str, pattern: re.Pattern[str]) -> re.Match[str]:
        """Wait until a process has said something."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            said = (self._folder / f"{name}.log").read_text(errors="replace")
            found = pattern.search(said)
            if found:
                return found
            time.sleep(0.05)  # a log file tells nobody that it has grown
        raise AssertionError(f"{name} did not start: {said[-2000:]}")


@contextlib.contextmanager
def cluster(
    folder: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Return a running cluster."""
    made = Cluster(folder, environment or {})
    try:
        made.start(workers)
        yield made
    finally:
        made.stop()
