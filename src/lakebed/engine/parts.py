"""The parts of an open log, by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lakebed.config import LogConfig
from lakebed.engine.access import Access
from lakebed.engine.admission import Admission
from lakebed.engine.audit import Audit
from lakebed.engine.backend import EmbeddedBackend
from lakebed.engine.backup import Backups
from lakebed.engine.budget import Budget
from lakebed.engine.checkpoint import Checkpointer
from lakebed.engine.cleanup import Cleanup
from lakebed.engine.commands import Commands
from lakebed.engine.compaction_rewrite import CompactionRewrite
from lakebed.engine.core import Core
from lakebed.engine.groups import Groups
from lakebed.engine.lifecycle import Lifecycle
from lakebed.engine.maintenance import Maintenance
from lakebed.engine.reading import Reading
from lakebed.engine.recovery import Recovered
from lakebed.engine.replica import Replica
from lakebed.engine.shipping import Shipping
from lakebed.engine.staging import Staging
from lakebed.engine.table_keys import KeyLookup
from lakebed.engine.topics import Topics
from lakebed.engine.writing import Writing
from lakebed.iceberg.derived_table import Derived
from lakebed.iceberg.lake import Lake
from lakebed.lake.folder import LakeFolder
from lakebed.lake.segment_reader import SegmentReader
from lakebed.wal import Wal


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of an open log, by name."""

    folder: Path
    config: LogConfig
    lifecycle: Lifecycle

    # What is on disk, and the state that it gives
    staging: Staging
    segment_folder: LakeFolder
    core: Core
    wal: Wal
    recovered: Recovered

    # Reading and writing
    segment_reader: SegmentReader
    reading: Reading
    lookup: KeyLookup
    commands: Commands
    admission: Admission
    writing: Writing
    backend: EmbeddedBackend

    # What has methods for users
    topics: Topics
    groups: Groups
    access: Access
    audit: Audit
    lake: Lake
    derived: Derived

    # What happens in the background
    budget: Budget
    checkpointer: Checkpointer
    compaction_rewrite: CompactionRewrite
    cleanup: Cleanup
    maintenance: Maintenance
    backups: Backups
    shipping: Shipping | None
    """None for a log that is on this disk alone, and for a replica."""
    replica: Replica | None
    """None for a log that this process owns."""
