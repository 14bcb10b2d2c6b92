"""Taking over a log in a store when it is opened: identity, lease, walk, fence, reconcile.

1. the store is probed, and says which log its prefix holds (`log.json`, created once)
2. the lease is claimed: at once if it was released, has expired, or was held by this folder; else
   after it has not changed for its time on this process's clock
3. the chain is walked and compared with the folder's WAL, and fenced
4. the fence's number becomes the term of the WAL; the lease is renewed from its claim on, and says
   who serves once the log is recovered

A folder that has entries and was never part of the chain is refused, not merged: two logs in one
prefix, or a copy that continued separately.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from lakebed.chain.calls import Get, Procedure, Put
from lakebed.chain.driver import Driver
from lakebed.chain.lease import Hold, Watch, read
from lakebed.chain.owner import ChainOwner, create_base, take_over
from lakebed.chain.read_ahead import reading_ahead
from lakebed.chain.records import BASE, Base, new_nonce
from lakebed.chain.settle import create
from lakebed.chain.walk import Walker
from lakebed.config import LogConfig, resolve_env
from lakebed.engine.core import Core
from lakebed.engine.lease_keeper import LeaseKeeper
from lakebed.engine.reconcile import DivergedError, LocalLog
from lakebed.engine.shipping import Shipping
from lakebed.engine.staging import Staging
from lakebed.engine.uploads import Uploads
from lakebed.errors import (
    CorruptionError,
    ForeignFileError,
    InvalidArgumentError,
    NotOwnerError,
    translate_os_errors,
)
from lakebed.host import Disk, read_file
from lakebed.host.atomic import write_atomically
from lakebed.host.conditional import ConditionalStore, open_conditional, probe
from lakebed.host.disk import write_all
from lakebed.state.image import decode_state
from lakebed.state.snapshot_files import SnapshotFolder
from lakebed.types import HardState
from lakebed.wal import Wal

_log = logging.getLogger("lakebed.engine")

IDENTITY: Final = "log.json"
MARKER: Final = "chain.json"
"""The file of a folder that is, or was, part of a chain."""
_PATIENCE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1

_probed: set[tuple[str, str]] = set()
"""Stores that were probed by this process: location and endpoint."""


@dataclass(frozen=True)
class ChainStore:
    """The store of a log, and the log that is in it."""

    store: ConditionalStore
    log_id: uuid.UUID | None
    """None if the prefix holds no log yet."""

    def driver(self, log_id: uuid.UUID) -> Driver:
        """Return what runs the procedures of the chain on this log's objects."""
        return Driver(self.store, str(log_id))


def open_chain(config: LogConfig, *, read_only: bool = False) -> ChainStore:
    """Open the store of a log that ships its entries; raise `StoreUnfitError` if it is unfit.

    A store that is only read is not probed: that would write.
    """
    if not config.lake.store:
        raise InvalidArgumentError(
            "a log that ships its entries needs a store: set `store` in [lake]",
            acks=config.wal.acks.value,
            ship_ms=config.wal.ship_ms,
        )
    options = resolve_env(config.lake.store_options)
    store = open_conditional(config.lake.store, options)
    key = (store.location, json.dumps(options, sort_keys=True))
    if key not in _probed and not read_only:
        probe(store)
        _probed.add(key)
    stored = Driver(store).run(_read(IDENTITY), patience_seconds=_PATIENCE_SECONDS)
    return ChainStore(store, None if stored is None else _parse_identity(stored))


@dataclass(frozen=True)
class Takeover:
    """How a process becomes the owner of a log in a store."""

    address: str = ""
    """Where its clients reach it, for the lease."""
    watch: Watch | None = None
    """What was seen of the lease before: a standby has waited already, and waits no second time."""
    force: bool = False
    """Take the log over though its owner may be alive."""


def name_log(chain: ChainStore) -> ChainStore:
    """Give a store that holds no log one, which is empty until it is first owned."""
    if chain.log_id is not None:
        return chain
    log_id = uuid.uuid4()
    other = Driver(chain.store).run(
        create(IDENTITY, _encode({"format": 1, "log": str(log_id)})),
        patience_seconds=_PATIENCE_SECONDS,
    )
    return ChainStore(chain.store, log_id if other is None else _parse_identity(other))


