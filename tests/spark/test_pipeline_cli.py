"""Pipelines on the command line that run, in the tests' own Spark session."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import Result

import lakebed
from lakebed.spark.pipeline import run as module
from lakebed.spark.pipeline.hold import hold
from lakebed.spark.pipeline.toml_file import read_pipeline
from lakebed.spark.serving import url_of
from tests.cli.engine import Shell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = Callable[..., Result]

SHOP = """\
name = "shop"
checkpoint = "state"

[source.orders]
topic = "orders"
decode = "json"
schema = "id BIGINT, amount DOUBLE"
batch_records_max = 1
expect.positive = { check = "amount > 0", otherwise = "fail" }

[sink.copy]
from = "orders"
topic = "copy"
key = "id"
"""

JOIN = """\
name = "paid"
checkpoint = "state"

[source.orders]
topic = "orders"
decode = "json"
schema = "id BIGINT, at TIMESTAMP"
watermark = { column = "at", delay = "10 minutes" }

[source.payments]
topic = "payments"
decode = "json"
schema = "order BIGINT, paid TIMESTAMP"
watermark = { column = "paid", delay = "10 minutes" }

[step.joined]
sql = '''
  SELECT id, order IS NOT NULL AS paid
  FROM orders LEFT JOIN payments
  ON id = order AND paid BETWEEN at AND at + INTERVAL 1 HOUR
'''

[sink.joined]
from = "joined"
topic = "joined"
encode = "json"
"""


@pytest.fixture
def command(
    spark: SparkSession, log: lakebed.Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Run `lakebed pipeline ...` on the file and the log of the test."""
    real = module.running

    @contextlib.contextmanager
    def running(spec: Any, target: Any, **more: Any) -> Iterator[module.PipelineRun]:
        with real(spec, target, spark, available_now=more.get("available_now", False)) as run:
            yield run

    monkeypatch.setattr(module, "running", running)
    shell = Shell(tmp_path / "log")

    def call(name: str, *more: object, code: int = 0) -> Result:
        file = tmp_path / "shop.toml"
        return shell.run("pipeline", name, file, "--data", url_of(log), *more, code=code)

    return call


def write(log: lakebed.Log, topic: str, *rows: dict[str, Any]) -> None:
    log.append_batch(topic, [{"value": json.dumps(each).encode()} for each in rows])


def ids(log: lakebed.Log) -> list[int]:
    return sorted(each["id"] for each in log.read("copy", 0).column("value").to_pylist())


def test_a_reset_writes_again_and_a_row_that_must_not_be_stops_the_pipeline(
    log: lakebed.Log, tmp_path: Path, command: Command
) -> None:
    """One record a batch: the first one is written again, the second is refused."""
    file = tmp_path / "shop.toml"
    file.write_text(SHOP)
    log.create_topic("orders")
    write(log, "orders", {"id": 1, "amount": 2.0})
    work = partial(command, "run", "--available-now", "--verbose")
    header, row = work().stdout.splitlines()
    assert header.split() == ["flow", "batch", "read", "read/s", "lag", "counted"]
    assert row.split() == ["copy", "0", "1", "0", "0", "-"]
    assert ids(log) == [1]

    write(log, "orders", {"id": 2, "amount": -1.0})
    again = ("--reset", "copy", "--yes", "--json")
    assert "use --yes" in work("--reset", "copy", code=2).stderr
    with hold(read_pipeline(file).check()):
        assert json.loads(work(*again, code=1).stderr)["code"] == "pipeline_running"

    error = json.loads(work(*again, code=1).stderr.splitlines()[-1])
    assert (error["code"], error["facts"]["flow"]) == ("bad_record", "copy")
    assert error["facts"]["expectation"] == "source.orders.positive"
    assert error["message"] == "a record is not as expected: not amount > 0"
    assert json.loads(error["facts"]["record"]) == {"id": 2, "amount": -1.0}
    assert ids(log) == [1, 1]
    header, row, failure = command("status").stdout.splitlines()
    assert header.split() == ["flow", "state", "batch", "time", "read", "lag"]
    assert row.split()[:3] == ["copy", "failed", "0"]
    assert failure.startswith("copy failed: a record is not as expected")


def test_with_a_plan_spark_names_what_is_wrong_in_every_flow(
    log: lakebed.Log, tmp_path: Path, command: Command
) -> None:
    """Also beside mistakes that are known without it."""
    file = tmp_path / "shop.toml"
    file.write_text(
        SHOP
        + '[step.a]\nsql = "SELECT nothing FROM orders"\n'
        + '[step.b]\nsql = "SELECT id, nowhere FROM orders"\n'
        + '[step.c]\nsql = "SELECT id FROM b"\n'
        + '[step.d]\nsql = "SELECT a.* FROM a JOIN b"\n'
        + '[sink.d]\nfrom = "d"\ntopic = "d"\n'
        + '[sink.c]\nfrom = "c"\ntopic = "c"\n'
        + '[sink.e]\nfrom = "orders"\ntable = "e"\nmode = "current"\nkey = "number"\n'
        + '[sink.f]\nfrom = "f"\ntopic = "f"\n'
    )
    log.create_topic("orders")
    found = command("validate", "--plan", code=1).stdout.replace(f"{file}:", "").splitlines()
    assert [each.split(": ", 1)[0] for each in found] == ["16", "18", "33", "35"]
    assert "`nothing`" in found[0]
    assert "`nowhere`" in found[1]
    assert found[2] == "33: unknown column 'number'; known are id, amount"
    assert found[3].startswith("35: unknown source or step 'f'")

    file.write_text(SHOP.replace("DOUBLE", "DUOBLE"))
    (found_schema,) = command("validate", "--plan", code=1).stdout.splitlines()
    line = 1 + SHOP.splitlines().index(next(x for x in SHOP.splitlines() if "DOUBLE" in x))
    assert found_schema.startswith(f"{file}:{line}: the given schema is wrong")
    assert "DUOBLE" in found_schema

    file.write_text(SHOP)
    assert command("validate", "--plan").stdout == (
        "shop: 1 source, 0 steps, 1 flow; no mistakes\n"
    )
    assert log.topics() == ["orders"]


@pytest.mark.prove
def test_streams_are_joined_and_what_finds_no_partner_comes_with_the_watermark(
    log: lakebed.Log, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "shop.toml").write_text(JOIN)
    log.create_topic("orders")
    log.create_topic("payments")

    def order(number: int, time: str) -> dict[str, Any]:
        return {"id": number, "at": f"2026-11-15T{time}Z"}

    def payment(number: int, time: str) -> dict[str, Any]:
        return {"order": number, "paid": f"2026-11-15T{time}Z"}

    write(log, "orders", *(order(number, "12:00:00") for number in (1, 2, 3)))
    write(log, "payments", payment(1, "12:59:00"), payment(2, "13:30:00"))
    write(log, "orders", order(9, "20:00:00"))
    write(log, "payments", payment(9, "20:01:00"))
    command("run", "--available-now", "--verbose")
    rows = map(json.loads, log.read("joined", 0).column("value").to_pylist())
    found = sorted((each["id"], each["paid"]) for each in rows)
    assert found == [(1, True), (2, False), (3, False), (9, True)]
    document = json.loads((tmp_path / "state" / "joined" / "flow.json").read_text())
    assert document["topics"] == ["orders", "payments"]
