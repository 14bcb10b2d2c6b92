"""The replicated-log contract over the WAL. See DESIGN.md beside this file."""

from lakebed.raft.codec import decode_membership, encode_membership
from lakebed.raft.log import MemoryLog, RaftLog
from lakebed.raft.values import LogEntry, Membership, Snapshot
from lakebed.raft.wal_log import WalLog
from lakebed.types import EntryKind, HardState

__all__ = [
    "EntryKind",
    "HardState",
    "LogEntry",
    "Membership",
    "MemoryLog",
    "RaftLog",
    "Snapshot",
    "WalLog",
    "decode_membership",
    "encode_membership",
]
