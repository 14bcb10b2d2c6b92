"""How commands show the copy of a log in its store, and a replica of it."""

from __future__ import annotations

from lakebed.cli.output import count_text, size
from lakebed.reports.replica import ReplicaStats
from lakebed.reports.shipping import ShippingStats


def shipping_text(shipping: ShippingStats) -> str:
    """Return what is not in the store yet, and why."""
    records = count_text(shipping.unshipped_records, "record", "records")
    waiting = f"{records}, {size(shipping.unshipped_bytes)}, {shipping.unshipped_ms} ms"
    away = f"; the store has not answered for {shipping.failing_ms} ms"
    return f"{waiting} not shipped{away if shipping.failing_ms else ''}"


def replica_text(replica: ReplicaStats) -> str:
    """Return how far a replica is behind, and why."""
    news = f"{count_text(replica.lag_slots, 'slot', 'slots')} at the last look"
    away = f"; the store has not answered for {replica.failing_ms} ms"
    return f"{replica.lag_ms} ms, {news}{away if replica.failing_ms else ''}"
