"""Flows that fail in a real Spark: restarted if that may help, within limits, and stoppable."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lakebed
from lakebed.cli.pipeline_view import restarts_text
from lakebed.errors import BadRecordError, FlowFailedError, QuotaExceededError
from lakebed.spark import Pipeline
from lakebed.spark.pipeline.checkpoint_folder import CheckpointFolder
from lakebed.spark.pipeline.run import running
from lakebed.spark.pipeline.status import FlowStatus, look

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id LONG, amount DOUBLE"
TASK_ATTEMPTS = 2
"""How often the tests' Spark tries a task: so many deaths fail a batch."""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lakebed.Log]:
    monkeypatch.chdir(tmp_path)
    with lakebed.open("data") as opened:
        opened.create_topic("orders")
        yield opened


def write(log: lakebed.Log, *ids: int, amount: float = 1.0) -> None:
    rows = [json.dumps({"id": each, "amount": amount}).encode() for each in ids]
    log.append_batch("orders", [{"value": row} for row in rows])


def failing(folder: Path, count: int, how: Callable[[], None]) -> Callable[..., DataFrame]:
    """Return a step that fails in its Python worker in the first so many attempts at a task."""

    def fail(batches: Any) -> Any:
        for batch in batches:
            failed = len(list(folder.glob("failed-*")))
            if failed < count:
                (folder / f"failed-{failed}").touch()
                how()
            yield batch

    def step(spark: SparkSession, orders: DataFrame) -> DataFrame:
        return orders.mapInArrow(fail, orders.schema)

    return step


def dying(folder: Path, deaths: int) -> Callable[..., DataFrame]:
    """Return a step whose Python worker is killed in the first so many attempts at a task."""
    return failing(folder, deaths, lambda: os.kill(os.getpid(), signal.SIGKILL))


def pipeline(log: lakebed.Log, step: Callable[..., DataFrame], **restart: int | str) -> Pipeline:
    """Make a pipeline with a flow that goes through the step."""
    given = {"backoff": "10 milliseconds", **restart}
    return (
        Pipeline("shop", log=log, checkpoint="state", restart=given)
        .source("orders", topic="orders", decode="json", schema=SCHEMA)
        .step("risky", step, inputs=["orders"])
        .sink("risky", "risky", topic="risky")
    )


def beside(made: Pipeline) -> Pipeline:
    """Add a flow that does not go through the step."""
    return made.sink("copy", "orders", topic="copy")


def ids(log: lakebed.Log, topic: str) -> list[int]:
    return sorted(each["id"] for each in log.read(topic, 0).column("value").to_pylist())


def flow_of(statuses: Sequence[FlowStatus], name: str) -> FlowStatus:
    (status,) = [each for each in statuses if each.flow == name]
    return status


def status_of(made: Pipeline, log: lakebed.Log, name: str) -> FlowStatus:
    return flow_of(look(made.spec, CheckpointFolder(made.spec.checkpoint_location), log), name)


