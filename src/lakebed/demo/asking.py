"""Queries of the Iceberg tables by DuckDB, without Lakebed, and the expected answers."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lakebed
from lakebed.demo import pipeline
from lakebed.demo.measures import Query
from lakebed.demo.orders import Expected
from lakebed.demo.writer import TOPIC

_REVENUE: Final = """\
SELECT customer, count(*) AS orders, sum(amount) AS revenue
FROM iceberg_scan('{table}')
WHERE status = 'paid' AND amount > 0
GROUP BY customer ORDER BY customer"""
_TOPIC: Final = """\
SELECT count(*) AS records, count(value) AS orders, count(*) - count(value) AS deletions
FROM iceberg_scan('{table}')"""
_PAID: Final = """\
SELECT count(*) AS records, count(DISTINCT value.id) AS orders
FROM iceberg_scan('{table}')"""


def rows(log: lakebed.Log, table: str) -> list[tuple[Any, ...]]:
    """Return the rows of the current-state table."""
    metadata = _path(log.derived.describe(table).metadata)
    with _duckdb() as connection:
        sql = f"SELECT id, customer, amount, status FROM iceberg_scan('{_quote(metadata)}')"  # noqa: S608
        return list(connection.execute(sql).fetchall())


def ask(log: lakebed.Log, folder: Path, expected: Expected) -> list[Query]:
    """Query each table and compare the answer with what the writer sent."""
    every, current = len(expected.orders), len(expected.current)
    revenue = [(name, *sums) for name, sums in expected.revenue().items()]
    state = _path(log.derived.describe(pipeline.TABLE).metadata)
    # Given the folder of a topic's table, DuckDB finds the newest metadata.
    topic, paid = (
        _path(log.table(name).iceberg().metadata_location).parents[1]
        for name in (TOPIC, pipeline.PAID)
    )
    asked = (
        (f"paid orders by customer, from {pipeline.TABLE}", _REVENUE, state, revenue),
        (f"the topic {TOPIC}, compacted", _TOPIC, topic, [(every, current, every - current)]),
        (f"the topic {pipeline.PAID}", _PAID, paid, [(expected.paid, expected.ever_paid)]),
    )
    return [_query(name, sql, table, folder, right) for name, sql, table, right in asked]


def _quote(path: Path) -> str:
    return str(path).replace("'", "''")


def _path(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _query(name: str, sql: str, table: Path, folder: Path, right: list[tuple[Any, ...]]) -> Query:
    begun = time.monotonic()
    with _duckdb() as connection:
        answer = connection.execute(sql.format(table=_quote(table)))
        columns = tuple(column[0] for column in answer.description)
        answer_rows = [tuple(row) for row in answer.fetchall()]
    seconds = time.monotonic() - begun
    shown = sql.format(table=table.resolve().relative_to(folder.resolve()))
    return Query(name, shown, columns, answer_rows, seconds, answer_rows == right)


@contextlib.contextmanager
def _duckdb() -> Iterator[Any]:
    """Connect, with the extension for Iceberg as its Python package has it."""
    import duckdb

    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            package = importlib.import_module(f"duckdb_extension_{name}")
            (file,) = Path(str(package.__file__)).parent.glob("extensions/*/*.duckdb_extension")
            connection.execute(f"LOAD '{_quote(file)}'")
        yield connection
