"""Jobs are killed by SIGKILL somewhere in the middle and run again: nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed import LogConfig
from tests.cli.engine import Shell

pytestmark = pytest.mark.prove

QUIET = LogConfig(retention_interval_ms=86_400_000)
RECORDS, KEYS, KILLS = 60_000, 500, 4
LIFE_SECONDS = (3.0, 15.0)
"""A job lives so long: Spark takes some seconds to begin with."""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    folder = tmp_path / "log"
    with lakebed.Log.open(folder, QUIET) as log:
        log.create_topic("a", 3, config={"cleanup": "compact", "compact_hold_ms": 0})
        for first in range(0, RECORDS, 10_000):
            log.append_batch(
                "a",
                [
                    {"key": f"k{n % KEYS}", "value": b"v%d" % n if n % 11 else None}
                    for n in range(first, first + 10_000)
                ],
            )
            log.checkpoint()
    (folder / "lakebed.toml").write_text("retention_interval_ms = 86400000\n")
    return Shell(folder)


def records(folder: Path, topic: str) -> list[dict[str, Any]]:
    with lakebed.Log.open(folder, QUIET) as log:
        log.verify()
        if topic not in log.topics():
            return []
        return list(
            log.table(topic).scan(["partition", "offset", "key", "value"]).read_all().to_pylist()
        )


def killed_and_finished(shell: Shell, *job: object) -> None:
    """Kill a job several times, at random moments, then let it come to its end."""
    rng = random.Random(int(os.environ.get("LAKEBED_SEED", "1")))
    for _ in range(KILLS):
        child = shell.start("job", *job, "--master", "local[2,4]", start_new_session=True)
        try:
            child.communicate(timeout=rng.uniform(*LIFE_SECONDS))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    last = shell.start("job", *job, "--master", "local[2,4]")
    _, said = last.communicate(timeout=600)
    assert last.returncode == 0, said.decode()


def test_a_compaction(shell: Shell) -> None:
    before = records(shell.folder, "a")
    last = {(row["partition"], row["key"]): row["offset"] for row in before}
    wanted = [row for row in before if last[row["partition"], row["key"]] == row["offset"]]
    killed_and_finished(shell, "compact", "a")
    assert records(shell.folder, "a") == wanted


def test_a_replay(shell: Shell) -> None:
    killed_and_finished(shell, "replay", "a", "b")
    assert told(records(shell.folder, "b")) == told(records(shell.folder, "a"))


def test_an_import(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(20):
        rows = pa.table({"id": range(number * 1000, number * 1000 + 1000)})
        pq.write_table(rows, folder / f"{number}.parquet")
    killed_and_finished(shell, "import", "rows", str(folder), "--key", "id")
    found = [row["value"]["id"] for row in records(shell.folder, "rows")]
    assert sorted(found) == list(range(20_000))


def told(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter((row["key"], row["value"]) for row in rows)
