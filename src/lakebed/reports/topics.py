"""Topics, their segments and their scan plans, as the log describes them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class PartitionInfo:
    """A partition: where it begins and ends, and what it takes."""

    partition: int
    earliest: int
    end: int
    segments: int
    segment_bytes: int
    memtable_records: int


@dataclass(frozen=True)
class TopicInfo:
    """A topic as `describe_topic` shows it."""

    name: str
    id: int
    partitions: tuple[PartitionInfo, ...]
    schema: pa.Schema | None
    """The newest version; None for a raw topic."""
    schema_version: int
    config: dict[str, int | str]
    """Every setting, also those left at their defaults."""
    created_us: int

    @property
    def records(self) -> int:
        """Count offsets from the earliest to the end; compaction may have left fewer records."""
        return sum(partition.end - partition.earliest for partition in self.partitions)


@dataclass(frozen=True)
class SegmentInfo:
    """A sealed Parquet file of one partition, and everything that is known of it."""

    topic: str
    topic_id: int
    partition: int
    id: int
    base: int
    end: int
    records: int
    file_bytes: int
    tail_bytes: int
    tail_checksum: int
    time_min_us: int
    time_max_us: int
    place: int
    location: str
    """Its URL: `file://…`, or that of the object store."""


@dataclass(frozen=True)
class SealedFile:
    """A Parquet file, and the offsets of it that are part of a plan."""

    partition: int
    location: str
    """Its URL: `file://…`, or that of the object store."""
    start: int
    until: int
    records: int
    """Of the whole file."""
    bytes: int
    whole: bool = False
    """Whether every record of the file is part of the plan."""


@dataclass(frozen=True)
class HotRange:
    """Offsets that are in no file yet: `read` gives them."""

    partition: int
    start: int
    until: int
    bytes: int = 0
    """About how many they take as they were written."""


@dataclass(frozen=True)
class ScanPlan:
    """Everything that a topic holds of a range, each record in exactly one place."""

    topic: str
    files: tuple[SealedFile, ...]
    hot: tuple[HotRange, ...]
