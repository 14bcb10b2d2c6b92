"""What a log tells about itself: counters and a picture of its memory, files and schedule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lakebed.reports.lake import LakeStats
from lakebed.reports.maintenance import CheckpointReport, CleanupFailure
from lakebed.reports.replica import ReplicaStats
from lakebed.reports.shipping import ShippingStats
from lakebed.reports.wal import WalStats


@dataclass(frozen=True)
class LogStats:
    """A log at a glance."""

    topics: int
    partitions: int
    segments: int
    segment_bytes: int
    memtable_bytes: int
    memtable_records: int
    memtable_budget_bytes: int
    records_written: int
    """Since the log was opened."""
    open_transactions: int
    transactions_timed_out: int
    groups: int
    members_expelled: int
    """Consumers that were silent for too long, since the log was opened."""
    producers: int
    applied_index: int
    checkpoints: int
    last_checkpoint: CheckpointReport | None
    checkpoint_age_ms: int | None
    """Since the last one ended; None before the first since the log was opened."""
    throttled_ms: int
    """Time that writers waited because memory was short."""
    stopped_writes: int
    rejected_writes: int
    disk_full: bool
    """Writes are refused: memtables are full, and the disk has no space to flush them."""
    maintenance_failures: int
    last_failure: str | None
    cleanup_failures: tuple[CleanupFailure, ...]
    """Topics whose retention, compaction or merging failed since the log was opened."""
    cache_bytes: int
    cache_hits: int
    cache_misses: int
    snapshot_index: int
    """The snapshot that the last opening began with."""
    replayed_entries: int
    snapshots_passed_over: int
    files_removed: int
    """Files that the last opening removed, because the log had dropped them before."""
    files_quarantined: int
    wal: WalStats
    lake: LakeStats
    shipping: ShippingStats | None = None
    """None for a log that is on this disk alone, and for a replica."""
    replica: ReplicaStats | None = None
    """None for a log that its process owns."""

    @property
    def role(self) -> str:
        """`owner` or `replica` of a log in a store; `alone` for a log on this disk alone."""
        if self.replica is not None:
            return "replica"
        return "alone" if self.shipping is None else "owner"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)
