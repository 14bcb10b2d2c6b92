"""How far a job is, by Spark's count of tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakebed.spark.jobs.progress import report_tasks
from lakebed.types import Progress
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told = list[tuple[str, int, int]]


def slow(folder: Path, reports: Callable[[int], int]) -> Callable[[int], int]:
    """Return a task that ends when the test has been told of progress often enough for it."""

    def work(task: int) -> int:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(list(folder.glob("told-*"))) < reports(task):
            assert time.monotonic() < deadline, "no progress is told"
            time.sleep(0.01)  # a task is in another process, which files alone reach
        return task

    return work


def hear(told: Told, folder: Path) -> Progress:
    """Return what keeps the reports of progress, and leaves a file for each."""

    def keep(doing: str, done: int, total: int) -> None:
        told.append((doing, done, total))
        (folder / f"told-{len(told)}").touch()

    return keep


def test_nothing_is_told_twice_and_all_only_in_the_end(spark: SparkSession, tmp_path: Path) -> None:
    """Of two queries, the second of which begins when the tasks of the first are done."""
    told: Told = []
    numbers = spark.sparkContext.parallelize(range(6), 6)
    with report_tasks(spark, "reading", hear(told, tmp_path)):
        # The first two tasks wait for the first report, the others for one of a task that is done.
        numbers.map(slow(tmp_path, lambda task: 1 if task < 2 else 2)).count()
        numbers.map(slow(tmp_path, lambda task: 0)).count()
    assert told[-1] == ("reading", 12, 12)
    assert len(set(told)) == len(told) > 2
    assert all(done < total for _, done, total in told[:-1])


def test_a_query_that_fails_is_never_told_to_be_done(spark: SparkSession, tmp_path: Path) -> None:
    told: Told = []

    def run() -> None:
        with report_tasks(spark, "reading", hear(told, tmp_path)):
            tasks = spark.sparkContext.parallelize(range(4), 4)
            tasks.map(slow(tmp_path, lambda task: 1)).count()
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        run()
    assert told
    assert all(done < total for _, done, total in told)


def test_work_without_tasks_has_no_progress(spark: SparkSession) -> None:
    told: Told = []
    with report_tasks(spark, "reading", lambda *each: told.append(each)):
        assert spark.version
    assert told == []
