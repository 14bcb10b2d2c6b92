"""What came out, compared with what went in: record by record, every one of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import lakebed
from lakebed.demo.measures import Comparison
from lakebed.demo.orders import Expected, OrderChange, version, versions

_NOTHING: Final = object()
"""What is meant where nothing should be: equal to nothing."""

Told = Callable[[int], None]
"""Is called with how many records were compared."""


def orders(log: lakebed.Log, topic: str, expected: Expected, told: Told) -> Comparison:
    """Compare the changes in a topic: each order's, in their order, with the same bytes."""

    def found() -> Iterator[tuple[int, object]]:
        for batch in log.table(topic).scan(["key", "value"]):
            yield from zip(
                map(int, batch["key"].to_pylist()), batch["value"].to_pylist(), strict=True
            )
            told(batch.num_rows)

    def meant(order: int, nth: int) -> object:
        return version(order, nth).value if nth < versions(order) else _NOTHING

    return _compared(found(), meant, expected.changes)


def paid(log: lakebed.Log, topic: str, expected: Expected) -> Comparison:
    """Compare what the pipeline has passed on."""
    rows = (
        (row["id"], (row["customer"], row["amount"]))
        for batch in log.table(topic).scan(["value"])
        for row in batch["value"].to_pylist()
    )
    return _compared(rows, _contents(lambda each: each.is_paid), expected.paid)


def dead(log: lakebed.Log, topic: str, expected: Expected) -> Comparison:
    """Compare what the pipeline has put aside."""
    rows = (
        (row["id"], (row["customer"], row["amount"]))
        for batch in log.table(topic).scan(["value"])
        for row in map(json.loads, batch["value"].to_pylist())
    )
    return _compared(rows, _contents(lambda each: each.is_wrong), expected.wrong)


def table(rows: Iterable[tuple[Any, ...]], expected: Expected) -> Comparison:
    """Compare the rows of the current-state table: id, customer, amount, status."""
    current = expected.current

    def meant(order: int, nth: int) -> object:
        return current.get(order, _NOTHING) if nth == 0 else _NOTHING

    return _compared(((row[0], row) for row in rows), meant, len(current))


def _contents(wanted: Callable[[OrderChange], bool]) -> Callable[[int, int], object]:
    """Return what names the n-th of those changes of an order that are wanted."""

    def meant(order: int, nth: int) -> object:
        changes = (version(order, number) for number in range(versions(order)))
        found = [each.order[1:3] for each in changes if each.order is not None and wanted(each)]
        return found[nth] if nth < len(found) else _NOTHING

    return meant


def _compared(
    found: Iterable[tuple[int, object]], meant: Callable[[int, int], object], expected: int
) -> Comparison:
    """Compare the n-th content of each order with the n-th that was meant."""
    seen = Counter[int]()
    total = wrong = 0
    for order, content in found:
        total += 1
        wrong += content != meant(order, seen[order])
        seen[order] += 1
    return Comparison(expected, total, wrong)
