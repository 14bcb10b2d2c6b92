"""What the lake tells: of a sync, of tables and their snapshots, of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from lakebed.errors import LakebedError


@dataclass
class SyncReport:
    """What a sync did."""

    tables_changed: int = 0
    tables_dropped: int = 0
    files_added: int = 0
    files_removed: int = 0
    segments_uploaded: int = 0
    segments_moved: int = 0
    errors: dict[str, LakebedError] = field(default_factory=dict)
    """Why tables could not be synced, by topic."""

    @property
    def failures(self) -> list[str]:
        """Return why tables could not be synced, one line each."""
        return [f"{topic}: {error}" for topic, error in self.errors.items()]


@dataclass(frozen=True)
class TableInfo:
    """A topic's table."""

    topic: str
    exists: bool | None
    """None if the catalog did not answer; `problem` then has the reason."""
    location: str
    metadata: str
    """The newest metadata file, which readers without a catalog can be given; empty if none."""
    snapshot: int | None
    snapshots: int
    files: int
    records: int
    bytes: int
    position: int
    """The log's entry that it reflects."""
    offsets: str
    """{partition: offset}: every record below is in the table, or was removed from the log."""
    lag_records: int
    lag_seconds: float
    problem: str = ""


@dataclass(frozen=True)
class SnapshotInfo:
    """A snapshot of a table."""

    snapshot: int
    parent: int | None
    time: datetime
    operation: str
    ours: bool
    """The log made it, and no other program."""
    position: int
    files_added: int
    files_removed: int
    records: int
    """In all."""


@dataclass(frozen=True)
class LakeStats:
    """The lake at a glance."""

    iceberg: bool
    store: str
    lag_records: int
    lag_seconds: float
    tables_behind: int
    syncs: int
    tables_changed: int
    conflicts: int
    foreign_changes: int
    failures: int
    last_failure: str | None
    files_waiting: int
    """Files that are not needed any more, and may not go yet."""
    files_removed: int
    segments_moved: int
    bytes_moved: int
    store_uploads: int = 0
    store_uploaded_bytes: int = 0
    store_downloads: int = 0
    store_downloaded_bytes: int = 0
    store_retries: int = 0
    store_failures: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    cache_evictions: int = 0


@dataclass
class RemovalReport:
    """What a removal did."""

    segments_removed: int = 0
    files_removed: int = 0
    """Of tables, and objects of segments."""
    bytes_removed: int = 0
    waiting: int = 0
    """Files that are not needed, and may not go yet."""
