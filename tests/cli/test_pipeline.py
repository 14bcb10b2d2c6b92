"""Pipelines on the command line: checked, drawn, run for real and killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.spark.serving import url_of
from tests.cli.engine import PROGRAM, Shell
from tests.foreign.readers import duckdb_connection
from tests.spark.test_pipeline_file import ORDERS

ORDERS_MAX = 400


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "orders.toml").write_text(ORDERS)
    shell = Shell(tmp_path / "data")
    shell.run("topic", "create", "orders", "--partitions", 2)
    return shell


def file_of(shell: Shell) -> Path:
    return shell.folder.parent / "orders.toml"


def change(shell: Shell, line: str, instead: str) -> None:
    text = file_of(shell).read_text()
    assert text.count(line) == 1
    file_of(shell).write_text(text.replace(line, instead))


def test_a_file_without_mistakes_is_told_to_be_so(shell: Shell) -> None:
    said = shell.text("pipeline", "validate", file_of(shell))
    assert said == (
        "orders: 1 source, 2 steps, 3 flows; no mistakes in the file; "
        "--plan also checks the queries\n"
    )
    (found,) = shell.json("pipeline", "validate", file_of(shell))
    assert found == {
        "type": "pipeline",
        "file": str(file_of(shell)),
        "name": "orders",
        "valid": True,
    }


def test_every_mistake_is_told_with_its_line(shell: Shell) -> None:
    """Also what only the log knows, and a function that cannot be imported."""
    change(shell, "decode = ", "decod = ")
    change(shell, 'key = "id"', "keys = 'id'")
    said = shell.run("pipeline", "validate", file_of(shell), code=1).stdout
    assert [line.split(": ")[0].rsplit(":", 1)[1] for line in said.splitlines()] == ["7", "8", "21"]
    error = shell.error("pipeline", "graph", file_of(shell))
    assert (error["code"], len(error["message"].splitlines())) == ("pipeline_file", 3)


def test_what_the_log_knows_is_checked_too(shell: Shell) -> None:
    change(shell, 'topic = "orders"', 'topic = "payments"')
    change(shell, 'sql = "SELECT id, customer', 'python = "nowhere:nothing"\nfrom = ["orders"]\n#')
    shell.run("topic", "create", "paid-orders")
    found = shell.run("pipeline", "validate", file_of(shell), "--json", code=1).stdout
    problems = [json.loads(line) for line in found.splitlines()]
    said = {each["line"]: each["message"] for each in problems if each["type"] == "problem"}
    assert said[6] == "topic 'payments' does not exist; create it: lakebed topic create payments"
    assert said[12].startswith("nowhere:nothing cannot be imported: ModuleNotFoundError")
    assert said[22] == "the topic is raw: say encode = 'json' or 'raw'"
    assert problems[-1]["valid"] is False


def test_a_mistake_in_the_file_does_not_hide_what_the_log_and_functions_say(shell: Shell) -> None:
    """And what is wrong already is not complained about a second time, in other words."""
    change(shell, 'name = "orders"', 'name = "or ders"')
    change(shell, 'topic = "orders"', 'topic = "payments"')
    change(shell, 'decode = "json"', 'decode = "jsn"')
    change(shell, 'sql = "SELECT id, customer', 'python = "nowhere:nothing"\nfrom = ["orders"]\n#')
    change(shell, 'from = "totals"', 'from = "total"')
    change(shell, 'key = "id"', 'key = "id"\nencode = "tped"')
    shell.run("topic", "create", "paid-orders")
    said = shell.run("pipeline", "validate", file_of(shell), code=1).stdout
    found = [line.removeprefix(f"{file_of(shell)}:") for line in said.splitlines()]
    assert found[:3] == [
        "1: name = 'or ders' must be letters, digits, '_' or '-'",
        "6: topic 'payments' does not exist; create it: lakebed topic create payments",
        "7: decode must be one of json, avro, csv, raw, not 'jsn'",
    ]
    assert found[3].startswith("12: nowhere:nothing cannot be imported: ModuleNotFoundError")
    assert found[4:] == [
        "24: encode must be one of typed, json, raw, not 'tped'",
        "27: unknown source or step 'total'; known are orders, paid, totals",
    ]


def test_without_a_log_the_file_alone_is_checked(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(ORDERS)
    said = Shell(tmp_path / "data").text("pipeline", "validate", tmp_path / "orders.toml")
    assert "orders.toml:2: note: the log cannot be asked" in said


def test_a_pipeline_is_drawn(shell: Shell) -> None:
    assert shell.text("pipeline", "graph", file_of(shell)).count("\n") == 6
    assert shell.text("pipeline", "graph", file_of(shell), "--mermaid").startswith("flowchart LR\n")
    (data,) = shell.json("pipeline", "graph", file_of(shell))
    assert (data["type"], data["pipeline"], len(data["nodes"])) == ("graph", "orders", 6)


def test_a_pipeline_that_never_ran_has_a_status(shell: Shell) -> None:
    flows = shell.json("pipeline", "status", file_of(shell))
    assert [each["flow"] for each in flows] == ["paid", "by_customer", "orders.dead-letter"]
    assert {each["state"] for each in flows} == {"new"}
    assert shell.text("pipeline", "status", file_of(shell)).splitlines()[1].split()[:2] == [
        "paid",
        "new",
    ]


def test_what_cannot_be_run_is_refused_without_spark(shell: Shell) -> None:
    error = shell.error("pipeline", "run", file_of(shell), "--reset", "nothing", "--yes")
    assert error["facts"]["known"] == "paid, by_customer, orders.dead-letter"
    change(shell, 'log = "data"\n', "")
    result = shell.run("pipeline", "run", file_of(shell), "--data", "elsewhere", code=1)
    assert "there is no log in this folder" in result.stderr


# For real


def order(number: int) -> dict[str, Any]:
    """Return an order; every seventh is of no worth, every second is not paid."""
    return {
        "id": number,
        "customer": f"c{number % 5}",
        "amount": float(number % 7),
        "status": "paid" if number % 2 else "open",
        "at": "2026-11-15T12:00:00Z",
    }


def run(shell: Shell, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PROGRAM, "pipeline", "run", str(file_of(shell)), "--available-now", "--json", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )


def paid_and_totals(log: lakebed.Log) -> tuple[list[int], dict[str, tuple[float, int]]]:
    paid = log.read("paid-orders", 0, max_records=10_000).column("value").to_pylist()
    metadata = log.derived.describe("orders_by_customer").metadata
    with duckdb_connection() as connection:
        rows = connection.execute(
            "SELECT customer, amount, orders FROM iceberg_scan($1)", [metadata]
        ).fetchall()
    totals = {customer: (amount, orders) for customer, amount, orders in rows}
    assert len(totals) == len(rows)
    return sorted(each["id"] for each in paid), totals


@pytest.mark.prove
@pytest.mark.timeout(600)  # it starts Spark twice, on a machine that may be busy
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_a_pipeline_that_is_killed_leaves_every_record_once(shell: Shell) -> None:
    """It is killed when its first batch is done, while others are on their way."""
    change(shell, "[step.paid]", "batch_records_max = 250\n\n[step.paid]")
    change(shell, 'mode = "current"', 'mode = "current"\nbuckets = 2')
    orders = [order(number) for number in range(ORDERS_MAX)]
    with lakebed.open(url_of(shell.folder)) as log:
        lines = [json.dumps(each).encode() for each in orders]
        log.append_batch("orders", [{"value": line} for line in [*lines, b"no order"]])

        with run(shell) as killed:
            assert killed.stdout is not None
            for line in killed.stdout:
                flow = json.loads(line)
                if flow["flow"] == "paid" and flow["batch"] is not None:
                    break
            killed.send_signal(signal.SIGKILL)
        (paid, *_) = shell.json("pipeline", "status", file_of(shell))
        assert (paid["state"], paid["batch"] >= 0) == ("killed", True)

        with run(shell) as again:
            said, errors = again.communicate(timeout=500)
        assert again.returncode == 0, errors.decode()

        good = [each for each in orders if each["status"] == "paid" and each["amount"] > 0]
        expected: dict[str, tuple[float, int]] = {}
        for each in good:
            amount, count = expected.get(each["customer"], (0.0, 0))
            expected[each["customer"]] = (amount + each["amount"], count + 1)
        assert paid_and_totals(log) == ([each["id"] for each in good], expected)
        assert log.read("orders-dead", 0).column("value").to_pylist() == [b"no order"]
        flows = {each["flow"]: each for each in shell.json("pipeline", "status", file_of(shell))}
    last = {each["flow"]: each for each in map(json.loads, said.splitlines())}
    assert {each["state"] for each in flows.values()} == {"stopped"}
    assert {each["lag"] for each in flows.values()} == {0}
    assert last["by_customer"]["batch"] == flows["by_customer"]["batch"]
