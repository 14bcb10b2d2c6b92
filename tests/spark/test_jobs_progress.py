"""How far a job is, by Spark's count of tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lakebed.spark.jobs.progress import watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told = list[tuple[str, int, int]]


def slow(number: int) -> int:
    time.sleep(0.15)
    return number


def test_nothing_is_told_twice_and_all_only_in_the_end(spark: SparkSession) -> None:
    """Of two queries, the second of which begins when the tasks of the first are done."""
    told: Told = []
    numbers = spark.sparkContext.parallelize(range(6), 6)
    with watched(spark, "reading", lambda *each: told.append(each)):
        numbers.map(slow).count()
        numbers.map(slow).count()
    assert told[-1] == ("reading", 12, 12)
    assert len(set(told)) == len(told) > 2
    assert all(done < total for _, done, total in told[:-1])


def test_a_query_that_fails_is_never_told_to_be_done(spark: SparkSession) -> None:
    told: Told = []

    def run() -> None:
        with watched(spark, "reading", lambda *each: told.append(each)):
            spark.sparkContext.parallelize(range(4), 4).map(slow).count()
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        run()
    assert all(done < total for _, done, total in told)


def test_work_without_tasks_has_no_progress(spark: SparkSession) -> None:
    told: Told = []
    with watched(spark, "reading", lambda *each: told.append(each)):
        assert spark.version
    assert told == []
