"""The demonstration notices whatever is missing, wrong, moved or there twice."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakebed
from lakebed.demo import comparing
from lakebed.demo.orders import Expected, OrderChange, change

CHANGES = [change(0, number) for number in range(100)]


def found(folder: Path, changes: list[OrderChange]) -> tuple[int, int, bool]:
    """Write changes, compare them with what had to be written; give missing, wrong, exact."""
    with lakebed.open(folder) as log:
        log.create_topic("orders", partitions=2)
        rows = [{"key": b"%d" % each.id, "value": each.value} for each in changes]
        log.append_batch("orders", rows)
        told: list[int] = []
        result = comparing.compare_orders(log, "orders", Expected(1, len(CHANGES)), told.append)
    assert sum(told) == result.found == len(changes)
    return result.missing, result.wrong, result.is_exact


def test_what_was_written_is_found(tmp_path: Path) -> None:
    assert found(tmp_path, CHANGES) == (0, 0, True)


@pytest.mark.parametrize(
    ("changes", "missing", "wrong"),
    [
        (CHANGES[:-1], 1, 0),
        ([*CHANGES, CHANGES[2]], 0, 1),
        ([*CHANGES[:5], change(0, 5)._replace(order=None), *CHANGES[6:]], 1, 1),
        ([CHANGES[7], *CHANGES[:7], *CHANGES[8:]], 2, 2),
    ],
    ids=["lost", "twice", "changed", "moved"],
)
def test_what_is_not_so_is_noticed(
    tmp_path: Path, changes: list[OrderChange], missing: int, wrong: int
) -> None:
    assert found(tmp_path, changes) == (missing, wrong, False)


def test_a_table_with_a_wrong_row_is_noticed() -> None:
    expected = Expected(1, 100)
    rows = [tuple(order) for order in expected.current.values()]
    assert comparing.compare_table(rows, expected).is_exact
    for wrong in (rows[1:], [*rows, rows[0]], [(*rows[0][:3], "lost"), *rows[1:]]):
        assert not comparing.compare_table(wrong, expected).is_exact
