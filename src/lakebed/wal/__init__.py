"""The write-ahead log.

Frames, files, group commit, recovery, reclaim. See DESIGN.md beside this file.
"""

from lakebed.config import SyncMode, WalConfig
from lakebed.reports.wal import WalStats
from lakebed.types import Entry, EntryKind, HardState
from lakebed.wal.log import Wal
from lakebed.wal.recovery import Mark

__all__ = ["Entry", "EntryKind", "HardState", "Mark", "SyncMode", "Wal", "WalConfig", "WalStats"]
