"""A Python worker that dies in a task: retried by default, not where the user's master says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import lakebed
from lakebed.cli.job_session import spark_options
from lakebed.cli.pipeline import pipeline
from lakebed.spark.session import LOCAL_MASTER
from tests.spark.support import PROCESS_SECONDS, multiset, once

DRIVER = """
import os, pathlib, signal, sys
import lakebed, lakebed.spark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

folder, marker = map(pathlib.Path, sys.argv[1:])
conf = {"spark.driver.memory": "512m"}


def die_once(values):
    for batch in values:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


with lakebed.open(folder) as log:
    spark = lakebed.spark.session(log, conf=conf)
    print(spark.sparkContext.master)
    read = spark.read.format("lakebed").option("topic", "in").load().select("key", "value")
    write = read.mapInArrow(die_once, read.schema).write.format("lakebed").mode("append")
    write.option("topic", "out").save()
    assert marker.exists()

    spark.stop()
    marker.unlink()
    spark = lakebed.spark.session(log, master="local[*]", conf=conf)
    print(spark.sparkContext.master)
    read = spark.read.format("lakebed").option("topic", "in").load().select("key", "value")
    try:
        read.mapInArrow(die_once, read.schema).collect()
    except (PySparkException, Py4JError):
        print("failed")
    spark.stop()
"""


@pytest.mark.prove
@pytest.mark.spark
def test_a_worker_that_dies_once_fails_no_job_of_a_default_session(tmp_path: Path) -> None:
    """The records of the attempt that died are not written, those of the next one are, once.

    A plain `local[*]` that the user names is used as it is, and Spark then retries nothing. Retries
    in the tests' own session are in `test_pipeline_restarts.py`.
    """
    folder, marker = tmp_path / "log", tmp_path / "marker"
    values = [(b"k%d" % number, b"v%d" % number) for number in range(500)]
    with lakebed.open(folder) as log:
        log.create_topic("in", partitions=2)
        log.create_topic("out", partitions=2)
        log.append_batch("in", [{"key": key, "value": value} for key, value in values])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(folder), str(marker)],
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.split() == ["local[*,4]", "local[*]", "failed"]
    with lakebed.open(folder) as log:
        assert multiset(log, "out") == once(values)


def test_commands_have_the_master_that_retries_by_default() -> None:
    job = click.command()(spark_options(lambda: None))
    commands = [job, *(pipeline.commands[name] for name in ("run", "validate"))]
    for command in commands:
        (master,) = [each for each in command.params if each.name == "master"]
        assert master.default == LOCAL_MASTER == "local[*,4]"
