"""A pipeline to a topic and to a table, killed again and again while orders come in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

import lakebed
from tests.foreign.readers import duckdb_connection
from tests.proof.scale import kept_on_failure, rng
from tests.serve.support import ServerProcess

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1200)]

PIPELINE = """\
name = "orders"
log = "sales"                   # a folder, or the URL of a server
dead_letter = "orders-dead"     # what cannot be decoded, or fails a check, with the reason

[source.orders]
topic = "orders"
decode = "json"
schema = "id BIGINT, customer STRING, amount DOUBLE, status STRING"

[step.paid]
sql = "SELECT id, customer, amount FROM orders WHERE status = 'paid'"
expect.positive = { check = "amount > 0", otherwise = "dead-letter" }

[step.totals]
sql = "SELECT customer, count(*) AS orders, sum(amount) AS amount FROM paid GROUP BY customer"

[sink.paid]
from = "paid"
topic = "paid-orders"
key = "id"

[sink.by_customer]
from = "totals"
table = "orders_by_customer"    # an Iceberg table
mode = "current"                # with a row for each customer
key = ["customer"]
"""
CUSTOMERS = 7
LIFE_SECONDS = 900


@pytest.mark.prove
@pytest.mark.timeout(0)
def test_a_pipeline_that_is_killed_again_and_again_writes_every_order_once(tmp_path: Path) -> None:
    """Orders are written all the while; the whole process group dies, Java and workers with it."""
    (tmp_path / "orders.toml").write_text(PIPELINE)
    random = rng("pipeline kills")
    kills = 10
    folder = tmp_path / "sales"
    with (
        kept_on_failure(tmp_path, "tests/proof/test_pipeline_kills.py"),
        ServerProcess(folder) as server,
        server.open() as log,
    ):
        log.create_topic("orders", partitions=2)
        with _orders(log) as written:
            for _ in range(kills):
                with _running(tmp_path) as process:
                    paid = _paid(log)
                    _await_more(log, paid)
                    threading.Event().wait(random.uniform(0, 3))
                    os.killpg(process.pid, signal.SIGKILL)
        with _running(tmp_path, "--available-now") as process:
            assert process.wait(LIFE_SECONDS) == 0, (tmp_path / "said").read_text()[-2000:]
        _check(log, written)


def _await_more(log: lakebed.Log, paid: int) -> None:
    """Wait until an order comes through, which is long after Spark's start."""
    deadline = time.monotonic() + LIFE_SECONDS
    pause = threading.Event()
    while _paid(log) <= paid:
        assert time.monotonic() < deadline, "no order comes through"
        pause.wait(0.1)


@contextmanager
def _orders(log: lakebed.Log) -> Iterator[list[int]]:
    """Write orders until the block ends; return the numbers of those that were acknowledged."""
    written: list[int] = []
    ending = threading.Event()

    def write() -> None:
        while not ending.wait(0.02):
            first = len(written)
            numbers = range(first, first + 20)
            log.append_batch("orders", [{"value": _order(each)} for each in numbers])
            written.extend(numbers)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        ending.set()
        writer.join()


def _order(number: int) -> bytes:
    if number % 50 == 49:
        return b"no order %d" % number
    amount = -1.0 if number % 50 == 25 else float(number % 10 + 1)
    status = "open" if number % 3 == 0 else "paid"
    order = {"id": number, "customer": f"c{number % CUSTOMERS}", "amount": amount, "status": status}
    return json.dumps(order).encode()


def _check(
    log: lakebed.Log,
    written: list[int],
    connect: Callable[[], duckdb.DuckDBPyConnection] = duckdb_connection,
) -> None:
    """Compare topic, dead letters and table with what was written, each record counted."""
    orders = {number: _order(number) for number in written}
    broken = [value for value in orders.values() if value.startswith(b"no")]
    decoded = [json.loads(value) for value in orders.values() if not value.startswith(b"no")]
    paid = [each for each in decoded if each["status"] == "paid"]
    good = [each for each in paid if each["amount"] > 0]
    found = Counter(
        each["id"] for each in log.table("paid-orders").scan().read_all()["value"].to_pylist()
    )
    assert found == Counter(each["id"] for each in good)
    dead = log.table("orders-dead").scan().read_all()["value"].to_pylist()
    assert len(dead) == len(broken) + len(paid) - len(good)
    assert Counter(each for each in dead if each.startswith(b"no")) == Counter(broken)
    totals: dict[str, tuple[int, float]] = {}
    for each in good:
        count, amount = totals.get(each["customer"], (0, 0.0))
        totals[each["customer"]] = (count + 1, amount + each["amount"])
    assert _totals(log, connect) == totals


def _totals(
    log: lakebed.Log, connect: Callable[[], duckdb.DuckDBPyConnection] = duckdb_connection
) -> dict[str, tuple[int, float]]:
    """Read the table by DuckDB."""
    metadata = log.derived.describe("orders_by_customer").metadata
    with connect() as connection:
        rows = connection.execute(
            "SELECT customer, orders, amount FROM iceberg_scan($source)", {"source": metadata}
        ).fetchall()
    assert len(rows) == len({row[0] for row in rows})
    return {customer: (orders, amount) for customer, orders, amount in rows}


def _paid(log: lakebed.Log) -> int:
    if "paid-orders" not in log.topics():
        return 0
    return sum(end for _, end in log.offsets("paid-orders").values())


@contextmanager
def _running(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "said").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakebed.cli", "pipeline", "run", "orders.toml", *options],
            cwd=folder,
            env=spark_environment(folder),
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def spark_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a user who has nothing but this project."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(folder)}
