"""The sink's tasks and commits without Spark: tried again, twice at a time, late, or repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import lakebed
from lakebed.errors import RejectedError, TransactionTimedOutError
from lakebed.host import failpoints
from lakebed.spark.options import sink_options
from lakebed.spark.serving import url_of
from lakebed.spark.sink import BatchWriter, StreamWriter
from tests.spark.support import multiset, once
from tests.waiting import until

SCHEMA = StructType().add("key", "string").add("value", "string")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[lakebed.Log]:
    with lakebed.open(tmp_path / "log") as opened:
        opened.create_topic("out", 2)
        yield opened
        failpoints.disarm()


def writer(log: lakebed.Log, version: int = 0, **options: Any) -> BatchWriter:
    """Make a writer, as the driver does and each task again."""
    given = {"log": url_of(log), "topic": "out", "txnAppId": "job", "txnVersion": str(version)}
    chosen = sink_options(given | {name: str(value) for name, value in options.items()})
    return BatchWriter(chosen, SCHEMA, overwrite=False)


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    for number in numbers:
        yield pa.RecordBatch.from_pylist([{"key": f"k{number}", "value": f"v{number}"}])


def written(*numbers: int) -> Any:
    return once((b"k%d" % number, b"v%d" % number) for number in numbers)


def test_nothing_is_seen_before_the_commit_and_everything_after_it(log: lakebed.Log) -> None:
    job = writer(log)
    messages = [job.write(rows(1, 2)), job.write(rows(3)), job.write(rows())]
    assert not multiset(log, "out")
    assert log.stats().open_transactions == 2  # a task without rows has none
    job.commit(messages)
    assert multiset(log, "out") == written(1, 2, 3)
    job.abort(messages)  # Spark calls it also after a commit whose answer got lost
    assert multiset(log, "out") == written(1, 2, 3)
    assert log.stats().open_transactions == 0


def test_of_two_attempts_at_a_task_the_one_that_counts_is_seen(log: lakebed.Log) -> None:
    job = writer(log)
    first, speculative = job.write(rows(1)), writer(log).write(rows(1))
    assert first.transaction != speculative.transaction
    job.commit([speculative])
    assert multiset(log, "out") == written(1)
    assert log.stats().open_transactions == 1
    job.abort([first])
    assert log.stats().open_transactions == 0
    assert multiset(log, "out") == written(1)


def test_an_attempt_that_nobody_counts_times_out(log: lakebed.Log) -> None:
    job = writer(log, transactionTimeoutMs=1000)
    messages = [job.write(rows(1)), job.write(rows(2))]

    def gone() -> bool:
        log.tick()
        return log.stats().open_transactions == 0

    until(gone, "the transactions time out")
    with pytest.raises(TransactionTimedOutError):
        job.commit(messages)  # the driver took longer than the writes may stay unseen
    assert not multiset(log, "out")
    again = writer(log)
    again.commit([again.write(rows(1)), again.write(rows(2))])
    assert multiset(log, "out") == written(1, 2)


def test_a_driver_of_an_earlier_run_comes_too_late(log: lakebed.Log) -> None:
    zombie, driver = writer(log, 5), writer(log, 5)
    old, new = zombie.write(rows(1, 2)), driver.write(rows(1, 2))
    driver.commit([new])
    zombie.commit([old])
    assert multiset(log, "out") == written(1, 2)
    assert log.stats().open_transactions == 0
    zombie.abort([old])
    assert zombie.write(rows(1, 2)).transaction is None
    older = writer(log, 4)
    older.commit([older.write(rows(9))])
    assert multiset(log, "out") == written(1, 2)
    later = writer(log, 6)
    later.commit([later.write(rows(3))])
    assert multiset(log, "out") == written(1, 2, 3)


def test_a_batch_that_is_committed_in_between_is_not_written_in_part(log: lakebed.Log) -> None:
    zombie, driver = writer(log, 5), writer(log, 5)
    first = driver.write(rows(1))
    zombie.commit([zombie.write(rows(1)), zombie.write(rows(2))])
    second = driver.write(rows(2))  # this task already sees that the batch is done
    assert first.transaction is not None
    assert second.transaction is None
    driver.commit([first, second])
    assert multiset(log, "out") == written(1, 2)


def test_a_commit_with_an_attempt_that_is_gone_adds_nothing(log: lakebed.Log) -> None:
    job = writer(log)
    first, second = job.write(rows(1)), job.write(rows(2))
    job.abort([second])
    with pytest.raises(RejectedError):
        job.commit([first, second])
    assert not multiset(log, "out")
    assert log.committed_number("job") is None


POINTS = [name for name in failpoints.names() if name.startswith("spark.sink.")]


@pytest.mark.parametrize("point", POINTS)
def test_a_failure_at_any_step_leaves_all_or_nothing_and_can_be_repeated(
    log: lakebed.Log, point: str
) -> None:
    failpoints.arm(f"{point}=error")
    job = writer(log)
    messages: list[Any] = []
    with pytest.raises(OSError, match=point):
        messages.append(job.write(rows(1)))
        messages.append(job.write(rows(2)))
        job.commit(messages)
    job.abort(messages)
    assert multiset(log, "out") == (written(1, 2) if point.endswith(".committed") else {})
    assert log.stats().open_transactions == 0, "what failed was dropped"
    again = writer(log)
    again.commit([again.write(rows(1)), again.write(rows(2))])
    assert multiset(log, "out") == written(1, 2)


def test_the_points_of_the_sink_are_known() -> None:
    assert [name.rpartition(".")[2] for name in POINTS] == [
        *("begun", "committed", "committing", "prepared", "written"),
    ]


def test_a_batch_of_a_stream_without_tasks_commits_nothing(log: lakebed.Log) -> None:
    chosen = sink_options({"log": url_of(log), "topic": "out"})
    StreamWriter(chosen, SCHEMA, overwrite=False).commit([], 0)
    StreamWriter(chosen, SCHEMA, overwrite=False).abort([None], 0)
    assert not multiset(log, "out")
