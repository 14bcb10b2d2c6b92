"""What a log tells about its copy in the object store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShippingStats:
    """How far the chain in the object store is behind the log, and what it costs."""

    acks: str
    """`store`: an acknowledged record is in the store. `local`: it may be among those below."""
    store: str
    term: int
    """The number of the fence with which this process took the log over."""
    shipped_index: int
    """The last entry in the store."""
    unshipped_records: int
    unshipped_bytes: int
    unshipped_ms: int
    """How long the oldest entry waits that is not in the store. In `local`, the loss of this
    machine takes these records, unless its disk comes back.
    """
    slots: int
    slot_bytes: int
    puts: int
    """Writes to the store, each attempt counted."""
    failing_ms: int
    """How long the store has not answered; 0 while it does."""
    last_failure: str | None
    lease_valid: bool
    diverged_entries: int
    """Entries that were set aside in `diverged/` when the log was opened."""
