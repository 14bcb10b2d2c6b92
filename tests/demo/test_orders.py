"""What the writer sends, and what must come out of it."""

from __future__ import annotations

import json
from collections import defaultdict

from lakebed.demo.orders import Expected, Order, change, checkout_of, version, versions


def test_ten_changes_are_seven_orders_two_corrections_and_a_deletion() -> None:
    ten = [change(3, number) for number in range(10)]
    assert len({each.id for each in ten}) == 7
    assert [each.order is None for each in ten].count(True) == 1
    assert {checkout_of(each.id) for each in ten} == {3}
    assert ten[7].id == ten[5].id
    assert (ten[5].order and ten[5].order.status, ten[7].order and ten[7].order.status) == (
        "open",
        "paid",
    )
    assert ten[9].value is None


def test_the_changes_of_an_order_are_its_versions_one_after_the_other() -> None:
    seen = defaultdict[int, int](int)
    for number in range(70):
        found = change(1, number)
        assert found == version(found.id, seen[found.id])
        seen[found.id] += 1
    assert all(count == versions(order) for order, count in seen.items())


def test_a_value_is_the_order_as_json() -> None:
    found = change(0, 0)
    assert found.value is not None
    assert Order(**json.loads(found.value)) == found.order


def test_what_is_expected_is_what_a_reader_would_work_out() -> None:
    expected = Expected(checkouts=2, changes=2_000)
    paid = wrong = 0
    state: dict[int, dict[str, object]] = {}
    for checkout in range(2):
        for number in range(2_000):
            found = change(checkout, number)
            if found.value is None:
                del state[found.id]
                continue
            row = json.loads(found.value)
            state[found.id] = row
            paid += row["status"] == "paid" and row["amount"] > 0
            wrong += row["status"] == "paid" and row["amount"] <= 0
    assert (expected.changes, expected.paid, expected.wrong) == (4_000, paid, wrong)
    assert wrong > 0
    assert {number: order._asdict() for number, order in expected.current.items()} == state
    revenue = expected.revenue()
    sold = [
        row for row in state.values() if row["status"] == "paid" and float(str(row["amount"])) > 0
    ]
    assert sum(count for count, _ in revenue.values()) == len(sold)
    assert sum(amount for _, amount in revenue.values()) == sum(
        float(str(row["amount"])) for row in sold
    )