def test_a_flow_that_fails_twice_is_restarted_and_writes_every_record_once(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    write(log, 1, 2, 3)
    step = dying(tmp_path, 2 * TASK_ATTEMPTS)
    made = beside(pipeline(log, step, attempts_max=2, backoff="1 second"))
    seen: list[FlowStatus] = []
    told: list[str] = []

    def watch(statuses: Sequence[FlowStatus]) -> None:
        risky = flow_of(statuses, "risky")
        if not seen or (seen[-1].state, seen[-1].restarts) != (risky.state, risky.restarts):
            seen.append(risky)
            told.append(status_of(made, log, "risky").state)

    done = made.run(spark, available_now=True, watch=watch)
    assert (ids(log, "risky"), ids(log, "copy")) == ([1, 2, 3], [1, 2, 3])
    expected = [
        ("running", 0),
        ("restarting", 0),
        ("running", 1),
        ("restarting", 1),
        ("running", 2),
        ("stopped", 2),
    ]
    states = [(status.state, status.restarts) for status in seen]
    assert states == [state for state in expected if state in states], "in this order, if seen"
    assert states[-1] == ("stopped", 2)
    assert told == [status.state for status in seen], "the status is in the checkpoint at once"
    waiting = [status for status in seen if status.state == "restarting"][-1]
    assert "Python worker exited unexpectedly" in str(waiting.last_error)
    (line,) = restarts_text(waiting)
    assert f"next attempt at {waiting.next_attempt}; last error:" in line
    risky, copy = flow_of(done, "risky"), flow_of(done, "copy")
    assert (risky.error, risky.next_attempt, risky.rows) == (None, None, 3)
    assert risky.last_error == waiting.last_error
    assert (copy.restarts, copy.last_error, list(restarts_text(copy))) == (0, None, [])
    assert status_of(made, log, "risky").restarts == 2


@pytest.mark.prove
def test_a_flow_beyond_its_limit_fails_the_pipeline_and_goes_on_at_the_next_start(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    write(log, 1, 2, 3)
    made = pipeline(log, dying(tmp_path, 3 * TASK_ATTEMPTS), attempts_max=2)
    with pytest.raises(FlowFailedError, match="restarting it did not help") as caught:
        made.run(spark, available_now=True)
    assert (caught.value.facts["flow"], caught.value.facts["attempts"]) == ("risky", 2)
    assert "Python worker exited unexpectedly" in str(caught.value.facts["cause"])
    risky = status_of(made, log, "risky")
    assert (risky.state, risky.restarts, risky.error) == ("failed", 2, str(caught.value))
    assert len(list(tmp_path.glob("failed-*"))) == 3 * TASK_ATTEMPTS
    done = made.run(spark, available_now=True)
    assert (ids(log, "risky"), flow_of(done, "risky").restarts) == ([1, 2, 3], 0)


def test_without_attempts_a_flow_fails_of_its_first_error(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    write(log, 1)
    made = pipeline(log, dying(tmp_path, TASK_ATTEMPTS), attempts_max=0)
    with pytest.raises(FlowFailedError, match="Python worker exited unexpectedly"):
        made.run(spark, available_now=True)
    assert status_of(made, log, "risky").restarts == 0


def test_a_failure_that_a_repetition_cannot_mend_is_not_repeated(
    spark: SparkSession, log: lakebed.Log
) -> None:
    write(log, 1, amount=-1.0)
    made = (
        Pipeline("shop", log=log, checkpoint="state", restart={"attempts_max": 9})
        .source("orders", topic="orders", decode="json", schema=SCHEMA)
        .step("good", sql="SELECT * FROM orders", expect={"positive": ("amount > 0", "fail")})
        .sink("copy", "good", topic="copy")
    )
    states: list[str] = []
    with pytest.raises(BadRecordError):
        made.run(spark, available_now=True, watch=lambda flows: states.append(flows[0].state))
    assert "restarting" not in states
    assert status_of(made, log, "copy").restarts == 0


@pytest.mark.prove
def test_progress_resets_the_count_of_failures(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    """With a limit of one restart in succession, each of two batches fails once."""
    write(log, 1)
    for each in ("1", "2"):
        (tmp_path / each).mkdir()

    def step(spark: SparkSession, orders: DataFrame) -> DataFrame:
        first, second = (dying(tmp_path / each, TASK_ATTEMPTS) for each in ("1", "2"))
        return first(spark, orders.where("id = 1")).union(second(spark, orders.where("id = 2")))

    made = pipeline(log, step, attempts_max=1)
    with running(made.spec, log, spark) as run:

        def watch(statuses: Sequence[FlowStatus]) -> None:
            if ids(log, "risky") == [1] and log.offsets("orders")[0][1] == 1:
                write(log, 2)
            elif ids(log, "risky") == [1, 2]:
                run.stopping.set()

        (done,) = run.run(watch)
    assert (done.restarts, done.state) == (2, "stopped")
    assert ids(log, "risky") == [1, 2]


def test_a_pipeline_stops_at_once_while_a_flow_waits_for_its_restart(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    """The wait would be an hour, which is beyond the limit of a test; the other flow works on."""
    write(log, 1)
    step = dying(tmp_path, TASK_ATTEMPTS)
    made = beside(pipeline(log, step, backoff="1 hour", backoff_max="1 hour"))
    with running(made.spec, log, spark) as run:

        def watch(statuses: Sequence[FlowStatus]) -> None:
            waits = flow_of(statuses, "risky").state == "restarting"
            if waits and ids(log, "copy") == [1]:
                run.stopping.set()

        result = run.run(watch)
    risky = flow_of(result, "risky")
    assert (risky.state, risky.restarts, risky.error, risky.next_attempt) == (
        *("stopped", 0, None),
        None,
    )
    assert "Python worker exited unexpectedly" in str(risky.last_error)
    assert flow_of(result, "copy").state == "stopped"


def refuse() -> None:
    """Fail as a call does that the server refuses for now."""
    raise QuotaExceededError("too many bytes in this second")


@pytest.mark.prove
def test_an_error_of_the_log_that_may_pass_is_repeated_and_a_table_has_every_row_once(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path
) -> None:
    write(log, 1, 2)
    made = (
        Pipeline("shop", log=log, checkpoint="state", restart={"backoff": "10 milliseconds"})
        .source("orders", topic="orders", decode="json", schema=SCHEMA)
        .step("risky", failing(tmp_path, 2 * TASK_ATTEMPTS, refuse), inputs=["orders"])
        .sink("rows", "risky", table="rows")
    )
    (done,) = made.run(spark, available_now=True)
    assert (done.state, done.restarts) == ("stopped", 2)
    assert str(done.last_error).startswith("too many bytes in this second")
    rows = log.derived.iceberg("rows").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == [1, 2]
