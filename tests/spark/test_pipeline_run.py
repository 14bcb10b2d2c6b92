"""Pipelines that run: every record once, bad ones elsewhere, and on from where they were."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lakebed
from lakebed.errors import (
    FlowFailedError,
    InvalidArgumentError,
    PipelineChangedError,
    SchemaMismatchError,
)
from lakebed.spark import Pipeline
from lakebed.spark.pipeline.checkpoint_folder import CheckpointFolder
from lakebed.spark.pipeline.compatibility import definition
from lakebed.spark.pipeline.plan import Planner
from lakebed.spark.pipeline.spec import Sink, SinkMode
from lakebed.spark.pipeline.status import FlowStatus, look
from lakebed.spark.pipeline.table_sink import ready_table, table_writer
from lakebed.spark.serving import url_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id LONG, customer STRING, amount DOUBLE"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lakebed.Log]:
    monkeypatch.chdir(tmp_path)
    with lakebed.open("data") as opened:
        opened.create_topic("orders", partitions=2)
        yield opened


def write(
    log: lakebed.Log, *orders: tuple[int, str, float], more: list[bytes] | None = None
) -> None:
    rows = [
        json.dumps(dict(zip(("id", "customer", "amount"), each, strict=True))) for each in orders
    ]
    log.append_batch("orders", [{"value": each.encode()} for each in rows])
    log.append_batch("orders", [{"value": each} for each in more or []])


def values(log: lakebed.Log, topic: str) -> list[Any]:
    found = log.read(topic, 0).column("value").to_pylist()
    return sorted(found, key=str)


def table(log: lakebed.Log, name: str) -> list[dict[str, Any]]:
    rows = log.derived.iceberg(name).scan().to_arrow().drop_columns(["_bucket"]).to_pylist()
    return sorted(rows, key=str)


def test_without_a_session_it_takes_the_one_that_runs(
    spark: SparkSession, log: lakebed.Log
) -> None:
    write(log, (1, "ann", 4.5))
    pipeline = (
        Pipeline("beside", log=log)
        .source("orders", topic="orders", decode="json", schema=SCHEMA)
        .sink("copy", "orders", topic="copies")
    )
    (status,) = pipeline.run(available_now=True)
    assert (status.state, status.rows) == ("stopped", 1)
    assert spark.range(3).count() == 3  # it was not stopped


def orders(log: lakebed.Log, **more: Any) -> Pipeline:
    return Pipeline("shop", log=log, dead_letter="dead", checkpoint="state").source(
        "orders", topic="orders", decode="json", schema=SCHEMA, **more
    )


def forget_last_batch(flow: str) -> None:
    """Leave a checkpoint as a crash does between what a batch has written and its commit."""
    commits = Path("state") / flow / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def totals(
    log: lakebed.Log, query: str = "sum(amount) AS amount", key: str = "customer"
) -> Pipeline:
    sql = f"SELECT {key}, {query} FROM orders GROUP BY {key}"
    return (
        orders(log, expect={"positive": ("amount > 0", "dead-letter")})
        .step("totals", sql=sql)
        .sink("totals", "totals", table="totals", key=[key], mode="current")
        .sink("changes", "totals", topic="changes", key=key, mode="update")
        .sink("copy", "orders", topic="copy", encode="json")
    )


def test_a_pipeline_goes_on_where_it_was_and_repeats_nothing(
    spark: SparkSession, log: lakebed.Log
) -> None:
    write(log, (1, "a", 1.0), (2, "b", 2.0), (3, "a", -1.0), more=[b"no JSON"])
    before = {each.flow: each for each in totals(log).run(spark, available_now=True)}
    assert table(log, "totals") == [
        {"customer": "a", "amount": 1.0},
        {"customer": "b", "amount": 2.0},
    ]
    assert values(log, "dead") == [b"no JSON", b'{"id": 3, "customer": "a", "amount": -1.0}']
    assert before["copy"].counts == {
        "source.orders": {"rows": 4, "tombstones": 0, "undecodable": 1},
        "source.orders.expect": {"rows": 3, "positive": 1},
    }

    for flow in ("totals", "changes", "copy", "orders.dead-letter"):
        forget_last_batch(flow)
    write(log, (4, "a", 4.0))
    after = {each.flow: each for each in totals(log).run(spark, available_now=True)}
    assert table(log, "totals") == [
        {"customer": "a", "amount": 5.0},
        {"customer": "b", "amount": 2.0},
    ]
    assert values(log, "changes") == [
        {"customer": "a", "amount": 1.0},
        {"customer": "a", "amount": 5.0},
        {"customer": "b", "amount": 2.0},
    ]
    assert [json.loads(each)["id"] for each in values(log, "copy")] == [1, 2, 4]
    assert len(values(log, "dead")) == 2
    assert (after["copy"].rows, after["copy"].lag, after["copy"].state) == (5, 0, "stopped")

    spec = totals(log).spec
    write(log, (5, "c", 1.0))
    told = {each.flow: each for each in look(spec, CheckpointFolder(spec.checkpoint_location), log)}
    assert told["copy"].lag == 1
    assert told["copy"].offsets == after["copy"].offsets
    assert log.describe_group("shop.copy").lag <= 2

    with pytest.raises(PipelineChangedError, match="under another key: was customer, is id"):
        totals(log, key="id").run(spark, available_now=True)
    with pytest.raises(PipelineChangedError, match="keeps another state"):
        totals(log, "max(amount) AS amount").run(spark, available_now=True)
    assert (
        look(spec, CheckpointFolder(spec.checkpoint_location), log)[0].batch == told["totals"].batch
    )


def total(spark: SparkSession, orders: DataFrame, customers: DataFrame) -> DataFrame:
    joined = orders.join(customers, "customer")
    return joined.selectExpr("id", "name", "amount / (amount - 9) AS amount")


@pytest.mark.prove
def test_a_table_beside_a_stream_is_read_anew_for_each_batch(
    spark: SparkSession, log: lakebed.Log
) -> None:
    log.create_topic("customers")

    def customer(name: str) -> None:
        log.append("customers", json.dumps({"customer": "a", "name": name}).encode())

    names = (
        Pipeline("names", log=log, checkpoint="names")
        .source("names", topic="customers", decode="json", schema="customer STRING, name STRING")
        .sink("customers", "names", table="customers", key="customer", mode="current")
    )
    joined = (
        orders(log)
        .source("customers", table="customers")
        .step("joined", total, inputs=["orders", "customers"])
        .sink("joined", "joined", topic="joined")
    )
    customer("Ann")
    names.run(spark, available_now=True)
    write(log, (1, "a", 1.0))
    seen: list[str] = []

    def later(statuses: Any) -> None:
        """Change the table when the first batch is done, and then write what the next one reads."""
        done = next(each for each in statuses if each.flow == "joined").batch
        if done == 0 and not seen:
            seen.append("first")
            customer("Bea")
            names.run(spark, available_now=True)
            write(log, (2, "a", 2.0))
        elif done is not None and done > 0 and seen == ["first"]:
            seen.append("second")
            write(log, (3, "a", 9.0))  # by which the function divides by zero

    with pytest.raises(FlowFailedError) as caught:
        joined.run(spark, watch=later)
    assert [each["name"] for each in values(log, "joined")] == ["Ann", "Bea"]
    assert caught.value.facts["flow"] == "joined"
    assert "DIVIDE_BY_ZERO" in str(caught.value.facts["cause"])
    spec = joined.spec
    (told,) = [
        each
        for each in look(spec, CheckpointFolder(spec.checkpoint_location), log)
        if each.flow == "joined"
    ]
    assert (told.state, told.lag) == ("failed", 1)
    assert "DIVIDE_BY_ZERO" in str(told.error)


def test_a_history_keeps_what_was_and_a_deletion_ends_it(
    spark: SparkSession, log: lakebed.Log
) -> None:
    """The writer of a sink, on plain batches: each is a commit, and a repeated one is none."""
    history = Sink(
        "h", "s", table="history_of", key=("id",), mode=SinkMode.HISTORY, order="at", delete="gone"
    )
    columns = "id LONG, at TIMESTAMP, gone BOOLEAN"
    times = [datetime.datetime(2026, 11, day, tzinfo=datetime.UTC) for day in (1, 2, 3)]

    def batch(number: int, *rows: tuple[int, datetime.datetime, bool]) -> None:
        frame = spark.createDataFrame(list(rows), columns)
        ready_table(log, history, frame)
        table_writer(log, history, "writer", stateful=True)(frame, number)

    batch(0, (1, times[1], False), (1, times[0], False), (2, times[0], False))
    batch(1, (1, times[2], True))
    batch(1, (2, times[2], True))
    found = [
        (row["id"], row["valid_from"], row["valid_to"], row["is_current"])
        for row in table(log, "history_of")
    ]
    assert sorted(found) == [
        (1, times[0], times[1], False),
        (1, times[1], times[2], False),
        (2, times[0], None, True),
    ]
    with pytest.raises(InvalidArgumentError, match="the table is of another kind"):
        ready_table(
            log, replace(history, mode=SinkMode.CURRENT), spark.createDataFrame([], columns)
        )
    with pytest.raises(InvalidArgumentError, match="names an unknown column"):
        ready_table(log, replace(history, order="when"), spark.createDataFrame([], columns))
    narrow = spark.createDataFrame([], columns).selectExpr("cast(id as int) id", "* except (id)")
    with pytest.raises(SchemaMismatchError, match="another type column=id"):
        ready_table(log, history, narrow)


def test_a_topic_that_is_read_twice_counts_twice(spark: SparkSession, log: lakebed.Log) -> None:
    made = orders(log).source("more", topic="orders", decode="raw")
    made = made.step("both", sql="SELECT value FROM more UNION ALL SELECT customer FROM orders")
    spec = made.sink("copy", "both", topic="copy").spec
    flow = spec.flows()[0]
    frame = Planner(spec, spark, url_of(log)).plan(flow)
    assert definition(spec, flow, frame, spark.version)["topics"] == ["orders", "orders"]


def test_what_cannot_run_is_refused_before_anything_starts(
    spark: SparkSession, log: lakebed.Log
) -> None:
    def refused(pipeline: Pipeline) -> str:
        with pytest.raises(InvalidArgumentError) as caught:
            pipeline.run(spark, available_now=True)
        return str(caught.value)

    log.create_topic("raw")
    one = orders(log)
    assert "step.a.sql: [UNRESOLVED_COLUMN" in refused(
        orders(log).step("a", sql="SELECT nothing FROM orders").sink("b", "a", topic="c")
    )
    assert "source.t: the topic is raw: set decode" in refused(
        orders(log).source("t", topic="raw").sink("b", "t", topic="c")
    )
    assert "does not exist" in refused(
        orders(log).source("t", topic="none", decode="raw").sink("b", "t", topic="c")
    )
    assert "is for rows that come one by one" in refused(
        one.step(
            "a",
            sql="SELECT customer, count(*) AS n FROM orders GROUP BY customer",
            expect={"few": ("n < 3", "dead-letter")},
        ).sink("b", "a", table="t", key="customer", mode="current")
    )
    assert log.topics() == ["orders", "raw"]
    assert not (Path("state") / "b" / "offsets").exists()


def test_a_status_of_nothing_is_new(tmp_path: Path, log: lakebed.Log) -> None:
    spec = orders(log).sink("a", "orders", topic="b").spec
    assert look(spec, CheckpointFolder(spec.checkpoint_location), log)[0] == FlowStatus("a")
