"""What a read replica tells about how far it is behind the log that it follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaStats:
    """A read replica at a glance."""

    store: str
    term: int
    """The term of the newest slot that is applied: the number of its owner's fence."""
    owner: str
    """Where the owner serves, as far as its lease says."""
    slot: int
    """The last slot that is applied."""
    applied_index: int
    """The last entry that is applied."""
    lag_ms: int
    """Everything that was in the store this long ago is applied."""
    lag_slots: int
    """Slots that were new when the replica last read the store."""
    lag_entries: int
    """Entries that were new then."""
    poll_ms: int
    loads: int
    """How often the state was taken from a snapshot: once, and each time the owner had removed
    the slots that were next.
    """
    failing_ms: int
    """How long the store has not answered; 0 while it does."""
    last_failure: str | None
    is_current: bool
    """Whether the store was read within `lease_ms`: a server is ready then."""