def join(chain: ChainStore, wal: Wal, disk: Disk, folder: Path) -> None:
    """Make a folder part of the chain; raise `ForeignFileError` if it holds another log."""
    _check_same_log(chain, wal, disk, folder)
    _mark(disk, folder, wal.log_id)


def own(
    chain: ChainStore,
    *,
    wal: Wal,
    core: Core,
    disk: Disk,
    folder: Path,
    snapshots: SnapshotFolder,
    config: LogConfig,
    uploads: Uploads,
    takeover: Takeover,
) -> Shipping:
    """Become the owner of the log; its WAL then holds what the chain holds, and perhaps more."""
    _check_same_log(chain, wal, disk, folder)
    driver = chain.driver(wal.log_id)
    _mark(disk, folder, wal.log_id)  # first: what a crash leaves in the store is this folder's
    _create_chain(chain, driver, wal, snapshots, uploads, core.staging)
    hold = Hold(owner_id(folder), takeover.address, config.wal.lease_ms / 1000)
    _claim(driver, hold, core, config, takeover)
    lease = LeaseKeeper(driver, hold, core.clock, config.wal.lease_ms / 1000)
    lease.start()
    local = LocalLog(wal, disk, folder, snapshots)
    try:
        with reading_ahead(chain.store) as store:
            owner = _take(Driver(store, str(wal.log_id)), local, wal)
        if wal.hard_state.term < owner.term:
            wal.set_hard_state(HardState(owner.term))
    except BaseException:
        driver.stop()
        lease.join()
        raise
    _log.info("this process owns the log: term=%d store=%s", owner.term, driver.location)
    return Shipping(
        driver=driver,
        owner=owner,
        lease=lease,
        wal=wal,
        core=core,
        config=config,
        diverged_entries=local.diverged_entries,
    )


def _take(driver: Driver, local: LocalLog, wal: Wal) -> ChainOwner:
    while True:
        walker = Walker(wal.log_id, local)
        try:
            driver.run(walker.load(), patience_seconds=_PATIENCE_SECONDS)
            owner = driver.run(take_over(walker, new_nonce()), patience_seconds=_PATIENCE_SECONDS)
        except DivergedError as error:
            local.set_aside(error.index)
            continue
        if owner is None:
            raise AssertionError("a candidate that does not give way returned without a fence")
        if wal.last_index < owner.next_index - 1:
            raise CorruptionError(
                "the folder lacks entries that the chain has",
                last_index=wal.last_index,
                chain_index=owner.next_index - 1,
            )
        return owner


def _claim(driver: Driver, hold: Hold, core: Core, config: LogConfig, takeover: Takeover) -> None:
    """Claim the lease once its holder has released it, is gone, or was an earlier life of this."""
    ttl_seconds = config.wal.lease_ms / 1000
    watch = takeover.watch or Watch(ttl_seconds)
    # A standby goes back to watching if another one was first.
    patience_seconds = 0.0 if takeover.watch else ttl_seconds + _PATIENCE_SECONDS
    deadline = core.clock.monotonic() + patience_seconds
    while True:
        stored = driver.run(read(), patience_seconds=_PATIENCE_SECONDS)
        now = core.clock.monotonic()
        watch.note(stored, now)
        lease = watch.lease
        mine = lease is not None and lease.owner == hold.lease.owner
        if mine or takeover.force or watch.may_take_over(now):
            if driver.run(hold.claim(), patience_seconds=_PATIENCE_SECONDS):
                return
        elif now > deadline and lease is not None:
            raise NotOwnerError(
                "another process owns the log and is alive",
                owner=lease.owner,
                address=lease.address,
                term=lease.term,
            )
        time.sleep(_POLL_SECONDS)


