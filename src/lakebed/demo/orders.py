"""What the writer sends: orders, corrections and deletions, each known from its number alone.

The number of changes that a thread has written determines all of them, so a writer that was
killed can continue, and all output can be compared with the input.

Ten changes in a row are seven new orders, two corrections and a deletion:

    change    0 1 2 3 4 5 6    7              8                9
    order     0 1 2 3 4 5 6    5, now paid    0, its amount    1, gone
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

CUSTOMERS: Final = ("ann", "bob", "cem", "dora", "eva", "finn", "gita", "hugo")

_IDS: Final = 10**9
"""Orders that a checkout can number."""
_CHANGES: Final = 10
_ORDERS: Final = 7
_WRONG_EVERY: Final = 1000
"""Of so many orders one has an amount that no order can have."""


class Order(NamedTuple):
    """An order, as one change leaves it."""

    id: int
    customer: str
    amount: float
    """A multiple of a quarter, so that sums are exact."""
    status: str


class OrderChange(NamedTuple):
    """What a checkout writes at once: the new state of an order, or its deletion."""

    id: int
    order: Order | None

    @property
    def value(self) -> bytes | None:
        """Return the record's value: JSON, or nothing, which is a tombstone."""
        if self.order is None:
            return None
        return json.dumps(self.order._asdict(), separators=(",", ":")).encode()

    @property
    def is_paid(self) -> bool:
        """Return whether the pipeline is to pass it on."""
        return self.order is not None and self.order.status == "paid" and self.order.amount > 0

    @property
    def is_wrong(self) -> bool:
        """Return whether the pipeline is to put it aside."""
        return self.order is not None and self.order.status == "paid" and self.order.amount <= 0


def change(checkout: int, index: int) -> OrderChange:
    """Return the change of a checkout with this index."""
    block, step = divmod(index, _CHANGES)
    slot = step if step < _ORDERS else (5, 0, 1)[step - _ORDERS]
    return version(checkout * _IDS + block * _ORDERS + slot, int(step >= _ORDERS))


def version(order: int, index: int) -> OrderChange:
    """Return the change of an order with this index; the first one creates the order."""
    within = order % _IDS
    slot = within % _ORDERS
    wrong = within % _WRONG_EVERY == _WRONG_EVERY - 1
    amount = -1.0 if wrong else 1 + within % 64 / 4
    status = "open" if slot >= _ORDERS - 2 else "paid"
    if index == 1:
        if slot == 1:
            return OrderChange(order, None)
        status = "paid"
        amount += 0.25 if slot == 0 else 0
    return OrderChange(order, Order(order, CUSTOMERS[within % len(CUSTOMERS)], amount, status))


def versions(order: int) -> int:
    """Return how often an order is changed in all."""
    return 2 if order % _IDS % _ORDERS in (0, 1, 5) else 1


def checkout_of(order: int) -> int:
    """Return the checkout that an order was made at."""
    return order // _IDS


class Expected:
    """What the log must hold when every checkout has written all of its changes."""

    def __init__(self, checkouts: int, changes: int) -> None:
        """Compute it change by change."""
        self.changes = checkouts * changes
        self.paid = 0
        """Changes that the pipeline passes on; those that it puts aside are `wrong`."""
        self.wrong = 0
        self.orders: dict[int, Order | None] = {}
        """The last state of each order; None if it was deleted."""
        paid = set[int]()
        for change_made in self._all(checkouts, changes):
            self.orders[change_made.id] = change_made.order
            self.wrong += change_made.is_wrong
            if change_made.is_paid:
                self.paid += 1
                paid.add(change_made.id)
        self.ever_paid = len(paid)

    @staticmethod
    def _all(checkouts: int, changes: int) -> Iterator[OrderChange]:
        for checkout in range(checkouts):
            for index in range(changes):
                yield change(checkout, index)

    @property
    def current(self) -> dict[int, Order]:
        """Return the orders that were not deleted."""
        return {order_id: order for order_id, order in self.orders.items() if order is not None}

    def revenue(self) -> dict[str, tuple[int, float]]:
        """Return the paid orders of each customer: how many, and how much in all."""
        count, amount = Counter[str](), Counter[str]()
        for order in self.current.values():
            if order.status == "paid" and order.amount > 0:
                count[order.customer] += 1
                amount[order.customer] += order.amount  # type: ignore[assignment]
        return {name: (count[name], float(amount[name])) for name in sorted(count)}
