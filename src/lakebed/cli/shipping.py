"""How commands show the copy of a log in its store."""

from __future__ import annotations

from lakebed.cli.output import count_text, size
from lakebed.reports.shipping import ShippingStats


def shipping_text(shipping: ShippingStats) -> str:
    """Return what is not in the store yet, and why."""
    records = count_text(shipping.unshipped_records, "record", "records")
    waiting = f"{records}, {size(shipping.unshipped_bytes)}, {shipping.unshipped_ms} ms"
    away = f"; the store has not answered for {shipping.failing_ms} ms"
    return f"{waiting} not shipped{away if shipping.failing_ms else ''}"