def _check_same_log(chain: ChainStore, wal: Wal, disk: Disk, folder: Path) -> None:
    if chain.log_id is None:
        return
    if chain.log_id != wal.log_id:
        raise ForeignFileError(
            "the store's prefix holds another log",
            store=chain.store.location,
            log=chain.log_id,
            folder=folder,
            folder_log=wal.log_id,
        )
    if wal.last_index and MARKER not in disk.names(folder):
        raise ForeignFileError(
            "the folder holds a copy of the log that was never part of the one in the store; "
            "open the store's URL with an empty folder instead",
            store=chain.store.location,
            folder=folder,
        )


def _create_chain(
    chain: ChainStore,
    driver: Driver,
    wal: Wal,
    snapshots: SnapshotFolder,
    uploads: Uploads,
    staging: Staging,
) -> None:
    """Create the log in the store, if its prefix holds none: with what the folder has."""
    if chain.log_id is None:
        identity = {"format": 1, "log": str(wal.log_id)}
        other = Driver(chain.store).run(
            create(IDENTITY, _encode(identity)), patience_seconds=_PATIENCE_SECONDS
        )
        if other is not None and _parse_identity(other) != wal.log_id:
            raise ForeignFileError(
                "the store's prefix holds another log",
                store=chain.store.location,
                log=_parse_identity(other),
            )
    if driver.run(_read(BASE), patience_seconds=_PATIENCE_SECONDS) is None:
        base = driver.run(
            _first_base(wal, snapshots, uploads, staging), patience_seconds=_PATIENCE_SECONDS
        )
        driver.run(create_base(wal.log_id, base), patience_seconds=_PATIENCE_SECONDS)


def _first_base(
    wal: Wal, snapshots: SnapshotFolder, uploads: Uploads, staging: Staging
) -> Procedure[Base]:
    """Return the base of a log that begins in the store with what a folder has.

    The newest snapshot becomes the base; entries behind it are shipped like new ones.
    """
    indexes = [index for index in snapshots.indexes() if index >= wal.mark.index]
    if not indexes:
        return Base()
    index = indexes[-1]
    state = decode_state(snapshots.load(index), snapshots.path(index))
    data = uploads.state(state)
    for transaction in state.transactions.values():
        for item in transaction.pending:
            if item.staged:
                length = item.part.body_bytes
                body = staging.load(item.staged, item.position, length, item.checksum)
                uploads.upload_staged(item.staged, [(item.position, item.checksum)], [body])
    name = f"snapshots/{index:020d}-{0:016x}-{crc32c(data):08x}-0-0"
    yield Put(name, data)
    return Base(
        index=index,
        term=wal.term_at(index),
        snapshot=name,
        snapshot_bytes=len(data),
        snapshot_checksum=crc32c(data),
        terms=((0, 1),),
    )


def owner_id(folder: Path) -> str:
    """Return who this is: a folder of a machine, which only one process has open at a time."""
    return f"{platform.node()}:{folder.resolve()}"


def _mark(disk: Disk, folder: Path, log_id: uuid.UUID) -> None:
    """Note in the folder that it is part of a chain, before anything of the chain is in it."""
    if MARKER in disk.names(folder):
        return
    path = folder / MARKER
    with translate_os_errors("marking the folder", path), write_atomically(disk, path) as file:
        data = _encode({"format": 1, "log": str(log_id)})
        write_all(file, [data], 0, len(data))


def read_marker(disk: Disk, folder: Path) -> uuid.UUID | None:
    """Return the log that a folder is part of the chain of, or None."""
    try:
        return _parse_identity(read_file(disk, folder / MARKER))
    except FileNotFoundError:
        return None


def _read(name: str) -> Procedure[bytes | None]:
    stored = yield Get(name)
    return None if stored is None else stored.data


def _encode(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def _parse_identity(data: bytes) -> uuid.UUID:
    try:
        return uuid.UUID(json.loads(data)["log"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptionError("the identity of the log in the store is damaged") from error


def default_folder(location: str) -> Path:
    """Return where a log that is opened by its store's URL has its files on this machine."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    safe = "".join(sign if sign.isalnum() or sign in "-._" else "_" for sign in location)
    return Path(root) / "lakebed" / f"{safe[-80:]}-{crc32c(location.encode()):08x}"
