"""How an embedded log is put together: recovered from its folder, then assembled in layers.

Each part is constructed from parts that exist already, so that the order below is the order of
dependence. The one exception are the `Hooks` of the core: the WAL needs the core, which applies
what the WAL has committed, and the core calls back parts that are constructed after both.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from lakebed import limits
from lakebed.config import LakeConfig, LogConfig
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
from lakebed.engine.core import Core, Hooks
from lakebed.engine.groups import Groups
from lakebed.engine.lifecycle import Lifecycle
from lakebed.engine.maintenance import Maintenance
from lakebed.engine.ownership import Takeover, open_chain, own, read_marker
from lakebed.engine.parts import Parts
from lakebed.engine.reading import Reading
from lakebed.engine.recovery import Recovered, load_snapshot, replay, tidy
from lakebed.engine.replica import Replica
from lakebed.engine.rewriting import Rewriting
from lakebed.engine.shipping import Shipping
from lakebed.engine.staging import Staging
from lakebed.engine.table_keys import KeyLookup
from lakebed.engine.topics import Topics
from lakebed.engine.uploads import Uploads
from lakebed.engine.writing import Writing
from lakebed.errors import InvalidArgumentError, NotALogError
from lakebed.host import Clock, Disk, OsDisk
from lakebed.iceberg.derived_table import Derived
from lakebed.iceberg.lake import Lake
from lakebed.iceberg.parts import LakeParts, open_store
from lakebed.lake.folder import LakeFolder
from lakebed.lake.locations import Locations
from lakebed.lake.remote_cache import RemoteCache
from lakebed.lake.remote_segments import RemoteSegments
from lakebed.lake.segment_reader import SegmentReader
from lakebed.state.image import State
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.types import HardState, Progress
from lakebed.wal import Wal
from lakebed.wal.folder import RAFT, TOPICS, Layout, declare_kind, is_declared, other_kind_error

_FLUSH_THREADS_MAX: Final = 4
"""Segments that a checkpoint writes at a time, at most."""


class _Files(NamedTuple):
    """The folder of a log and what is in it, before it is recovered."""

    disk: Disk
    folder: Path
    staging: Staging
    segments: LakeFolder
    snapshots: SnapshotFolder


class _Tables(NamedTuple):
    """What reads segments, and keeps Iceberg tables of them."""

    reader: SegmentReader
    derived: Derived
    lake: Lake


class _Upkeep(NamedTuple):
    """What checkpoints, cleans and rewrites the log."""

    budget: Budget
    checkpointer: Checkpointer
    compaction_rewrite: CompactionRewrite
    cleanup: Cleanup
    maintenance: Maintenance


def assemble(
    folder: Path,
    config: LogConfig,
    *,
    disk: Disk,
    clock: Clock,
    tell: Progress,
    threaded: bool,
    takeover: Takeover | None = None,
) -> Parts:
    """Recover the log in `folder`, and return its parts; its threads are running then."""
    files = _Files(
        disk, folder, Staging(disk, folder), LakeFolder(disk, folder), SnapshotFolder(disk, folder)
    )
    core = Core(State(), files.staging, clock)
    chain = open_chain(config) if config.ships else None
    wal = Wal.open(
        folder,
        config.wal,
        progress=lambda done, total: tell("reading the WAL", done, total),
        disk=disk,
        clock=clock,
        threaded=threaded,
        applied=core.apply_group,
        kind=TOPICS,
        log_id=None if chain is None else chain.log_id,
    )
    shipping: Shipping | None = None
    try:
        _check_not_raft(disk, wal)
        uploads = _build_uploads(files, config, wal)
        if chain is not None and uploads is not None:
            files.staging.load_remote = uploads.load_staged
            shipping = own(
                chain,
                uploads=uploads,
                wal=wal,
                core=core,
                disk=disk,
                folder=folder,
                snapshots=files.snapshots,
                config=config,
                takeover=takeover or Takeover(),
            )
        recovered = _recover(
            files, core, wal, tell, stored=bool(config.lake.store), shared=config.ships
        )
        return _assemble(files, config, core, wal, recovered, shipping, uploads, threaded=threaded)
    except BaseException:
        wal.close()
        if shipping is not None:
            shipping.finish_close(wal.last_index)
        raise


def assemble_replica(folder: Path, config: LogConfig, *, clock: Clock) -> Parts:
    """Return the parts of a read replica of the log in a store; it is being followed then.

    The folder has a WAL without entries, which is its lock, and copies of segments that were read.
    """
    chain = open_chain(config, read_only=True)
    if chain.log_id is None:
        raise NotALogError("the store holds no log", store=chain.store.location)
    disk = OsDisk()
    files = _Files(
        disk, folder, Staging(disk, folder), LakeFolder(disk, folder), SnapshotFolder(disk, folder)
    )
    core = Core(State(), files.staging, clock)
    small = replace(config.wal, file_bytes=limits.FILE_BYTES_MIN, spare_files=0)
    wal = Wal.open(folder, small, disk=disk, clock=clock, kind=TOPICS, log_id=chain.log_id)
    replica: Replica | None = None
    try:
        if wal.log_id != chain.log_id or wal.last_index:
            raise InvalidArgumentError(
                "the folder holds a log; a replica needs another folder", folder=folder
            )
        uploads = _build_uploads(files, config, wal)
        if uploads is not None:
            files.staging.load_remote = uploads.load_staged
        replica = Replica(chain=chain, log_id=wal.log_id, core=core, config=config)
        replica.load()
        return _assemble(
            files, config, core, wal, Recovered(), None, uploads, threaded=True, replica=replica
        )
    except BaseException:
        if replica is not None:
            replica.close()
        wal.close()
        raise


def _build_uploads(files: _Files, config: LogConfig, wal: Wal) -> Uploads | None:
    """Construct what copies files into the store of a log that ships its entries."""
    store = open_store(config.lake) if config.ships else None
    if store is None:
        return None
    locations = Locations(files.folder, config.lake.store, str(wal.log_id))
    return Uploads(store=store, locations=locations, lake=files.segments, log_id=str(wal.log_id))


def _recover(
    files: _Files, core: Core, wal: Wal, tell: Progress, *, stored: bool, shared: bool
) -> Recovered:
    """Load the state from snapshot and WAL into the core; compare the segments with it."""
    layout = Layout(files.folder)
    core.state, recovered = load_snapshot(files.snapshots, wal)
    replay(core, wal, recovered, lambda done, total: tell("replaying entries", done, total))
    tidy(
        core,
        files.segments,
        files.disk,
        files.folder,
        recovered,
        stored=stored,
        shared=shared,
    )
    if not is_declared(files.disk, layout):
        declare_kind(files.disk, layout, wal.log_id, TOPICS)
    return recovered


def _assemble(
    files: _Files,
    config: LogConfig,
    core: Core,
    wal: Wal,
    recovered: Recovered,
    shipping: Shipping | None,
    uploads: Uploads | None,
    *,
    threaded: bool,
    replica: Replica | None = None,
) -> Parts:
    """Construct the parts that need the recovered state, and start their threads."""
    lifecycle, commands = Lifecycle(files.folder), Commands(wal)
    tables = _open_tables(files, config, core, wal, commands, shipping)
    recovered.files_removed += tables.lake.delete_segments(recovered.dropped)
    reading = Reading(core, tables.reader)
    groups = Groups(core, reading, commands.submit, wal.check_writable)
    topics = Topics(core, commands.submit, config.default_partitions)
    upkeep = _build_upkeep(
        files, config, core, wal, commands, tables, groups, shipping, uploads, threaded=threaded
    )
    upkeep.checkpointer.start_from(recovered.snapshots)
    admission = Admission(
        core=core,
        wal=wal,
        budget=upkeep.budget,
        relieve=None if threaded else upkeep.maintenance.tick,
        shipping=shipping,
    )
    writing = Writing(core=core, wal=wal, commands=commands, admission=admission)
    parts = Parts(
        folder=files.folder,
        config=config,
        lifecycle=lifecycle,
        staging=files.staging,
        segment_folder=files.segments,
        core=core,
        wal=wal,
        recovered=recovered,
        segment_reader=tables.reader,
        reading=reading,
        lookup=KeyLookup(core, tables.reader),
        commands=commands,
        admission=admission,
        writing=writing,
        backend=EmbeddedBackend(
            core=core, writing=writing, reading=reading, groups=groups, admission=admission
        ),
        topics=topics,
        groups=groups,
        access=Access(core, commands.submit, wal.log_id),
        audit=Audit(topics, writing),
        lake=tables.lake,
        derived=tables.derived,
        budget=upkeep.budget,
        checkpointer=upkeep.checkpointer,
        compaction_rewrite=upkeep.compaction_rewrite,
        cleanup=upkeep.cleanup,
        maintenance=upkeep.maintenance,
        backups=Backups(
            disk=files.disk,
            folder=files.folder,
            wal=wal,
            lake=files.segments,
            staging=files.staging,
            config=config.lake,
            picture=upkeep.maintenance.picture,
            time_us=core.clock.time_us,
            check_open=lifecycle.check_open,
        ),
        shipping=shipping,
        replica=replica,
    )
    if replica is not None:
        wal.refusal = replica.refusal
        check = wal.commits.check_may_wait
        core.hooks = Hooks(check_may_wait=check, after_apply=None, catch_up=replica.catch_up)
        replica.start(tables.reader)
        return parts
    _start(parts, threaded=threaded)
    return parts


def _open_tables(
    files: _Files,
    config: LogConfig,
    core: Core,
    wal: Wal,
    commands: Commands,
    shipping: Shipping | None,
) -> _Tables:
    """Construct what reads segments, here and in the object store, and their Iceberg tables."""
    lake_config = _lake_config(config, files.disk)
    locations = Locations(files.folder, lake_config.store, str(wal.log_id))
    store = open_store(lake_config)
    cache, remote = None, None
    if store is not None:
        if shipping is not None:
            store.before_remove = shipping.confirm
        cache = RemoteCache(
            disk=files.disk,
            folder=files.folder / "fetched",
            store=store,
            bytes_max=lake_config.store_cache_bytes,
        )
        remote = RemoteSegments(cache, locations)
    reader = SegmentReader(files.segments, config.cache_bytes, remote)
    parts = LakeParts(
        log=core,
        wal=wal,
        commands=commands,
        config=lake_config,
        segments=files.segments,
        reader=reader,
        store=store,
        remote_cache=cache,
        locations=locations,
        owner=None if shipping is None else shipping.table_owner(),
    )
    derived = Derived(parts)
    return _Tables(reader, derived, Lake(parts, derived))


def _build_upkeep(
    files: _Files,
    config: LogConfig,
    core: Core,
    wal: Wal,
    commands: Commands,
    tables: _Tables,
    groups: Groups,
    shipping: Shipping | None,
    uploads: Uploads | None,
    *,
    threaded: bool,
) -> _Upkeep:
    """Construct what checkpoints, cleans and rewrites the log."""
    submit, reader = commands.submit, tables.reader
    checkpointer = Checkpointer(
        core=core,
        wal=wal,
        lake=files.segments,
        snapshots=files.snapshots,
        submit=submit,
        delete_segments=tables.lake.delete_segments,
        threads=_flush_threads() if threaded else 1,
        shipping=shipping,
        uploads=uploads,
    )
    budget = Budget(core, config, checkpointer)
    rewriting = Rewriting(
        core=core,
        lake=files.segments,
        reader=reader,
        checkpointer=checkpointer,
        submit=submit,
        uploads=uploads,
    )
    cleanup = Cleanup(
        core=core, reader=reader, rewriting=rewriting, checkpointer=checkpointer, submit=submit
    )
    return _Upkeep(
        budget=budget,
        checkpointer=checkpointer,
        compaction_rewrite=CompactionRewrite(
            core=core, reader=reader, rewriting=rewriting, checkpointer=checkpointer
        ),
        cleanup=cleanup,
        maintenance=Maintenance(
            core=core,
            config=config,
            budget=budget,
            checkpointer=checkpointer,
            cleanup=cleanup,
            groups=groups,
            submit=submit,
            changed=tables.lake.nudge,
        ),
    )


def _start(parts: Parts, *, threaded: bool) -> None:
    """Connect the core with the parts that it calls back, and start the threads."""
    maintenance, budget, shipping = parts.maintenance, parts.budget, parts.shipping

    def after_apply() -> None:
        maintenance.nudge()
        budget.notify()
        if shipping is not None:
            shipping.after_apply()

    parts.core.hooks = Hooks(
        check_may_wait=parts.wal.commits.check_may_wait,
        after_apply=after_apply if threaded else None,
    )
    if shipping is not None:
        shipping.start()
    if threaded:
        maintenance.start()
        maintenance.nudge()
        parts.lake.start()


def _lake_config(config: LogConfig, disk: Disk) -> LakeConfig:
    """Return the settings of the lake; only a log on a real disk has tables."""
    return config.lake if isinstance(disk, OsDisk) else replace(config.lake, iceberg=False)


def _check_not_raft(disk: Disk, wal: Wal) -> None:
    """Refuse the log of a Raft node of version 0.6, which does not say that it is one.

    Such a log has terms, a vote or a note at its release mark. Of logs with topics only those that
    are part of a chain have terms, and their folders are marked.
    """
    if is_declared(disk, Layout(wal.folder)) or read_marker(disk, wal.folder) is not None:
        return
    if wal.last_term or wal.hard_state != HardState() or wal.mark.note:
        raise other_kind_error(wal.folder, TOPICS, RAFT)


def _flush_threads() -> int:
    """Return how many segments to write at a time: half of the cores are left to the writers."""
    return max(1, min(_FLUSH_THREADS_MAX, (os.cpu_count() or 1) // 2))
