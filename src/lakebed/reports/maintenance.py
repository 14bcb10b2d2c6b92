"""What checkpoints, cleanups, compactions and backups did."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lakebed.errors import LakebedError
from lakebed.reports.topics import SealedFile


@dataclass(frozen=True)
class CheckpointReport:
    """What a checkpoint did."""

    index: int
    records: int
    segments: int
    segment_bytes: int
    snapshot_bytes: int
    seconds: float


@dataclass
class CleanupReport:
    """What a cleanup did."""

    records_removed: int = 0
    segments_removed: int = 0
    segments_merged: int = 0
    segments_compacted: int = 0
    records_compacted: int = 0
    errors: dict[str, LakebedError] = field(default_factory=dict)
    """Topics that could not be cleaned up, and why; the others were."""

    @property
    def changed(self) -> bool:
        """Whether records or segments were removed or rewritten."""
        return replace(self, errors={}) != CleanupReport()


@dataclass(frozen=True)
class CleanupFailure:
    """What went wrong with retention, compaction or merging of one topic since the log opened."""

    topic: str
    failures: int
    last_failure: str
    failing: bool
    """Whether the last attempt failed; it is repeated every `retention_interval_ms`."""


@dataclass(frozen=True)
class PartitionCompaction:
    """What of a partition is to be compacted: its segments from the first on."""

    partition: int
    segments: tuple[int, ...]
    """Their ids, in the order of offsets, as `rewrite_segments` wants them."""
    base: int
    end: int
    """Survivors have a bit for each offset from `base` up to, not including, `end`."""
    files: tuple[SealedFile, ...]
    dirty_percent: int
    """The share of their bytes that is new since the last compaction."""


@dataclass(frozen=True)
class CompactionPlan:
    """What of a topic is to be compacted; without partitions, nothing is."""

    topic: str
    now_us: int
    tombstone_before_us: int
    """A tombstone that is the last of its key and older than this goes too."""
    partitions: tuple[PartitionCompaction, ...]


@dataclass(frozen=True)
class RewriteReport:
    """What rewriting segments did."""

    topic: str
    partition: int
    records_kept: int
    records_dropped: int
    segments_removed: int
    """None if nothing was dropped and nothing was worth merging."""
    segments_written: int
    bytes_removed: int
    bytes_written: int
    compacted_to: int
    """The offset below which the partition is compacted now."""


@dataclass(frozen=True)
class BackupReport:
    """What a backup holds."""

    folder: str
    log_id: str
    index: int
    """The last entry of the log that it reflects."""
    topics: int
    records: int
    files: int
    size_bytes: int
    stored_segments: int
    """Segments that are in the object store alone, and so not in the backup."""
    store: str
    seconds: float
