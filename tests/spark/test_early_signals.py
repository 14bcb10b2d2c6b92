"""A signal while Spark's Java is being started: the command ends, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

import lakebed
from lakebed.spark.serving import url_of
from tests.cli.engine import PROGRAM
from tests.waiting import PATIENCE_SECONDS, until

MARK = "LAKEBED_TEST_MARK"

PIPELINE = """\
name = "early"
checkpoint = "state"

[source.orders]
topic = "orders"
decode = "raw"

[sink.copy]
from = "orders"
topic = "copy"
encode = "raw"
"""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
]


def programs(mark: str) -> dict[int, bytes]:
    """Return the command lines of the living programs that got the mark with their environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
    return found


def has_begun(mark: str, moment: str) -> bool:
    """Return whether Spark's script runs, or the Java that it becomes."""
    begun = [each for each in programs(mark).values() if b"org.apache.spark" in each]
    if moment == "script":
        return bool(begun)
    return any(b"java\0" in each and b"SparkSubmit" in each for each in begun)


@pytest.mark.parametrize(
    ("command", "number", "moment"),
    [
        ("pipeline", signal.SIGINT, "script"),
        ("pipeline", signal.SIGTERM, "java"),
        ("job", signal.SIGINT, "java"),
        ("job", signal.SIGTERM, "script"),
    ],
)
def test_a_signal_while_java_starts_leaves_no_java(
    tmp_path: Path, command: str, number: signal.Signals, moment: str
) -> None:
    file = tmp_path / "early.toml"
    file.write_text(PIPELINE)
    mark = uuid.uuid4().hex
    with lakebed.open(tmp_path / "log") as log:
        log.create_topic("orders")
        call = ["pipeline", "run", str(file)] if command == "pipeline" else ["job", "verify"]
        with subprocess.Popen(
            [*PROGRAM, *call, "--data", url_of(log), "--master", "local[1,4]"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: mark},
        ) as process:
            until(lambda: has_begun(mark, moment) or process.poll() is not None)
            process.send_signal(number)
            _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, said.decode()) == (130, "interrupted\n")
    until(lambda: not programs(mark))
