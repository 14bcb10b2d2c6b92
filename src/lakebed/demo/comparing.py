"""Compares every record that came out with what went in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import lakebed
from lakebed.demo.measures import Comparison
from lakebed.demo.orders import Expected, OrderChange, version, versions

_NOTHING: Final = object()
"""The expected content where there should be none: equal to no content."""

Progress = Callable[[int], None]
"""Called with the number of records that were compared."""


def compare_orders(
    log: lakebed.Log, topic: str, expected: Expected, progress: Progress
) -> Comparison:
    """Compare the changes in a topic: each order's, in their order, with the same bytes."""

    def contents() -> Iterator[tuple[int, object]]:
        for batch in log.table(topic).scan(["key", "value"]):
            yield from zip(
                map(int, batch["key"].to_pylist()), batch["value"].to_pylist(), strict=True
            )
            progress(batch.num_rows)

    def content_of(order: int, nth: int) -> object:
        return version(order, nth).value if nth < versions(order) else _NOTHING

    return _compare(contents(), content_of, expected.changes)


def compare_paid(log: lakebed.Log, topic: str, expected: Expected) -> Comparison:
    """Compare the orders that the pipeline has passed on."""
    rows = (
        (row["id"], (row["customer"], row["amount"]))
        for batch in log.table(topic).scan(["value"])
        for row in batch["value"].to_pylist()
    )
    return _compare(rows, _contents(lambda change: change.is_paid), expected.paid)


def compare_dead(log: lakebed.Log, topic: str, expected: Expected) -> Comparison:
    """Compare the orders that the pipeline has put aside."""
    rows = (
        (row["id"], (row["customer"], row["amount"]))
        for batch in log.table(topic).scan(["value"])
        for row in map(json.loads, batch["value"].to_pylist())
    )
    return _compare(rows, _contents(lambda change: change.is_wrong), expected.wrong)


def compare_table(rows: Iterable[tuple[Any, ...]], expected: Expected) -> Comparison:
    """Compare the rows of the current-state table: id, customer, amount, status."""
    current = expected.current

    def content_of(order: int, nth: int) -> object:
        return current.get(order, _NOTHING) if nth == 0 else _NOTHING

    return _compare(((row[0], row) for row in rows), content_of, len(current))


def _contents(wanted: Callable[[OrderChange], bool]) -> Callable[[int, int], object]:
    """Return a function for the content of the n-th wanted change of an order."""

    def content_of(order: int, nth: int) -> object:
        changes = (version(order, index) for index in range(versions(order)))
        contents = [
            change.order[1:3] for change in changes if change.order is not None and wanted(change)
        ]
        return contents[nth] if nth < len(contents) else _NOTHING

    return content_of


def _compare(
    contents: Iterable[tuple[int, object]], content_of: Callable[[int, int], object], expected: int
) -> Comparison:
    """Compare the n-th content of each order with the expected one, `content_of(order, n)`."""
    seen = Counter[int]()
    total = wrong = 0
    for order, content in contents:
        total += 1
        wrong += content != content_of(order, seen[order])
        seen[order] += 1
    return Comparison(expected, total, wrong)
