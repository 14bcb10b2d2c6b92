"""The parts of an embedded log: how they are put together when it is opened, and let go of."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from lakebed.api.log import Log
from lakebed.config import LakeConfig, LogConfig
from lakebed.engine.access import Access
from lakebed.engine.audit import Audit
from lakebed.engine.backend import EmbeddedBackend
from lakebed.engine.backup import Backups
from lakebed.engine.budget import Budget
from lakebed.engine.checkpoint import Checkpointer
from lakebed.engine.cleanup import Cleanup
from lakebed.engine.core import Core
from lakebed.engine.groups import Groups
from lakebed.engine.maintenance import Maintenance
from lakebed.engine.reading import Reading
from lakebed.engine.recovery import Recovered, load_snapshot, replay, tidy
from lakebed.engine.rewriting import Rewriting
from lakebed.engine.settings import effective_config
from lakebed.engine.staging import Staging
from lakebed.engine.survival import Survival
from lakebed.engine.table_keys import Lookup
from lakebed.engine.topics import Topics
from lakebed.engine.writing import Writing
from lakebed.errors import ClosedError, InvalidArgumentError
from lakebed.host import Clock, Disk, OsDisk, SystemClock
from lakebed.iceberg.derived_table import Derived
from lakebed.iceberg.lake import Lake
from lakebed.iceberg.parts import LakeParts, open_store
from lakebed.lake.folder import LakeFolder
from lakebed.lake.locations import Locations
from lakebed.lake.remote_cache import RemoteCache
from lakebed.lake.remote_segments import RemoteSegments
from lakebed.lake.segment_reader import SegmentReader
from lakebed.reports.stats import LogStats
from lakebed.state.image import State
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.types import HardState, Progress, say_nothing
from lakebed.wal import Wal
from lakebed.wal.folder import RAFT, TOPICS, Layout, declare_kind, is_declared, other_kind

_FLUSH_THREADS_MAX: Final = 4
"""Segments that a checkpoint writes at a time, at most."""


class Assembly(Log):
    """A log without the calls that its users make: those are in `EmbeddedLog`."""

    def __init__(
        self, folder: Path, config: LogConfig, disk: Disk, clock: Clock, *, threaded: bool
    ) -> None:
        self.folder = folder
        self.config = config
        self._disk = disk
        self._threaded = threaded
        self._closed = False
        self._released = False
        self._before_close: list[Callable[[], None]] = []
        """Done when the log is about to be closed, by whoever serves it from this process."""
        self._backing_up = threading.RLock()
        self._staging = Staging(disk, folder)
        self._lake = LakeFolder(disk, folder)
        self._snapshots = SnapshotFolder(disk, folder)
        self._core = Core(State(), self._staging, clock)
        self._recovered = Recovered()
        self._wal: Wal
        self._groups: Groups
        self.lake: Lake
        """Iceberg tables and object store."""
        self.derived: Derived
        """Iceberg tables that jobs and pipelines make."""
        self.access: Access
        """Who may do what when this log is served: tokens, rules, grants."""
        self.audit: Audit
        """What a server refused, and what was done to the log itself."""

    @classmethod
    def _open(
        cls,
        folder: str | os.PathLike[str],
        config: LogConfig | None,
        progress: Progress | None,
        disk: Disk | None,
        clock: Clock | None,
        *,
        threaded: bool,
    ) -> Self:
        """Open the log in `folder`, making it if the folder is new or empty."""
        if not isinstance(folder, (str, os.PathLike)) or "\0" in os.fspath(folder):
            raise InvalidArgumentError("the folder is not a path", got=repr(folder))
        disk, clock = disk or OsDisk(), clock or SystemClock()
        if config is None:
            config = effective_config(disk, Path(folder), os.environ)
        config = _checked_config(config)
        log = cls(Path(folder), config, disk, clock, threaded=threaded)
        tell = progress or say_nothing
        log._wal = Wal.open(
            folder,
            config.wal,
            progress=lambda done, total: tell("reading the WAL", done, total),
            disk=disk,
            clock=clock,
            threaded=threaded,
            applied=log._core.applied,
            kind=TOPICS,
        )
        try:
            declared = is_declared(disk, Layout(log.folder))
            if not declared:
                _check_not_raft(log._wal)
            log._recover(tell)
            if not declared:
                declare_kind(disk, Layout(log.folder), log._wal.log_id, TOPICS)
            log._assemble()
        except BaseException:
            log._wal.close()
            raise
        return log

    def _recover(self, tell: Progress) -> None:
        state, self._recovered = load_snapshot(self._snapshots, self._wal)
        self._core.state = state
        replay(
            self._core,
            self._wal,
            self._recovered,
            lambda done, total: tell("replaying entries", done, total),
        )
        tidy(
            self._core,
            self._lake,
            self._disk,
            self.folder,
            self._recovered,
            stored=bool(self.config.lake.store),
        )

    def _assemble(self) -> None:
        """Put the parts together that need the recovered state."""
        self._core.check_may_wait = self._wal.check_may_wait
        self._assemble_lake()
        self.access = Access(self._core, self._submit, self._wal.log_id)
        self._topics = Topics(self._core, self._submit, self.config.default_partitions)
        self.audit = Audit(self._topics, self._writing)
        self._groups = Groups(self._core, self._reading, self._submit)
        self._backend = EmbeddedBackend(
            self._core, self._writing, self._reading, self._groups, self._admit
        )
        self._assemble_upkeep()
        if self._threaded:
            self._core.on_applied = self._after_apply
            self._maintenance.start()
            self._maintenance.nudge()
            self.lake.start()

    def _assemble_lake(self) -> None:
        """Put together what reads and writes segments and tables."""
        core, config = self._core, self._lake_config()
        locations = Locations(self.folder, config.store, str(self._wal.log_id))
        store = open_store(config)
        cache, remote = None, None
        if store is not None:
            cache = RemoteCache(
                self._disk, self.folder / "fetched", store, config.store_cache_bytes
            )
            remote = RemoteSegments(cache, locations)
        self._segments = SegmentReader(self._lake, self.config.cache_bytes, remote)
        self._reading = Reading(core, self._segments)
        self._lookup = Lookup(core, self._segments)
        self._writing = Writing(core, self._wal, self._admit)
        parts = LakeParts(
            log=core,
            wal=self._wal,
            commands=self._writing,
            config=config,
            segments=self._lake,
            reader=self._segments,
            store=store,
            remote_cache=cache,
            locations=locations,
        )
        self.derived = Derived(parts)
        self.lake = Lake(parts, self.derived)
        self._recovered.files_removed += self.lake.delete_segments(self._recovered.dropped)

    def _assemble_upkeep(self) -> None:
        """Put together what checkpoints, cleans, rewrites and copies the log."""
        core, config, submit = self._core, self.config, self._writing.submit
        self._checkpointer = Checkpointer(
            core,
            self._wal,
            self._lake,
            self._snapshots,
            submit,
            self.lake.delete_segments,
            _flush_threads() if self._threaded else 1,
        )
        self._checkpointer.start_from(self._recovered.snapshots)
        self._budget = Budget(core, config, lambda: self._checkpointer.frozen_wal_bytes)
        rewriting = Rewriting(core, self._lake, self._segments, self._checkpointer, submit)
        self._survival = Survival(core, self._segments, rewriting, self._checkpointer)
        self._cleanup = Cleanup(core, self._segments, rewriting, self._checkpointer, submit)
        self._maintenance = Maintenance(
            core,
            config,
            self._budget,
            self._checkpointer,
            self._cleanup,
            self._groups,
            submit,
            self.lake.nudge,
        )
        self._backups = Backups(
            self._disk,
            self.folder,
            self._wal,
            self._lake,
            self._staging,
            config.lake,
            self._maintenance.picture,
            core.clock.time_us,
            self._check_open,
        )

    def stats(self) -> LogStats:
        """Return counters and a picture of the log."""
        self._check_open()
        state = self._core.state
        partitions = list(state.partitions.values())
        cache = self._segments.stats
        return LogStats(
            topics=len(self._topics.names()),
            partitions=len(self._topics.partitions()),
            segments=sum(len(each.segments) for each in partitions),
            segment_bytes=sum(
                segment.file_bytes for each in partitions for segment in each.segments
            ),
            memtable_bytes=self._core.used["memory_bytes"],
            memtable_records=sum(each.end - each.flushed for each in partitions),
            memtable_budget_bytes=self.config.memtable_bytes,
            records_written=self._core.used["records"],
            open_transactions=len(state.transactions),
            transactions_timed_out=self._maintenance.transactions_timed_out,
            groups=len(state.groups),
            members_expelled=self._maintenance.members_expelled,
            producers=len(state.producers),
            applied_index=state.numbers["applied"],
            checkpoints=self._checkpointer.count,
            last_checkpoint=self._checkpointer.last,
            checkpoint_age_ms=self._checkpointer.age_ms(),
            throttled_ms=int(self._budget.throttled_seconds * 1000),
            stopped_writes=self._budget.stopped_writes,
            rejected_writes=self._budget.rejected_writes,
            disk_full=self._budget.disk_full,
            maintenance_failures=self._maintenance.failures,
            last_failure=None
            if self._maintenance.last_failure is None
            else str(self._maintenance.last_failure),
            cleanup_failures=self._cleanup.failures.listing(state.topics.__contains__),
            cache_bytes=cache.cached_bytes,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            snapshot_index=self._recovered.snapshot_index,
            replayed_entries=self._recovered.replayed_entries,
            snapshots_passed_over=self._recovered.snapshots_passed_over,
            files_removed=self._recovered.files_removed,
            files_quarantined=self._recovered.files_quarantined,
            wal=self._wal.stats(),
            lake=self.lake.stats(),
        )

    def close(self) -> None:
        """Finish what was appended and release the folder. A second call does nothing.

        What is in memory stays in the WAL and is read again at the next opening; `checkpoint`
        before makes that quicker.
        """
        if self._released:
            return
        self._wal.check_may_wait()
        while self._before_close:
            self._before_close.pop()()
        self._closed = True  # an interrupted call is finished by the next one
        with self._backing_up:
            pass  # a backup that is being taken notices, and ends while the folder is ours
        self._budget.close()
        self._maintenance.stop()
        self.lake.stop()
        self.derived.close()
        self._reading.closed = True
        self._core.wake_all()
        self._groups.wake_all()
        try:
            self._wal.close()
            self._released = True
        finally:
            self._segments.close()

    # Inside

    def _lake_config(self) -> LakeConfig:
        """Return the settings of the lake; tables are on a real disk, or there are none."""
        if isinstance(self._disk, OsDisk):
            return self.config.lake
        return replace(self.config.lake, iceberg=False)

    def _admit(self) -> None:
        if self._core.broken is not None:
            raise self._core.broken
        if self._wal.in_callback:
            return  # waiting there would hold up the commit that makes room
        self._budget.admit(None if self._threaded else self._maintenance.tick)

    def _after_apply(self) -> None:
        self._maintenance.nudge()
        self._budget.changed()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log is closed", path=self.folder)


def _check_not_raft(wal: Wal) -> None:
    """Refuse the log of a Raft node of version 0.6, which does not say that it is one.

    Only such a log has terms and votes, and notes at its release marks.
    """
    if wal.last_term or wal.hard_state != HardState() or wal.mark.note:
        raise other_kind(wal.folder, TOPICS, RAFT)


def _flush_threads() -> int:
    """Return how many segments to write at a time: half of the cores are left to the writers."""
    return max(1, min(_FLUSH_THREADS_MAX, (os.cpu_count() or 1) // 2))


def _checked_config(config: LogConfig) -> LogConfig:
    if not isinstance(config, LogConfig):
        raise InvalidArgumentError("the settings are not a LogConfig", got=type(config).__name__)
    return config
