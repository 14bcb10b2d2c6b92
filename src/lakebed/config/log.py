"""Settings of a log, of its write-ahead log and of its lake."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lakebed import limits
from lakebed.config.checks import check_bounds, refuse
from lakebed.config.serve import ServeConfig
from lakebed.errors import InvalidArgumentError

STORE_SCHEMES: Final = (
    "s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs", "file",
)  # fmt: skip
"""The kinds of store that a log can be in: those with conditional writes."""


class SyncMode(enum.Enum):
    """When an append is acknowledged, and so what a power cut can take from it."""

    ALWAYS = "always"
    """After fdatasync. A power cut takes nothing that was acknowledged."""

    INTERVAL = "interval"
    """After the write.

    Synced every `sync_interval_ms`. A power cut takes at most about that much time, a kill nothing.
    """

    OS = "os"
    """After the write.

    Synced when a file is full, when the log has been quiet, and when it is closed. A power cut may
    take a whole file's worth, a kill nothing.
    """


class AckMode(enum.Enum):
    """What an acknowledgement rests on, and so what the loss of a disk or machine can take."""

    LOCAL = "local"
    """This machine's disk, as `sync` says.

    With `ship_ms`, entries are shipped to the object store in the background: the loss of the
    machine takes what was not shipped yet.
    """

    STORE = "store"
    """The object store. The loss of the machine takes nothing that was acknowledged."""


@dataclass(frozen=True)
class WalConfig:
    """Settings of the write-ahead log."""

    sync: SyncMode = SyncMode.ALWAYS
    """When an append is acknowledged: `always`, `interval` or `os`."""

    sync_interval_ms: int = 100
    """With `interval`: the longest time between a write and its sync."""

    file_bytes: int = 64 * limits.MIB
    """Size of a WAL file. A larger one makes fewer rotations and frees space later."""

    entry_bytes_max: int = 64 * limits.MIB
    """The largest entry accepted."""

    spare_files: int = 2
    """How many files to keep ready ahead of the writer.

    Released files become spares before they are removed.
    """

    idle_mark_ms: int = 500
    """How long after the last commit the idle mark is written, from which on damage to that commit
    is distinguished from a torn write.
    """

    acks: AckMode = AckMode.LOCAL
    """What an acknowledgement rests on: `local`, this disk, or `store`, the object store of the
    lake.
    """

    ship_ms: int = 0
    """With `local`: the longest time between an acknowledgement and its entry in the object store;
    0 to keep the WAL on this disk alone.
    """

    store_linger_ms: int = 0
    """With `store`: the least time between two writes to the store. A larger one makes fewer,
    larger and so cheaper writes, and acknowledges later.
    """

    lease_ms: int = 10_000
    """How long the owner of a log in a store may be silent before another process takes over."""

    replica_poll_ms: int = 200
    """How often a read replica asks the store for new entries."""

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        acks: object = self.acks
        if acks in [mode.value for mode in AckMode]:
            object.__setattr__(self, "acks", AckMode(acks))
        if not isinstance(self.acks, AckMode):
            refuse("acks", self.acks, "one of " + " | ".join(mode.value for mode in AckMode))
        sync: object = self.sync
        if sync in [mode.value for mode in SyncMode]:
            object.__setattr__(self, "sync", SyncMode(sync))  # its name is accepted too
        if not isinstance(self.sync, SyncMode):
            refuse("sync", self.sync, "one of " + " | ".join(mode.value for mode in SyncMode))
        check_bounds(self, WAL_BOUNDS)
        if self.file_bytes % 4096:
            refuse("file_bytes", self.file_bytes, "a multiple of 4096")


WAL_BOUNDS: Final = {
    "sync_interval_ms": (1, 60_000),
    "file_bytes": (limits.FILE_BYTES_MIN, limits.FILE_BYTES_MAX),
    "entry_bytes_max": (1, limits.ENTRY_BYTES_MAX),
    "spare_files": (0, 64),
    "idle_mark_ms": (1, 1_000),
    "ship_ms": (0, 3_600_000),
    "store_linger_ms": (0, 60_000),
    "lease_ms": (300, 600_000),
    "replica_poll_ms": (5, 600_000),
}


@dataclass(frozen=True)
class LakeConfig:
    """Settings of the lake: the Iceberg tables, and the object store."""

    iceberg: bool = True
    """Whether every topic is an Iceberg table."""

    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the pyiceberg catalog that holds the tables; none for the log's own: SQLite
    inside its folder, or objects of its store if it ships its entries. A value `env:NAME` is
    taken from the environment.
    """

    namespace: str = "lakebed"
    """The catalog's namespace in which the tables are; a dot separates levels."""

    sync_interval_ms: int = 10_000
    """The longest time between a checkpoint or a removal and the table that shows it, if nothing
    fails.
    """

    snapshots_kept: int = 20
    """Snapshots of a table that stay readable, the newest ones."""

    snapshot_age_ms: int = 86_400_000
    """Older snapshots go before they are too many, if a file waits for them that the log has
    dropped.
    """

    grace_ms: int = 3_600_000
    """How long a file stays after the last snapshot that refers to it is gone: readers that have
    begun may need it.
    """

    store: str = ""
    """Where segments and tables are kept, as a URL: `s3://bucket/path`, or that of another file
    system that pyarrow knows. Empty for the log's own folder alone.
    """

    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Endpoint, region and credentials of the store, under the names that pyiceberg gives them,
    such as `s3.endpoint`. A value `env:NAME` is taken from the environment.
    """

    store_cache_bytes: int = 1 * limits.GIB
    """Segments read back from the store that are kept on the local disk for the next reader."""

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        check_bounds(self, LAKE_BOUNDS)
        if not isinstance(self.iceberg, bool):
            refuse("iceberg", self.iceberg, "true or false")
        for name in ("catalog", "store_options"):
            _check_options(name, getattr(self, name))
        if not isinstance(self.namespace, str) or not all(self.namespace.split(".")):
            refuse("namespace", self.namespace, "names with a dot between them")
        if not isinstance(self.store, str) or (self.store and "://" not in self.store):
            refuse("store", self.store, "a URL such as s3://bucket/path")
        if self.catalog and "type" not in self.catalog and "py-catalog-impl" not in self.catalog:
            refuse("catalog", sorted(self.catalog), "given with its `type` (sql, rest, glue, ...)")


def _check_options(setting: str, options: object) -> None:
    """Raise if options are not text, without showing a value, which may be a secret."""
    if not isinstance(options, Mapping):
        refuse(setting, type(options).__name__, "a dictionary of text by name")
        return
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"{setting} must be a dictionary of text by name",
                setting=setting,
                name=name,
                got=type(value).__name__,
            )


LAKE_BOUNDS: Final = {
    "sync_interval_ms": (10, 86_400_000),
    "snapshots_kept": (1, 10_000),
    "snapshot_age_ms": (0, 365 * 86_400_000),
    "grace_ms": (0, 365 * 86_400_000),
    "store_cache_bytes": (0, 1024 * limits.GIB),
}


@dataclass(frozen=True)
class LogConfig:
    """Settings of a log: its memory, its checkpoints, its schedule."""

    wal: WalConfig = WalConfig()
    """Settings of the write-ahead log."""

    lake: LakeConfig = LakeConfig()
    """Settings of the Iceberg tables and the object store."""

    serve: ServeConfig = ServeConfig()  # noqa: RUF009  # it cannot change
    """Settings of the process that serves the log over the network."""

    memtable_bytes: int = 128 * limits.MIB
    """Acknowledged bytes kept in memory until they are in segments.

    A checkpoint begins at half of it; from three quarters on writers are slowed, at all of it they
    wait.
    """

    wal_bytes: int = 1 * limits.GIB
    """Bytes of WAL after which a checkpoint begins; at twice as many writers wait for it."""

    checkpoint_interval_ms: int = 300_000
    """The longest time between a write and the checkpoint that puts it into a segment."""

    write_timeout_ms: int = 30_000
    """How long a writer waits for room before it gets `OverloadedError`."""

    cache_bytes: int = 64 * limits.MIB
    """Decoded row groups of segments that are kept for the next reader."""

    retention_interval_ms: int = 60_000
    """How often retention and cleanup look at every topic."""

    producer_expiry_ms: int = 7 * 86_400_000
    """How long a producer's last batches are remembered after its last one."""

    default_partitions: int = 1
    """Partitions of a topic that is created without saying how many."""

    def __post_init__(self) -> None:
        """Refuse values out of bounds, naming setting, value and bounds."""
        if not isinstance(self.wal, WalConfig):
            refuse("wal", type(self.wal), "a WalConfig")
        if not isinstance(self.lake, LakeConfig):
            refuse("lake", type(self.lake), "a LakeConfig")  # not its value, which may hold secrets
        if not isinstance(self.serve, ServeConfig):
            refuse("serve", type(self.serve), "a ServeConfig")
        check_bounds(self, LOG_BOUNDS)

    @property
    def ships(self) -> bool:
        """Whether the entries of the log are shipped to an object store."""
        return self.wal.acks is AckMode.STORE or self.wal.ship_ms > 0


LOG_BOUNDS: Final = {
    "memtable_bytes": (64 * limits.KIB, 1024 * limits.GIB),
    "wal_bytes": (64 * limits.KIB, 1024 * limits.GIB),
    "checkpoint_interval_ms": (10, 86_400_000),
    "write_timeout_ms": (0, 3_600_000),
    "cache_bytes": (0, 1024 * limits.GIB),
    "retention_interval_ms": (10, 86_400_000),
    "producer_expiry_ms": (1_000, 365 * 86_400_000),
    "default_partitions": (1, limits.PARTITIONS_MAX),
}
